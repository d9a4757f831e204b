"""The collector is off inside, on again after, whoever else is inside or raises."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from predictor.features.collector import HUGE_NODES, without_collection


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_only_huge_graphs_pause_it() -> None:
    with without_collection(HUGE_NODES - 1):
        assert gc.isenabled()
    with without_collection(HUGE_NODES):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_last_to_leave_turns_it_on() -> None:
    first, second = without_collection(HUGE_NODES), without_collection(HUGE_NODES)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_errors_turn_it_on_and_those_who_had_it_off_keep_it_off() -> None:
    with pytest.raises(KeyError), without_collection(HUGE_NODES):
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    with without_collection(HUGE_NODES):
        pass
    assert not gc.isenabled()
