from __future__ import annotations

from dataclasses import replace
from math import isclose

import numpy as np
import polars as pl
import pytest

from predictor.errors import InvalidData
from predictor.features.programs.work import Convolution
from predictor.hardware.catalog import find_device
from predictor.models.bundle import TrainedModel
from predictor.models.memory.peak import (
    FEATURES,
    LINES,
    MemoryModel,
    memory_features,
    workspace_potential_bytes,
)
from predictor.models.memory.training import group_folds, log_errors, train_memory
from predictor.models.memory.training import memory_rows as table_rows
from predictor.types import Mode
from predictor.units import GIB, MIB
from tests.unit.models.memory_power_cases import CONTEXT_BYTES, memory_rows, program, trained_memory


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return trained_memory()


@pytest.fixture(scope="module")
def model(trained: TrainedModel) -> MemoryModel:
    return MemoryModel.from_trained(trained)


def test_features_are_shares_of_the_program() -> None:
    row = dict(zip(FEATURES, memory_features(program(32)), strict=True))
    assert 0 < row["live_share"] <= 1
    assert 0 < row["activation_share"] < 1
    assert row["depthwise_conv"] > 0
    assert row["few_channel_conv"] > 0
    assert row["spatial_flops"] + row["grouped_flops"] + row["pointwise_flops"] <= 1 + 1e-9
    traffic = [value for name, value in row.items() if name.endswith("_traffic")]
    assert isclose(sum(traffic), 1.0, rel_tol=1e-9)


def test_features_hardly_change_with_the_batch_but_the_bytes_do() -> None:
    small, large = program(64), program(256)
    ratio = large.memory.activation_bytes / small.memory.activation_bytes
    assert 3.5 < ratio < 4.5
    assert abs(memory_features(small)[2] - memory_features(large)[2]) < 0.3


def test_training_recovers_the_context_and_the_law(trained: TrainedModel, model: MemoryModel) -> None:
    assert abs(float(trained.params["context_bytes"]) - CONTEXT_BYTES) < 60 * MIB
    errors = np.abs(np.expm1(log_errors(model, memory_rows())))
    assert errors.mean() < 0.03


def test_training_is_deterministic(trained: TrainedModel) -> None:
    again = train_memory(memory_rows())
    assert again.boosters == trained.boosters
    assert again.params == trained.params


def test_spread_covers_held_out_families() -> None:
    rows = memory_rows(600)
    for held in list(group_folds(rows.group, 3))[:1]:
        fitted = train_memory(rows.take(~held))
        spread = fitted.params["log_spread"]["known_device"]  # type: ignore[index, call-overload]
        inside = np.abs(log_errors(MemoryModel.from_trained(fitted), rows.take(held))) <= spread
        assert 0.8 <= inside.mean() <= 0.99


def test_folds_hold_whole_groups_once() -> None:
    groups = np.array(["a", "a", "b", "c", "c", "c", "d"])
    masks = list(group_folds(groups, 3))
    assert np.sum(masks, axis=0).tolist() == [1] * 7
    for mask in masks:
        assert set(groups[mask]).isdisjoint(groups[~mask])


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("replicas", [1, 4])
def test_breakdown_sums_to_the_peak(model: MemoryModel, mode: Mode, replicas: int) -> None:
    estimate = model.predict(program(16, mode), find_device("a100-sxm-40gb"), replicas)
    lines = estimate.breakdown_bytes
    assert tuple(lines) == LINES
    assert isclose(sum(lines.values()), estimate.device_peak.value, rel_tol=1e-9)
    assert min(lines.values()) >= 0
    assert (lines["communication_buffers"] > 0) == (replicas > 1)
    for interval in (estimate.device_peak, estimate.allocator_peak):
        assert 0 < interval.low <= interval.value <= interval.high
    assert estimate.allocator_peak.value < estimate.device_peak.value


def test_tensors_stand_on_their_own_lines(model: MemoryModel) -> None:
    job = program(64)
    lines = model.predict(job, find_device("a100-sxm-40gb")).breakdown_bytes
    assert lines["parameters"] == job.memory.parameter_bytes + job.memory.buffer_bytes
    assert lines["optimizer_state"] == job.memory.optimizer_state_bytes
    assert lines["runtime_context"] == model.context_bytes
    assert lines["activations"] >= 0.9 * job.memory.activation_bytes


def test_predict_agrees_with_the_matrix_path(model: MemoryModel) -> None:
    job = program(16)
    row, reserved = memory_features(job), float(job.memory.reserved_bytes)
    alone = model.predict(job, find_device("a100-sxm-40gb")).device_peak.value
    potential = np.array([workspace_potential_bytes(job)])
    assert isclose(alone, model.device_peaks(row[None, :], np.array([reserved]), potential)[0], rel_tol=1e-12)


def test_the_tensors_are_a_lower_bound(model: MemoryModel) -> None:
    for batch in (8, 64, 256):
        job = program(batch)
        peak = model.predict(job, find_device("a100-sxm-40gb")).device_peak.value
        assert peak >= model.context_bytes + job.memory.live_peak_bytes


def test_no_bound_is_below_the_weights(model: MemoryModel) -> None:
    device = find_device("h100-sxm-80gb")
    job, more = program(1, Mode.INFER), 40 * GIB
    heavier = {
        name: getattr(job.memory, name) + more
        for name in ("parameter_bytes", "live_peak_bytes", "reserved_bytes", "workspace_reserved_bytes")
    }
    heavy = replace(job, memory=replace(job.memory, **heavier))
    weights = heavy.memory.parameter_bytes + heavy.memory.buffer_bytes
    lines = {"parameters": float(weights), "optimizer_state": 0.0, "activations": float(MIB)}
    for estimate in (model.predict(heavy, device), model.predict_stage(heavy, device, lines, 0)):
        assert estimate.allocator_peak.low >= weights
        assert estimate.device_peak.low >= weights + 400 * MIB
        assert estimate.device_peak.low < estimate.device_peak.value


def test_autotuner_peaks_are_no_training_rows() -> None:
    rows = memory_rows(4)
    table = pl.DataFrame(rows.features, schema=list(FEATURES)).with_columns(
        reserved_bytes=rows.reserved_bytes,
        potential_bytes=rows.potential_bytes,
        measured_bytes=rows.measured_bytes,
        model_group=rows.group.astype(str),
        device=pl.Series(rows.device.tolist()),
        autotuner_peak=pl.Series([False, True, False, False]),
    )
    assert len(table_rows(table)) == 3
    assert len(table_rows(table, autotuner_peaks=True)) == 4
    with pytest.raises(InvalidData, match="live_share"):
        table_rows(table.drop("live_share"))


def test_unmeasured_situations_are_flagged_and_wider(model: MemoryModel) -> None:
    device = find_device("a100-sxm-40gb")
    training = model.predict(program(16), device)
    inference = model.predict(program(16, Mode.INFER), device)
    elsewhere = model.predict(program(16), find_device("t4-pcie-16gb"))
    assert inference.out_of_range
    assert inference.device_peak.value < training.device_peak.value

    def width(estimate: object) -> float:
        peak = estimate.device_peak  # type: ignore[attr-defined]
        return float(peak.high / peak.low)

    assert width(inference) > width(training)
    assert width(elsewhere) > width(training)


def test_the_name_of_a_device_changes_nothing(model: MemoryModel) -> None:
    device = find_device("a100-sxm-40gb")
    renamed = replace(device, id="mine", name="My card", aliases=())
    assert model.predict(program(16), renamed) == model.predict(program(16), device)


def test_strange_programs_are_out_of_range(model: MemoryModel) -> None:
    job = program(8)
    ops = tuple(op for op in job.ops if not isinstance(op.work.shape, Convolution))
    assert model.predict(replace(job, ops=ops), find_device("a100-sxm-40gb")).out_of_range


def test_the_runtime_context_is_the_devices_own(model: MemoryModel) -> None:
    job = program(8)
    contexts = {
        name: model.predict(job, find_device(name)).breakdown_bytes["runtime_context"]
        for name in ("a100-sxm-40gb", "h100-sxm-80gb", "pixel-3", "mi210")
    }
    assert contexts["h100-sxm-80gb"] == contexts["a100-sxm-40gb"] == model.context_bytes
    assert contexts["pixel-3"] < contexts["mi210"] < model.context_bytes


def test_away_from_the_measured_stack_a_lean_context_is_allowed_for(model: MemoryModel) -> None:
    job = program(8)
    measured, other = (
        model.predict(job, find_device(n)).device_peak for n in ("a100-sxm-40gb", "h100-sxm-80gb")
    )
    assert measured.value == other.value
    assert other.low < measured.low - 300 * MIB
