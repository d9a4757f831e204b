"""Learning ops from sums: shares, the prior, the booster, and the step model that answers from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.features.architectures import architecture
from predictor.features.dtype import Compute
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Contraction, Convolution, OpWork, Phase
from predictor.features.programs.work_table import work_table
from predictor.features.reading.reader import read_graph
from predictor.features.tables.table_facts import table_products
from predictor.features.tables.tiles import products
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle, TrainedModel
from predictor.models.corpus.whole_model import WholeModelRow
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.steps.boosting import BoostSettings, Fitted, boosted, fit_aggregate
from predictor.models.steps.features import (
    CLASSES,
    DEVICE_COLUMNS,
    FEATURES,
    JobContext,
    aggregate_features,
    classes,
    device_facts,
    parts,
    schema_hash,
)
from predictor.models.steps.harness import harness_keys
from predictor.models.steps.host_prior import HostPrior
from predictor.models.steps.prior import Prior
from predictor.models.steps.rows import AggregateTable, joined_tables
from predictor.models.steps.step_time import DEVICE, UNSEEN, StepTimeModel
from predictor.models.steps.total import Total, iteration_s
from predictor.models.steps.training import group_folds, timed_in
from predictor.types import Layout, Mode, Optimizer, Precision, Runtime

GPU, CPU = "v100-pcie-32gb", "core-i9-10940x"
JOB = JobContext(Mode.INFER, Precision.FP32, Runtime.EAGER)
SETTINGS = BoostSettings(rounds=12, depth=4, min_child_weight=0.5)


def works(batch: int = 8) -> list[OpWork]:
    program = build_program(
        read_graph(architecture("resnet50", batch=batch), batch=batch),
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.MOMENTUM,
        runtime=Runtime.EAGER,
    )
    return [op.work for op in program.ops]


def test_host_launches_leave_out_sums_of_gradients() -> None:
    """Sixteen shortcuts of a ResNet-50 meet in backward; forward's additions are Python's."""
    listed = works()
    sums = [work for work in listed if work.kind == "add" and work.phase is Phase.BACKWARD]
    added = [work for work in listed if work.kind == "add" and work.phase is Phase.FORWARD]
    assert (len(sums), len(added)) == (16, 16)
    assert [work.host_launches for work in sums] == [0] * 16
    assert all(work.host_launches == work.launch_count for work in listed if work not in sums)


def test_an_optimizer_is_seen_alike_whatever_runs_around_it() -> None:
    step = [work for work in dict.fromkeys(works()) if work.phase is Phase.OPTIMIZER]
    facts, ones = device_facts(find_device(GPU)), np.ones(len(step))
    narrow = [replace(work, compute=Compute.BF16, element_bits=16) for work in step]
    job = replace(JOB, precision=Precision.BF16, runtime=Runtime.COMPILED, layout=Layout.NHWC)
    seen = [
        aggregate_features(work_table(kind), ones, ones, facts, context)
        for kind, context in ((step, JOB), (narrow, job))
    ]
    same = [i for i, name in enumerate(FEATURES) if name not in ("log_sustained", "log_ridge")]
    assert np.array_equal(seen[0][:, same], seen[1][:, same])


def test_products_of_a_table_are_those_of_its_works() -> None:
    chosen = [work for work in works() if isinstance(work.shape, Contraction | Convolution)]
    expected, found = products(chosen), table_products(work_table(chosen))
    for name in ("batch", "m", "n", "k"):
        assert np.array_equal(getattr(expected, name), getattr(found, name))


def test_features_are_finite_and_classes_named() -> None:
    listed = list(dict.fromkeys(works()))
    table, facts = work_table(listed), device_facts(find_device(GPU))
    ones = np.ones(len(listed))
    rows = aggregate_features(table, ones, ones, facts, JOB)
    assert rows.shape == (len(listed), len(FEATURES))
    assert np.isfinite(rows).all()
    names = {CLASSES[code] for code in classes(table)}
    assert {"conv", "pointwise_conv", "batch_norm", "conv_weight_gradient", "optimizer"} <= names
    assert "unknown" not in names


def test_shares_are_the_derivative_of_the_log_total() -> None:
    total = Total(np.array([0, 0, 1]), np.array([1e-4, 0.0]), np.array([2e-3, 0.0]))
    op_s = np.array([1e-3, 2e-3, 5e-3])
    shares, before = total.shares(op_s)
    for i in range(3):
        moved = op_s.copy()
        moved[i] *= np.exp(1e-6)
        slope = (total.log_total(moved) - before).sum() / 1e-6
        assert slope == pytest.approx(shares[i], rel=1e-4)
    assert shares[2] == pytest.approx(1.0)


def test_an_iteration_takes_as_long_as_the_slower_of_device_and_host() -> None:
    found = iteration_s(np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.2, 5.0]))
    assert found == pytest.approx([1.0, 1.0, 5.0], rel=1e-3)


def made_table(device: str, factor: dict[str, float], count: int = 60) -> AggregateTable:
    """Iterations of random ops whose classes are slower than the floor by `factor`."""
    random = np.random.default_rng(3)
    spec = find_device(device)
    listed = [work for work in dict.fromkeys(works()) if work.launch_count]
    table, facts = work_table(listed), device_facts(spec)
    costs = OpTimeModel.from_bundle(Bundle.load()).costs(listed, spec)
    code = classes(table)
    slow = np.array([factor.get(CLASSES[c], 1.2) for c in code])
    tables = []
    for _ in range(count):
        chosen = np.sort(random.choice(len(listed), 25, replace=False))
        floor_s = costs.floor_s[chosen]
        part = table.take(chosen)
        log_learned = np.log(costs.time_s[chosen] / floor_s)
        log_share = np.log(floor_s / floor_s.sum())
        features = aggregate_features(part, log_share, log_learned, facts, JOB, code[chosen])
        row = WholeModelRow("g", "m", "f", device, device, 8, 1.0, Mode.INFER, Precision.FP32)
        tables.append(
            AggregateTable(
                rows=(row,),
                source=np.array(["profiles"]),
                log_time=np.log([(slow[chosen] * floor_s).sum()]),
                launches=np.zeros(1),
                rest_s=np.zeros(1),
                row=np.zeros(25, dtype=np.intp),
                floor_s=floor_s,
                parts=parts(part, facts),
                log_learned=log_learned,
                timed=np.zeros(25, dtype=np.bool_),
                class_code=code[chosen],
                features=features,
            )
        )
    return joined_tables(tables)


@pytest.mark.parametrize("device", [GPU, CPU])
def test_sums_teach_the_ops(device: str) -> None:
    table = made_table(device, {"conv": 2.5, "batch_norm": 1.0})
    half = np.arange(len(table)) % 2 == 0
    fitted = fit_aggregate(table.take(half), find_device, SETTINGS, seed=1)
    error = np.abs(fitted.log_times(table.take(~half), find_device) - table.log_time[~half])
    assert error.mean() < 0.1
    kind = HostPrior if device == CPU else Prior
    restored = Fitted(kind.from_json(fitted.prior.to_json()), fitted.booster)
    again = restored.log_times(table.take(~half), find_device)
    assert again == pytest.approx(fitted.log_times(table.take(~half), find_device), abs=1e-3)


def test_what_a_harness_adds_is_no_part_of_the_answer() -> None:
    plain = made_table(GPU, {"conv": 2.5})
    slower = replace(plain, source=np.full(len(plain), "other"), log_time=plain.log_time + 0.5)
    both = joined_tables([plain, slower])
    fitted = fit_aggregate(both, find_device, SETTINGS, seed=1)
    answered = fitted.log_times(slower, find_device) - plain.log_time
    as_timed = fitted.log_times(slower, find_device, harness=True) - slower.log_time
    assert np.abs(answered).mean() < 0.1
    assert np.abs(as_timed).mean() < 0.1


def test_a_slow_host_is_told_from_slow_kernels() -> None:
    table = made_table(GPU, {})
    launches = np.full(len(table), 400.0)
    launched = np.log(np.maximum(np.exp(table.log_time), 400 * 40e-6))
    table = replace(table, source=np.full(len(table), "other"), launches=launches, log_time=launched)
    fitted = fit_aggregate(joined_tables([made_table(GPU, {}), table]), find_device, SETTINGS, seed=1)
    keys = harness_keys(table.rows, table.source)
    per_launch = 6e-6 * np.exp(fitted.prior.harness.host_log(keys))
    assert per_launch.mean() == pytest.approx(40e-6, rel=0.25)


def test_rows_without_weight_teach_nothing() -> None:
    table = made_table(GPU, {"conv": 2.5})
    held = np.arange(len(table)) < 20
    wrong = replace(table, log_time=np.where(held, table.log_time + 3.0, table.log_time))
    fits = [
        fit_aggregate(rows, find_device, SETTINGS, seed=1, weight=weight)
        for rows, weight in ((table, np.where(held, 0.0, 1.0)), (wrong, np.where(held, 0.0, 1.0)))
    ]
    first, second = (fit.log_times(table, find_device) for fit in fits)
    assert first == pytest.approx(second, abs=1e-6)


def test_trees_do_not_see_hidden_columns() -> None:
    table = made_table(GPU, {"conv": 2.5})
    fitted = fit_aggregate(table, find_device, replace(SETTINGS, hidden=DEVICE_COLUMNS), seed=1)
    features = table.features.copy()
    features[:, [FEATURES.index(name) for name in DEVICE_COLUMNS]] += 1.0
    moved = replace(table, features=features)
    assert fitted.log_times(moved, find_device) == pytest.approx(fitted.log_times(table, find_device))


def test_the_step_model_answers_what_its_training_table_holds() -> None:
    table = made_table(GPU, {"conv": 2.5})
    fitted = fit_aggregate(table, find_device, SETTINGS, seed=1)
    slower = replace(table, log_time=table.log_time + 0.5)
    unseen = boosted(fitted.prior, slower, find_device, SETTINGS, 1, np.ones(len(table)))
    trees = {DEVICE: fitted, UNSEEN: unseen}
    step = StepTimeModel.from_trained(
        TrainedModel(
            {name: bytes(fit.booster.save_raw("ubj")) for name, fit in trees.items()},
            {
                "feature_schema": schema_hash(),
                "priors": {DEVICE: fitted.prior.to_json()},
                "spreads": {DEVICE: {"known": 0.1, "new": 0.3}},
                "timed": {DEVICE: timed_in(table.rows, find_device)},
                "hidden": {DEVICE: [], UNSEEN: []},
            },
        )
    )
    device = find_device(GPU)
    listed = [work for work in dict.fromkeys(works()) if work.launch_count]
    costs = OpTimeModel.from_bundle(Bundle.load()).costs(listed, device)
    count = np.ones(len(listed))
    found = step.costs(listed, count, costs, device, JOB)
    assert found.known_device
    assert found.log_spread == 0.1
    assert not step.costs(listed, count, costs, device, replace(JOB, precision=Precision.FP16)).known_device
    conv = np.array([CLASSES[c] == "conv" for c in classes(work_table(listed))])
    ratio = found.time_s / costs.floor_s
    assert np.median(ratio[conv]) > 1.4 * np.median(ratio[~conv])
    other = replace(device, id="other", memory_bytes_per_s=3 * device.memory_bytes_per_s)
    elsewhere = step.costs(listed, count, costs, other, JOB)
    assert elsewhere.log_spread == 0.3
    assert elsewhere.time_s[conv].sum() == pytest.approx(np.exp(0.5) * found.time_s[conv].sum(), rel=0.2)
    assert step.covers(device)
    assert not step.covers(find_device(CPU))


def test_products_timed_as_kernels_keep_their_times() -> None:
    table = made_table(GPU, {"conv": 2.5})
    random = np.random.default_rng(0)
    timed = (table.class_code == CLASSES.index("conv")) & (random.random(len(table.row)) < 0.5)
    table = replace(table, timed=timed)
    fitted = fit_aggregate(table, find_device, SETTINGS, seed=1)
    op_s = fitted.op_seconds(table, find_device)
    assert op_s[timed] == pytest.approx((table.floor_s * np.exp(table.log_learned))[timed])
    assert np.abs(fitted.log_times(table, find_device) - table.log_time).mean() < 0.1


def test_groups_stay_whole_and_folds_even() -> None:
    groups = np.array(list("aaaabbbccddeefg"))
    fold = group_folds(groups, 3, seed=0)
    assert all(len(set(fold[groups == name])) == 1 for name in "abcdefg")
    assert np.bincount(fold).max() - np.bincount(fold).min() <= 2
