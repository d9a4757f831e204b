"""The memo: what it keeps, and that its total weight is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from predictor.cache import Memo


def test_a_miss_is_computed_once() -> None:
    calls: list[int] = []
    memo: Memo[str, int] = Memo(2)
    for _ in range(3):
        assert memo.get_or("a", lambda: calls.append(1) or 7) == 7
    assert calls == [1]


def test_the_least_recently_used_leaves_first() -> None:
    memo: Memo[str, int] = Memo(2)
    memo.put("a", 1)
    memo.put("b", 2)
    memo.get("a")
    memo.put("c", 3)
    assert "b" not in memo
    assert (memo.get("a"), memo.get("c")) == (1, 3)


def test_the_newest_stays_however_heavy() -> None:
    memo: Memo[str, str] = Memo(3, len)
    memo.put("a", "xx")
    memo.put("b", "xxxxxxxx")
    assert "a" not in memo
    assert memo.get("b") == "xxxxxxxx"


@given(st.lists(st.tuples(st.integers(0, 9), st.text(min_size=1, max_size=9))))
def test_the_total_weight_is_bounded(puts: list[tuple[int, str]]) -> None:
    memo: Memo[int, str] = Memo(12, len)
    for key, item in puts:
        memo.put(key, item)
        assert memo.get(key) == item
        held = [found for k in range(10) if (found := memo.get(k)) is not None]
        assert sum(map(len, held)) <= 12
