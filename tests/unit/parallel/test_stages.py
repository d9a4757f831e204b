from itertools import combinations

import numpy as np
import pytest

from predictor.errors import InvalidPlan
from predictor.parallel.stages import balanced_chunks, balanced_stages


def sums(cost_s: np.ndarray, ends: object) -> list[float]:
    return [float(part.sum()) for part in np.split(cost_s, np.asarray(ends)[:-1])]


def test_equal_layers_are_dealt_evenly() -> None:
    assert balanced_stages(np.ones(12), np.zeros(12), 4).tolist() == [3, 6, 9, 12]


def test_head_and_embedding_do_not_unbalance() -> None:
    # 96 layers, a small embedding and a head of a third of a layer, as in a 175B GPT.
    cost = np.array([0.01, *[1.0] * 96, 0.35])
    ends = balanced_stages(cost, np.zeros(98), 24)
    assert max(sums(cost, ends)) == pytest.approx(4.35)
    assert np.diff(ends).tolist() == [4] * 22 + [5]


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_the_slowest_stage_is_as_fast_as_any_cut_allows(stages: int) -> None:
    rng = np.random.default_rng(stages)
    for _ in range(40):
        cost, cut = rng.uniform(0.1, 3.0, 9), rng.uniform(0, 0.1, 9)
        found = max(sums(cost, balanced_stages(cost, cut, stages)))
        every = [max(sums(cost, [*ends, 9])) for ends in combinations(range(1, 9), stages - 1)]
        assert found == pytest.approx(min(every), rel=1e-8)


def test_cuts_go_where_little_crosses() -> None:
    cut = np.array([5.0, 5.0, 0.1, 5.0, 5.0, 5.0])
    cost = np.array([1.0, 1.0, 1.0, 0.0, 1.0, 2.0])
    # Behind piece 2 and behind piece 3 are equally balanced.
    assert balanced_stages(cost, cut, 2).tolist() == [3, 6]


def test_more_stages_than_pieces() -> None:
    with pytest.raises(InvalidPlan, match="cut into 3 pieces"):
        balanced_stages(np.ones(3), np.zeros(3), 4)


def test_pieces_without_cost_still_fill_stages() -> None:
    assert balanced_stages(np.zeros(4), np.zeros(4), 4).tolist() == [1, 2, 3, 4]


def test_chunks_relieve_the_stage_of_a_heavy_head() -> None:
    # Twelve layers on 4 stages of 3 chunks, and a head as long as six layers.
    cost = np.array([*[1.0] * 24, 6.0])
    ends = balanced_chunks(cost, np.zeros(25), 4, 3)
    by_stage = np.array(sums(cost, ends)).reshape(3, 4).sum(axis=0)
    assert by_stage.max() == pytest.approx(8.0)
    assert len(ends) == 12


def test_chunks_of_equal_layers_stay_equal() -> None:
    assert balanced_chunks(np.ones(24), np.zeros(24), 4, 3).tolist() == list(range(2, 26, 2))
