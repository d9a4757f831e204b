from __future__ import annotations

import pytest

from predictor.features.programs.work import AttentionShape


def _counted(queries: int, keys: int, causal: bool, window: int) -> int:
    scores = 0
    for query in range(queries):
        seen = keys - queries + query + 1 if causal else keys
        scores += max(0, min(seen, window) if window else seen)
    return scores


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 3, 7])
@pytest.mark.parametrize("keys", [7, 9, 20])
@pytest.mark.parametrize("window", [0, 1, 4, 8, 30])
def test_scores_are_those_that_mask_and_window_leave(
    queries: int, keys: int, causal: bool, window: int
) -> None:
    shape = AttentionShape(1, 1, 1, queries, keys, 8, 8, causal, window)
    assert shape.pairs == _counted(queries, keys, causal, window)


def test_a_window_bounds_the_keys_that_are_read() -> None:
    assert AttentionShape(1, 1, 1, 1, 4096, 8, 8, True, 128).keys_seen == 128
    assert AttentionShape(1, 1, 1, 16, 4096, 8, 8, True, 128).keys_seen == 143
    assert AttentionShape(1, 1, 1, 16, 100, 8, 8, True, 128).keys_seen == 100
    assert AttentionShape(1, 1, 1, 16, 4096, 8, 8, True).keys_seen == 4096
