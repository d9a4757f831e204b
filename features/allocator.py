"""A caching allocator in simulation: what a sequence of tensor lifetimes reserves on the device.

Frameworks do not give freed memory back to the driver; the vendor's monitor shows what they reserved. The
rules are those that PyTorch documents for its CUDA allocator ("CUDA semantics", memory management):

- sizes round up to 512 B; requests up to 1 MiB come out of 2 MiB segments, requests below 10 MiB out of
  20 MiB segments, larger ones get a segment of their own size rounded up to 2 MiB;
- a request takes the smallest free block of its pool that is large enough; what is left over is split off
  when it is at least 512 B (small pool) or more than 1 MiB (large pool);
- a freed block merges with free neighbours inside its segment. Nothing returns to the driver.

No device, no addresses of real memory, no threads: a pure function of the sequence of calls.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from predictor.units import MIB

GRANULE_BYTES = 512
SMALL_REQUEST_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MEDIUM_REQUEST_BYTES = 10 * MIB
MEDIUM_SEGMENT_BYTES = 20 * MIB
SEGMENT_GRANULE_BYTES = 2 * MIB


@dataclass(slots=True)
class _Block:
    """A stretch of one segment; `before` and `after` are the addresses of its neighbours, -1 at the ends."""

    size_bytes: int
    free: bool
    before: int
    after: int
    small: bool


class CachingAllocator:
    """Hands out addresses and keeps count. `release` takes an address that `allocate` returned."""

    __slots__ = ("_blocks", "_next", "_pools", "live_bytes", "peak_live_bytes", "reserved_bytes")

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        # Free blocks of the large and the small pool as sorted (size, address).
        self._pools: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._next = 0
        self.live_bytes = 0
        self.peak_live_bytes = 0
        self.reserved_bytes = 0

    def allocate(self, size_bytes: int) -> int:
        """Address of a block of at least `size_bytes` (0 counts as one granule)."""
        wanted = max(GRANULE_BYTES, -(-size_bytes // GRANULE_BYTES) * GRANULE_BYTES)
        small = wanted <= SMALL_REQUEST_BYTES
        pool = self._pools[small]
        place = bisect_left(pool, (wanted, -1))
        address = pool.pop(place)[1] if place < len(pool) else self._reserve(wanted, small)
        block = self._blocks[address]
        block.free = False
        left = block.size_bytes - wanted
        if left >= GRANULE_BYTES if small else left > SMALL_REQUEST_BYTES:
            self._split(address, block, wanted)
        self.live_bytes += block.size_bytes
        if self.live_bytes > self.peak_live_bytes:
            self.peak_live_bytes = self.live_bytes
        return address

    def release(self, address: int) -> None:
        """Returns a block to its pool. Raises KeyError for an address that is not in use."""
        block = self._blocks[address]
        if block.free:
            raise KeyError(address)
        self.live_bytes -= block.size_bytes
        pool = self._pools[block.small]
        if block.before >= 0 and self._blocks[block.before].free:
            address, block = self._merge(block.before, address, pool)
        if block.after >= 0 and self._blocks[block.after].free:
            following = self._blocks[block.after]
            pool.pop(bisect_left(pool, (following.size_bytes, block.after)))
            self._absorb(address, block, block.after, following)
        block.free = True
        insort(pool, (block.size_bytes, address))

    def _merge(self, before: int, address: int, pool: list[tuple[int, int]]) -> tuple[int, _Block]:
        """Takes the free block `before` out of the pool and lets it absorb the block behind it."""
        block = self._blocks[before]
        pool.pop(bisect_left(pool, (block.size_bytes, before)))
        self._absorb(before, block, address, self._blocks[address])
        return before, block

    def _absorb(self, address: int, block: _Block, behind: int, other: _Block) -> None:
        block.size_bytes += other.size_bytes
        block.after = other.after
        if other.after >= 0:
            self._blocks[other.after].before = address
        del self._blocks[behind]

    def _split(self, address: int, block: _Block, wanted: int) -> None:
        rest = address + wanted
        self._blocks[rest] = _Block(block.size_bytes - wanted, True, address, block.after, block.small)
        if block.after >= 0:
            self._blocks[block.after].before = rest
        block.after = rest
        insort(self._pools[block.small], (block.size_bytes - wanted, rest))
        block.size_bytes = wanted

    def _reserve(self, wanted: int, small: bool) -> int:
        if small:
            size = SMALL_SEGMENT_BYTES
        elif wanted < MEDIUM_REQUEST_BYTES:
            size = MEDIUM_SEGMENT_BYTES
        else:
            size = -(-wanted // SEGMENT_GRANULE_BYTES) * SEGMENT_GRANULE_BYTES
        address = self._next
        self._next += size
        self.reserved_bytes += size
        self._blocks[address] = _Block(size, True, -1, -1, small)
        return address
