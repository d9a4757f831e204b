"""A caching allocator in simulation: what a sequence of tensor lifetimes reserves on the device.

Frameworks do not give freed memory back to the driver; the vendor's monitor shows what they reserved. The
rules are those that PyTorch documents for its CUDA allocator ("CUDA semantics", memory management):

- sizes round up to 512 B; requests up to 1 MiB come out of 2 MiB segments, requests below 10 MiB out of
  20 MiB segments, larger ones get a segment of their own size rounded up to 2 MiB;
- a request takes the smallest free block of its pool that is large enough; what is left over is split off
  when it is at least 512 B (small pool) or more than 1 MiB (large pool);
- a freed block merges with free neighbours inside its segment;
- nothing returns to the driver while it has more. When it has none, segments without a block in use go back
  before a request fails.

No device, no addresses of real memory, no threads: a pure function of the sequence of calls.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from math import inf

from predictor.units import MIB

GRANULE_BYTES = 512
SMALL_REQUEST_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MEDIUM_REQUEST_BYTES = 10 * MIB
MEDIUM_SEGMENT_BYTES = 20 * MIB
SEGMENT_GRANULE_BYTES = 2 * MIB
_ADDRESS_BITS = 64
_ADDRESSES = 2**_ADDRESS_BITS - 1


# What is kept of a stretch of one segment, by its address; `before` and `after` are the addresses of its
# neighbours, -1 at the ends.
_SIZE, _FREE, _BEFORE, _AFTER, _SMALL = range(5)


class DeviceIsFull(Exception):
    """A request cannot be served, not even after all unused segments went back."""


class CachingAllocator:
    """Hands out addresses and keeps count. `release` takes an address that `allocate` returned."""

    __slots__ = (
        "_blocks",
        "_capacity",
        "_next",
        "_pools",
        "live_bytes",
        "peak_live_bytes",
        "reserved_bytes",
    )

    def __init__(self, capacity_bytes: float = inf) -> None:
        """`capacity_bytes` is what the driver has; beyond it a request raises DeviceIsFull."""
        self._capacity = capacity_bytes
        self._blocks: dict[int, list[int]] = {}
        # Free blocks of the large and the small pool, sorted by size and then by address: both in one number,
        # which compares faster than a pair.
        self._pools: tuple[list[int], list[int]] = ([], [])
        self._next = 0
        self.live_bytes = 0
        self.peak_live_bytes = 0
        self.reserved_bytes = 0

    def allocate(self, size_bytes: int) -> int:
        """Address of a block of at least `size_bytes` (0 counts as one granule)."""
        addresses = [-1]
        self.run((size_bytes,), (0,), addresses)
        return addresses[0]

    def release(self, address: int) -> None:
        """Returns a block to its pool. Raises KeyError for an address that is not in use."""
        self.run((0,), (-1,), [address])

    def run(self, sizes_bytes: Sequence[int], events: Iterable[int], addresses: list[int]) -> None:
        """Many calls at once: number `n` allocates request `n`, and `-1 - n` releases it.

        Programs make millions of calls, so that all of them are in one function.

        Args:
            sizes_bytes: of the requests.
            addresses: as many; where an event puts the address that it was given, and takes it from.
        """
        blocks, pools = self._blocks, self._pools
        live, peak = self.live_bytes, self.peak_live_bytes
        for event in events:
            if event >= 0:
                wanted = -(-sizes_bytes[event] // GRANULE_BYTES) * GRANULE_BYTES or GRANULE_BYTES
                small = wanted <= SMALL_REQUEST_BYTES
                pool = pools[small]
                place = bisect_left(pool, wanted << _ADDRESS_BITS)
                if place < len(pool):
                    key = pool.pop(place)
                    size, address = key >> _ADDRESS_BITS, key & _ADDRESSES
                    block = blocks[address]
                else:
                    address = self._reserve(wanted, small)
                    block = blocks[address]
                    size = block[_SIZE]
                left = size - wanted
                if left >= GRANULE_BYTES if small else left > SMALL_REQUEST_BYTES:
                    rest, after = address + wanted, block[_AFTER]
                    blocks[rest] = [left, True, address, after, small]
                    if after >= 0:
                        blocks[after][_BEFORE] = rest
                    block[_AFTER], block[_SIZE] = rest, wanted
                    insort(pool, left << _ADDRESS_BITS | rest)
                    size = wanted
                block[_FREE] = False
                addresses[event] = address
                live += size
                if live > peak:
                    peak = live
                continue
            address = addresses[-1 - event]
            block = blocks[address]
            size, free, before, after, kind = block
            if free:
                raise KeyError(address)
            live -= size
            pool = pools[kind]
            if after >= 0 and (behind := blocks[after])[_FREE]:
                del blocks[after], pool[bisect_left(pool, behind[_SIZE] << _ADDRESS_BITS | after)]
                size += behind[_SIZE]
                after = behind[_AFTER]
                if after >= 0:
                    blocks[after][_BEFORE] = address
            if before >= 0 and (front := blocks[before])[_FREE]:
                del blocks[address], pool[bisect_left(pool, front[_SIZE] << _ADDRESS_BITS | before)]
                size += front[_SIZE]
                address, block = before, front
                if after >= 0:
                    blocks[after][_BEFORE] = address
            block[_SIZE], block[_FREE], block[_AFTER] = size, True, after
            insort(pool, size << _ADDRESS_BITS | address)
        self.live_bytes, self.peak_live_bytes = live, peak

    def _reserve(self, wanted: int, small: bool) -> int:
        if small:
            size = SMALL_SEGMENT_BYTES
        elif wanted < MEDIUM_REQUEST_BYTES:
            size = MEDIUM_SEGMENT_BYTES
        else:
            size = -(-wanted // SEGMENT_GRANULE_BYTES) * SEGMENT_GRANULE_BYTES
        if self.reserved_bytes + size > self._capacity:
            self._give_back()
            if self.reserved_bytes + size > self._capacity:
                raise DeviceIsFull
        address = self._next
        self._next += size
        self.reserved_bytes += size
        self._blocks[address] = [size, True, -1, -1, small]
        return address

    def _give_back(self) -> None:
        """Returns every segment that is one free block."""
        for pool in self._pools:
            kept = []
            for key in pool:
                address = key & _ADDRESSES
                size, _, before, after, _ = self._blocks[address]
                if before < 0 and after < 0:
                    del self._blocks[address]
                    self.reserved_bytes -= size
                else:
                    kept.append(key)
            pool[:] = kept
