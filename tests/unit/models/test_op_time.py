"""The op-time model on synthetic measurements, where the truth is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from predictor.errors import InvalidBundle, InvalidData
from predictor.features.dtype import Compute
from predictor.features.ops.collectives import transfer_work
from predictor.features.programs.work import Collective, Family, OpWork, Phase
from predictor.features.programs.work_json import work_to_json
from predictor.features.tables.rows import FEATURE_NAMES
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import DeviceSpec
from predictor.models.bundle import Bundle, TrainedModel, write_bundle
from predictor.models.corpus.build import write_whole
from predictor.models.corpus.schema import canonical, conform
from predictor.models.ops.floor import KERNEL_START_S, floors
from predictor.models.ops.op_rows import OpTable, dispatch_s, lead_fraction, load_tables, reconciled
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.ops.op_training import (
    SETTINGS,
    FitSettings,
    fit,
    held_out_devices,
    residuals,
    train_op_time,
)
from predictor.models.ops.roofline import roofline_times
from tests.unit.models.op_cases import DEVICE, device, pointwise, product, softmax

DISPATCH_S, LEAD = 30e-6, 0.5
DEVICES: Mapping[str, DeviceSpec] = {
    "one": DEVICE,
    "two": device(id="two", memory_bytes_per_s=300e9, core_count=40, tdp_w=150.0, clock_hz=0.69e9),
}
# What the invented devices take, in units of the floor.
FACTOR = {"one": 1.2, "two": 1.5}


def _works() -> list[OpWork]:
    rng = np.random.default_rng(0)
    sizes = 2 ** rng.uniform(4, 12, size=(400, 3))
    products = [product(int(m), int(n), int(k)) for m, n, k in sizes]
    return [*products, *(pointwise(int(2**x)) for x in rng.uniform(8, 27, 400)),
            *(softmax(int(2**x), 512) for x in rng.uniform(4, 16, 200))]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import polars as pl

    folder = tmp_path_factory.mktemp("corpus")
    records = []
    works = _works()
    for name, spec in DEVICES.items():
        floor = floors(works, spec)
        for work, total in zip(works, floor.total_s, strict=True):
            kernel = FACTOR[name] * float(total)
            records.append(
                {
                    "subject": work.kind,
                    "subject_kind": "op",
                    "device": name,
                    "configuration": canonical({"work": work_to_json(work), "set": "random"}),
                    "quantity": "latency",
                    "value": max(DISPATCH_S, LEAD * DISPATCH_S + kernel - KERNEL_START_S),
                    "unit": "s",
                    "scope": "kernel_and_dispatch",
                    "source": "made",
                    "device_group": name,
                    "model_group": work.family.value,
                }
            )
    frame = conform(pl.DataFrame(records), "made")
    write_whole(folder / "made.parquet", frame.write_parquet)
    return folder


@pytest.fixture(scope="module")
def tables(corpus: Path) -> Mapping[Family, OpTable]:
    return load_tables(corpus, "made", DEVICES)


@pytest.fixture(scope="module")
def trained(tables: Mapping[Family, OpTable]) -> TrainedModel:
    return train_op_time(tables, DEVICES, seed=0)[0]


@pytest.fixture(scope="module")
def model(trained: TrainedModel) -> OpTimeModel:
    return OpTimeModel.from_trained(trained)


def test_the_lead_of_a_call_is_recovered() -> None:
    moved = np.geomspace(1e4, 1e9, 300)
    latencies = np.maximum(DISPATCH_S, LEAD * DISPATCH_S + moved / 700e9)
    assert dispatch_s(latencies) == pytest.approx(DISPATCH_S)
    assert lead_fraction(moved, latencies) == pytest.approx(LEAD, rel=1e-6)


def test_targets_are_the_invented_factors(tables: Mapping[Family, OpTable]) -> None:
    assert set(tables) == {Family.MATMUL, Family.ELEMENTWISE, Family.SOFTMAX}
    for table in tables.values():
        for name, factor in FACTOR.items():
            own = (table.device == name) & (table.floor_s > DISPATCH_S)
            np.testing.assert_allclose(table.target[own], np.log(factor), atol=0.03)
            # What dispatch hides is taken to run at its floor.
            hidden = (table.device == name) & (table.floor_s < 0.2 * DISPATCH_S)
            assert hidden.any()
            np.testing.assert_allclose(table.target[hidden], 0.0, atol=1e-9)


def test_absent_rows_are_named(corpus: Path) -> None:
    with pytest.raises(InvalidData, match="no op rows on three"):
        load_tables(corpus, "made", {**DEVICES, "three": DEVICE})
    with pytest.raises(InvalidData, match="perfcast corpus build --source other"):
        load_tables(corpus, "other", DEVICES)


@pytest.mark.parametrize("name", ["one", "two"])
def test_it_learns_the_factor_of_each_device(name: str, model: OpTimeModel) -> None:
    works = [product(1500, 1500, 1500), pointwise(3 * 10**7), softmax(30000, 512)]
    costs = model.costs(works, DEVICES[name])
    np.testing.assert_allclose(costs.time_s / costs.floor_s, FACTOR[name], rtol=0.1)
    assert costs.source == ("learned",) * 3
    assert not costs.out_of_range.any()


def test_renaming_the_device_changes_no_bit(model: OpTimeModel) -> None:
    works = _works()[::37]
    renamed = replace(DEVICE, id="z", name="Z", vendor="q", aliases=("a",), notes="x", year=1999)
    first, second = model.costs(works, DEVICE), model.costs(works, renamed)
    np.testing.assert_array_equal(first.time_s, second.time_s)
    np.testing.assert_array_equal(first.log_spread, second.log_spread)


def test_costs_do_not_depend_on_company(model: OpTimeModel) -> None:
    works = _works()[::53]
    together = model.costs(works, DEVICE).time_s
    alone = [model.costs([work], DEVICE).time_s[0] for work in works]
    np.testing.assert_array_equal(together, alone)


def test_unseen_devices_types_and_sizes_widen_the_interval(model: OpTimeModel) -> None:
    work = product(1024, 1024, 1024)
    known = model.costs([work], DEVICE)
    for works, spec, unmeasured in (
        ([work], device(memory_bytes_per_s=3e12), True),
        ([product(1024, 1024, 1024, compute=Compute.FP16)], DEVICE, True),
        ([product(2**22, 1024, 1024)], DEVICE, False),
    ):
        other = model.costs(works, spec)
        assert other.out_of_range[0]
        assert other.unmeasured[0] == unmeasured
        assert other.log_spread[0] >= known.log_spread[0]
    assert not known.out_of_range[0]


def test_families_without_measurements_move_their_bytes_at_the_measured_rate(model: OpTimeModel) -> None:
    count = 3 * 10**7
    learned = model.costs([pointwise(count)], DEVICE)
    for family in (Family.COPY, Family.POOLING, Family.OPTIMIZER, Family.GATHER, Family.REDUCTION):
        analytic = model.costs([pointwise(count, family, "any")], DEVICE)
        assert analytic.source == ("analytic",)
        assert analytic.time_s[0] == pytest.approx(learned.time_s[0], rel=1e-6)
    assert model.costs([pointwise(count, Family.UNKNOWN, "any")], DEVICE).source == ("fallback",)


def test_backward_softmax_is_analytic_and_views_are_free(model: OpTimeModel) -> None:
    costs = model.costs([softmax(30000, 512).in_phase(Phase.BACKWARD), pointwise(10**7, launches=0)], DEVICE)
    assert costs.source == ("analytic", "analytic")
    assert costs.time_s[0] > 0
    assert costs.time_s[1] == 0.0


def test_exchanges_between_ranks_are_not_the_device_s_time(model: OpTimeModel) -> None:
    work = transfer_work(Collective.ALL_REDUCE, group="tp", ranks=8, size_bytes=1 << 30)
    costs = model.costs([work, pointwise(1 << 20)], DEVICE)
    assert costs.time_s[0] == costs.floor_s[0] == 0.0
    alone = model.costs([pointwise(1 << 20)], DEVICE)
    assert costs.time_s[1] == alone.time_s[0] > 0
    assert roofline_times(floors([work], DEVICE), DEVICE)[0][0] == 0.0


def test_no_works(model: OpTimeModel) -> None:
    assert model.costs([], DEVICE).time_s.shape == (0,)


def test_training_is_deterministic(tables: Mapping[Family, OpTable]) -> None:
    table = tables[Family.MATMUL]
    settings = SETTINGS[Family.MATMUL]
    first, second = (bytes(fit(table, settings, 5).save_raw("ubj")) for _ in range(2))
    assert first == second
    assert first != bytes(fit(table, settings, 6).save_raw("ubj"))


def test_a_device_left_out_leaves(tables: Mapping[Family, OpTable]) -> None:
    table, settings = tables[Family.ELEMENTWISE], FitSettings(rounds=50, depth=4)
    found = held_out_devices(table, settings, 0)
    assert len(found.value) == len(table)
    # It can only guess the other device's factor.
    own = found.value[(found.device == "two") & (table.floor_s > 3 * DISPATCH_S)]
    np.testing.assert_allclose(own, np.log(1.2 / 1.5), atol=0.05)
    seen = residuals(fit(table, settings, 0), table)
    assert np.abs(seen.value).mean() < np.abs(found.value).mean()


def test_the_bundle_gives_the_same_answers(trained: TrainedModel, model: OpTimeModel, tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"op_time": trained}, {})
    loaded = OpTimeModel.from_bundle(Bundle.load(tmp_path / "b"))
    works = _works()[::41]
    np.testing.assert_array_equal(loaded.costs(works, DEVICE).time_s, model.costs(works, DEVICE).time_s)


def test_another_feature_schema_is_refused(
    trained: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path / "b", {"op_time": trained}, {})
    monkeypatch.setattr(
        "predictor.features.tables.rows.FEATURE_NAMES", {**FEATURE_NAMES, Family.COPY: ("x",)}
    )
    with pytest.raises(InvalidBundle, match="feature schema"):
        OpTimeModel.from_bundle(Bundle.load(tmp_path / "b"))


def test_sets_that_contradict_each_other_meet_half_way() -> None:
    subset = np.array(["cool"] * 3 + ["hot"] * 3)
    target = np.array([0.0, 0.1, -0.1, 1.2, 1.3, 9.0])
    long = np.array([True, True, True, True, True, False])
    moved = reconciled(target, subset, long)
    np.testing.assert_allclose(moved[:3], target[:3] + 0.625)
    np.testing.assert_allclose(moved[3:], target[3:] - 0.625)
    np.testing.assert_array_equal(reconciled(target / 2, subset, long), target / 2)


@pytest.mark.parametrize("name", ["t4-pcie-16gb", "a100-pcie-40gb", "p100-pcie-16gb", "gtx-1080-ti-11gb"])
def test_a_vector_is_multiplied_no_faster_than_the_matrix_is_read(name: str) -> None:
    """What was learned of tiles once made a T4 read 421 GB/s, of 320."""
    shipped = OpTimeModel.from_bundle(Bundle.load())
    works = [product(1, 4096, 4096), product(4096, 1, 4096)]
    spec = find_device(name)
    assert (shipped.costs(works, spec).time_s >= 4 * 4096**2 / spec.memory_bytes_per_s).all()
