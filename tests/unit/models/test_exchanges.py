"""Learned times of collectives: on measurements made up from a known efficiency."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import InvalidBundle, InvalidData
from predictor.hardware.catalog import find_cluster
from predictor.hardware.spec import ClusterSpec, ExchangeOrigin
from predictor.models.bundle import Bundle, TrainedModel, write_bundle
from predictor.models.corpus.exchanges import Exchange, frame_of
from predictor.models.plans.exchange_curves import MODEL_NAME, ExchangeModel
from predictor.models.plans.exchange_rows import ExchangeTable, exchange_table, floor_of
from predictor.models.plans.exchange_training import held_out, train_exchanges
from predictor.parallel.collectives import (
    GroupShape,
    collective_time_s,
    formula_time_s,
    group_shape,
)

SYSTEMS = {
    "x/a100": ("a100-sxm-80gb", 300e9, False),
    "y/a100": ("a100-sxm-80gb", 300e9, False),
    "x/h100": ("h100-sxm-80gb", 450e9, True),
    "y/h200": ("h200-sxm-141gb", 450e9, True),
}


def factor(row: Exchange) -> float:
    """What the made-up library does: small tensors cost twice the floor, large ones 1.2 times."""
    return 1.2 + 0.8 / (1 + row.size_bytes / 2**20)


def rows() -> list[tuple[Exchange, float]]:
    found = []
    for system, (device, rate, reduces) in SYSTEMS.items():
        for collective in ("all_reduce", "all_gather"):
            for ranks in (2, 4, 8):
                for power in range(10, 30):
                    row = Exchange(
                        system, device, collective, 2**power, "nccl", "loop", ranks, ranks, reduces,
                        ("nvlink", rate),
                    )  # fmt: skip
                    found.append((row, floor_of(row) * factor(row)))
    return found


@pytest.fixture(scope="module")
def table() -> ExchangeTable:
    return exchange_table([frame_of(rows(), "made-up")])


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return train_exchanges([frame_of(rows(), "made-up")], 3)[0]


@pytest.fixture(scope="module")
def model(trained: TrainedModel) -> ExchangeModel:
    return ExchangeModel.from_trained(trained)


def learned(model: ExchangeModel, name: str) -> ClusterSpec:
    return replace(find_cluster(name), exchanges=model)


def test_systems_and_sizes_left_out_are_found_again(table: ExchangeTable) -> None:
    assert len(table) == 4 * 2 * 3 * 20
    assert np.median(np.abs(held_out(table, table.system, 3).residual)) < 0.02
    by_size = held_out(table, table.octave, 3, known=True)
    assert np.median(np.abs(by_size.residual)) < 0.05


def test_answers_take_the_learned_time_where_it_was_measured(model: ExchangeModel) -> None:
    cluster = learned(model, "dgx-a100-80gb")
    place, size = group_shape(8, cluster), 2.0**26
    row = Exchange("", "a100-sxm-80gb", "all_reduce", 2**26, "nccl", "loop", 8, 8, False, ("nvlink", 300e9))
    expected = floor_of(row) * factor(row)
    assert collective_time_s("all_reduce", size, place, cluster) == pytest.approx(expected, rel=0.03)
    found = model.learned("all_reduce", place, cluster)
    assert found is not None
    assert set(found.systems) == {"x/a100", "y/a100"}
    assert model.origin("all_reduce", place, cluster) == ExchangeOrigin(found.systems, found.log_spread)


def test_sums_in_the_switch_are_priced_as_they_were_measured(model: ExchangeModel) -> None:
    cluster = learned(model, "dgx-h100-80gb")
    row = Exchange("", "h100-sxm-80gb", "all_reduce", 2**28, "nccl", "loop", 8, 8, True, ("nvlink", 450e9))
    ring = replace(row, in_switch=False)
    assert floor_of(row) < 0.7 * floor_of(ring)
    found = collective_time_s("all_reduce", float(row.size_bytes), group_shape(8, cluster), cluster)
    assert found == pytest.approx(floor_of(row) * factor(row), rel=0.03)


def test_own_kernels_need_measurements_of_such(model: ExchangeModel) -> None:
    cluster = find_cluster("dgx-a100-80gb")
    own = model.with_own_kernels()
    assert own.learned("all_reduce", group_shape(8, cluster), cluster) is None
    assert own.learned("all_gather", group_shape(8, cluster), cluster) is not None


@pytest.mark.parametrize(
    ("kind", "name", "ranks"),
    [
        ("broadcast", "dgx-a100-80gb", 8),  # never timed
        ("all_to_all", "dgx-a100-80gb", 8),  # nor this, here
        ("all_reduce", "dgx-a100-80gb", 16),  # across nodes
        ("all_reduce", "dgx-1-v100-16gb", 8),  # another generation of the link
        ("all_reduce", "pcie4-rtx-4090", 8),  # another link
        ("all_reduce", "gb200-nvl72", 72),  # more ranks than any
    ],
)
def test_what_resembles_nothing_measured_follows_the_formulas(
    model: ExchangeModel, kind: str, name: str, ranks: int
) -> None:
    cluster = learned(model, name)
    place = group_shape(ranks, cluster)
    assert model.origin(kind, place, cluster) is None
    size = np.array([1e8])
    assert collective_time_s(kind, size, place, cluster) == formula_time_s(kind, size, place, cluster)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["all_reduce", "all_gather"]),
    st.sampled_from(["dgx-a100-80gb", "dgx-h100-80gb"]),
    st.sampled_from([2, 3, 4, 8]),
    st.floats(1.0, 1e11),
    st.floats(1.0, 20.0),
    st.floats(1.0, 50.0),
)
def test_more_bandwidth_never_slows_and_more_bytes_never_speed_up(
    model: ExchangeModel, kind: str, name: str, ranks: int, size: float, more: float, faster: float
) -> None:
    cluster = learned(model, name)
    place = group_shape(ranks, cluster)
    link = cluster.intra_node
    quick = replace(cluster, intra_node=replace(link, bytes_per_s=link.bytes_per_s * faster))
    time_s = collective_time_s(kind, size, place, cluster)
    assert time_s > 0
    assert collective_time_s(kind, size, place, quick) <= time_s * (1 + 1e-12)
    assert collective_time_s(kind, size * more, place, cluster) >= time_s * (1 - 1e-12)


def test_uneven_groups_and_other_places_have_no_learned_time(model: ExchangeModel) -> None:
    cluster = learned(model, "dgx-a100-80gb:2")
    assert model.learned("all_reduce", GroupShape(8, 2, 4, 12), cluster) is None
    assert model.times_s("all_reduce", np.array([1.0]), "somewhere", cluster) is None
    unknown = replace(cluster, device_id="mine")
    assert model.learned("all_reduce", group_shape(8, unknown), unknown) is None


def test_a_bundle_keeps_the_curves(trained: TrainedModel, model: ExchangeModel, tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", {MODEL_NAME: trained}, {})
    stored = ExchangeModel.from_bundle(Bundle.load(tmp_path / "bundle"))
    assert stored is not None
    for name in ("dgx-a100-80gb", "dgx-h100-80gb"):
        cluster = find_cluster(name)
        place, sizes = group_shape(4, cluster), np.geomspace(1, 1e11, 40)
        assert stored.times_s("all_gather", sizes, place, cluster) == pytest.approx(
            model.times_s("all_gather", sizes, place, cluster)
        )
    params = {**trained.params, "ops": ["all_reduce"]}
    write_bundle(tmp_path / "other", {MODEL_NAME: replace(trained, params=params)}, {})
    with pytest.raises(InvalidBundle, match="perfcast train"):
        ExchangeModel.from_bundle(Bundle.load(tmp_path / "other"))


def test_no_rows_are_an_error() -> None:
    empty = frame_of(rows()[:1], "made-up").head(0)
    assert isinstance(empty, pl.DataFrame)
    with pytest.raises(InvalidData, match="collectives"):
        exchange_table([empty])
    assert asdict(rows()[0][0])["collective"] == "all_reduce"
