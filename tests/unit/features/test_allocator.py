import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.features.programs.allocator import CachingAllocator, DeviceIsFull
from predictor.units import KIB, MIB


@pytest.mark.parametrize(
    ("size_bytes", "reserved_bytes"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_segment_sizes(size_bytes: int, reserved_bytes: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size_bytes)
    assert allocator.reserved_bytes == reserved_bytes


def test_freed_memory_is_used_again() -> None:
    allocator = CachingAllocator()
    for _ in range(5):
        address = allocator.allocate(30 * MIB)
        allocator.release(address)
    assert allocator.reserved_bytes == 30 * MIB
    assert allocator.live_bytes == 0
    assert allocator.peak_live_bytes == 30 * MIB


def test_two_freed_neighbours_merge() -> None:
    allocator = CachingAllocator()
    first, second = allocator.allocate(6 * MIB), allocator.allocate(6 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.release(first)
    allocator.release(second)
    allocator.allocate(20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_separate_segments_do_not_merge() -> None:
    allocator = CachingAllocator()
    addresses = [allocator.allocate(16 * MIB) for _ in range(2)]
    for address in addresses:
        allocator.release(address)
    allocator.allocate(32 * MIB)
    assert allocator.reserved_bytes == 64 * MIB


def test_best_fit_takes_the_smallest_block() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(12 * MIB)
    allocator.release(large)
    allocator.release(small)
    assert allocator.allocate(12 * MIB) == small


def test_a_full_device_gets_unused_segments_back_before_a_request_fails() -> None:
    allocator = CachingAllocator(50 * MIB)
    allocator.release(allocator.allocate(30 * MIB))
    # 30 MiB lie unused and are too small: with them there would be no room.
    address = allocator.allocate(40 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    with pytest.raises(DeviceIsFull):
        allocator.allocate(20 * MIB)
    allocator.release(address)
    allocator.allocate(50 * MIB)
    assert allocator.reserved_bytes == 50 * MIB


def test_a_segment_with_a_block_in_use_stays() -> None:
    allocator = CachingAllocator(64 * MIB)
    whole = allocator.allocate(40 * MIB)
    allocator.release(whole)
    allocator.allocate(30 * MIB)
    # 10 MiB of the segment are free, and no use for 25 MiB.
    with pytest.raises(DeviceIsFull):
        allocator.allocate(25 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_a_block_is_released_once() -> None:
    allocator = CachingAllocator()
    address = allocator.allocate(KIB)
    allocator.release(address)
    with pytest.raises(KeyError):
        allocator.release(address)


@given(st.lists(st.tuples(st.integers(0, 60 * MIB), st.integers(0, 7)), max_size=60))
def test_reserved_covers_live_and_blocks_never_overlap(steps: list[tuple[int, int]]) -> None:
    allocator = CachingAllocator()
    held: dict[int, tuple[int, int]] = {}
    for size_bytes, slot in steps:
        if slot in held:
            allocator.release(held.pop(slot)[0])
        else:
            address = allocator.allocate(size_bytes)
            assert all(address >= a + n or address + size_bytes <= a for a, n in held.values())
            held[slot] = (address, size_bytes)
        assert sum(n for _, n in held.values()) <= allocator.live_bytes <= allocator.reserved_bytes
    for address, _ in held.values():
        allocator.release(address)
    assert allocator.live_bytes == 0
