import pytest

from predictor.errors import InvalidRequest
from predictor.search.time_to_target import (
    EpochCurve,
    EpochTable,
    crossover_devices,
    hybrid_gain,
    hybrid_wins,
    splits_by_target,
)


@pytest.mark.parametrize(
    ("speed_up", "gain", "growth"),
    # Pal et al. 2019: two-way speed-ups, and gains over replicas alone: what these say of the epochs.
    [(1.32, 0.265, 1.917), (1.15, 0.08, 1.878), (1.22, 0.22, 2.0)],
)
def test_published_gains_imply_how_epochs_grow(speed_up: float, gain: float, growth: float) -> None:
    assert hybrid_gain(speed_up, 2, 1.0, growth) == pytest.approx(gain, abs=5e-4)
    assert hybrid_wins(speed_up, 2, 1.0, growth)
    assert not hybrid_wins(speed_up, 2, 1.0, 1.0)


def test_the_inequality_is_that_of_the_times() -> None:
    # Perfect scaling of replicas, 1.3 times as fast when split in two; epochs grow with the batch.
    iteration = {(n, m): 1.0 / (1.3 if m == 2 else 1.0) for n in (1, 2, 4, 8, 16) for m in (1, 2)}
    curve = EpochCurve(10.0, 256.0)
    splits = splits_by_target(iteration, 2**20, 64, curve)
    times = {(split.replicas, split.ways): split.time_s for split in splits}
    for n in (1, 2, 4, 8):
        growth = curve(2 * n * 64) / curve(n * 64)
        assert (times[n, 2] < times[2 * n, 1]) == hybrid_wins(1.3, 2, 1.0, growth)
        gain = hybrid_gain(1.3, 2, 1.0, growth)
        assert times[2 * n, 1] / times[n, 2] - 1 == pytest.approx(gain, rel=1e-9)
    assert crossover_devices(splits) == 16


def test_splitting_never_wins_while_larger_batches_cost_no_epochs() -> None:
    iteration = {(n, m): 1.0 / (1.9 if m == 2 else 1.0) for n in (1, 2, 4) for m in (1, 2)}
    assert crossover_devices(splits_by_target(iteration, 4096, 8, EpochTable(((8, 5.0),)))) is None


def test_tables_of_epochs() -> None:
    table = EpochTable(((1024, 20.0), (256, 10.0)))
    assert table(64) == table(256) == 10.0
    assert table(512) == pytest.approx(200**0.5)
    assert table(4096) == pytest.approx(40.0)
    with pytest.raises(InvalidRequest, match="at least one"):
        EpochTable(())
    with pytest.raises(InvalidRequest, match="above 0"):
        EpochCurve(0, 1)
