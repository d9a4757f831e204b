"""Readers of whole-model timings: what a row means, what is left out, and that every row has a graph."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from predictor.hardware.catalog import find_device
from predictor.models.corpus.built_graphs import built_graph, graph_key
from predictor.models.corpus.chips import chip_of, multiplies_in_tf32
from predictor.models.corpus.manifest import load_manifest
from predictor.models.corpus.schema import conform
from predictor.models.corpus.whole_model import READERS, ReadRows
from predictor.types import Mode, Precision
from tests.public_data import public_data

SOURCES = (
    "detectron2_pycls",
    "gavel",
    "help-nas-latency",
    "lambda_pytorch",
    "mlperf_training",
    "nvidia_dle_tables",
    "optimum_habana_baselines",
    "pytorch_gpu_benchmark",
)


def reader_of(source: str) -> ModuleType:
    return import_module(f"predictor.models.corpus.{READERS[source]}")


def reader_of_module(name: str) -> ModuleType:
    return import_module(f"predictor.models.corpus.{name}")


@cache
def _read(source: str, folder: Path) -> ReadRows:
    found: ReadRows = reader_of(source).read_rows(folder)
    return found


def rows_of(source: str) -> ReadRows:
    return _read(source, public_data(source))


@pytest.mark.data
@pytest.mark.parametrize("source", SOURCES)
def test_rows_name_catalogue_devices_and_chips(source: str) -> None:
    found = rows_of(source)
    for row in found.rows:
        assert find_device(row.device).id == row.device
        assert row.device_group == chip_of(row.device)
        assert row.measured_s > 0
        assert row.batch >= 1
        assert 0 < row.weight <= 1


@pytest.mark.parametrize("source", SOURCES)
def test_sources_are_in_the_manifest(source: str) -> None:
    assert load_manifest()[source].reader == READERS[source]


def test_a_graph_key_names_an_architecture_and_its_options() -> None:
    key = graph_key("bert_base_spans", sequence=16)
    assert key == "bert_base_spans--sequence=16"
    graph = built_graph(key, 3, Mode.TRAIN)
    assert graph.values["input_ids"].shape == (3, 16)
    # Training has dropouts and a loss.
    assert any(node.op_type == "Dropout" for node in graph.nodes)
    assert not any(node.op_type == "Dropout" for node in built_graph(key, 3, Mode.INFER).nodes)


@pytest.mark.parametrize(
    ("device", "chip"),
    [
        ("rtx-2080-ti-11gb", "rtx2080ti"),
        ("quadro-rtx-8000-48gb", "titanrtx"),
        ("a100-pcie-80gb", "a100"),
        ("rtx-3080-max-q-16gb", "rtx3080max-q"),
        ("rtx-3090-24gb", "rtx3090"),
        ("core-i9-10940x", "core-i9-10940x"),
    ],
)
def test_a_chip_has_one_name(device: str, chip: str) -> None:
    assert chip_of(device) == chip


def test_fp32_is_tf32_from_ampere_on() -> None:
    assert multiplies_in_tf32("a10-pcie-24gb")
    assert multiplies_in_tf32("h100-sxm-80gb")
    assert not multiplies_in_tf32("v100-sxm-16gb")
    assert not multiplies_in_tf32("titan-rtx-24gb")


@pytest.mark.data
def test_lambda_rates_are_times_of_a_step_on_one_gpu() -> None:
    rows = rows_of("lambda_pytorch").rows
    [row] = [
        row
        for row in rows
        if (row.model, row.device, row.devices) == ("resnet50", "rtx-2080-ti-11gb", 1)
        and row.precision is Precision.FP32
    ]
    # 275.1 images/s at batch 100.
    assert row.measured_s == pytest.approx(0.3635, rel=1e-3)
    assert row.input_copy
    # Global batches are divided over the GPUs.
    assert {row.batch for row in rows if row.model == "maskrcnn" and row.devices == 8} <= set(range(1, 51))
    assert not any(row.precision is Precision.FP32 for row in rows if row.device_group == "h100")


@pytest.mark.data
def test_lambda_leaves_out_what_has_no_rate_or_no_named_device() -> None:
    found = rows_of("lambda_pytorch")
    assert found.available == 5002
    assert set(found.dropped) == {"no throughput", "ambiguous device", "batch does not divide over the GPUs"}
    assert found.dropped["batch does not divide over the GPUs"] == 1


@pytest.mark.data
def test_torchvision_rows_are_all_used_and_repeats_share_a_weight() -> None:
    found = rows_of("pytorch_gpu_benchmark")
    assert (len(found.rows), found.dropped) == (3560, {})
    alone = [row for row in found.rows if row.devices == 1]
    assert sum(row.weight for row in alone) == pytest.approx(1038)
    assert {row.precision for row in alone if row.device_group == "a100"} == {
        Precision.TF32,
        Precision.FP16,
        Precision.FP64,
    }


@pytest.mark.data
@pytest.mark.parametrize(
    ("source", "used", "dropped"),
    [
        (
            "gavel",
            75,
            {
                "copy in the simulation's file": 156,
                "repeated for unconsolidated workers": 78,
                "host simulation (A3C)": 3,
            },
        ),
        ("detectron2_pycls", 148, {"cells shifted": 6}),
        (
            "help-nas-latency",
            8231,
            {"beyond the sample": 607575, "simulated": 600, "whole milliseconds below 20": 469},
        ),
    ],
)
def test_what_is_left_out_is_counted(source: str, used: int, dropped: dict[str, int]) -> None:
    found = rows_of(source)
    assert (len(found.rows), dict(found.dropped)) == (used, dropped)


@pytest.mark.data
@pytest.mark.parametrize("source", SOURCES)
def test_every_third_graph_is_built_as_the_row_says(source: str) -> None:
    jobs = sorted({(row.graph, row.batch, row.mode) for row in rows_of(source).rows}, key=str)
    for key, batch, mode in jobs[:: max(1, len(jobs) // 3)]:
        assert reader_of(source).graph(public_data(source), key, batch, mode).batch == batch


@pytest.mark.data
def test_pycls_times_test_batches_of_200_images_for_256_in_training() -> None:
    rows = rows_of("detectron2_pycls").rows
    batches = {row.mode: row.batch for row in rows if row.model == "ResNet-50"}
    assert batches == {Mode.INFER: 25, Mode.TRAIN: 32}
    # 57 ms per 64 images is the published rate of this network.
    [test] = [row for row in rows if row.model == "ResNet-50" and row.mode is Mode.INFER]
    assert test.measured_s / 25 * 64 == pytest.approx(0.057, rel=0.01)


@pytest.mark.data
def test_nvidias_throughputs_are_of_the_whole_machine() -> None:
    rows = rows_of("nvidia_dle_tables").rows
    eight = [row for row in rows if (row.graph, row.devices, row.mode) == ("gnmt", 8, Mode.TRAIN)]
    # 519,952 tokens/s on eight GPUs of 128 sentence pairs each.
    assert any(row.measured_s == pytest.approx(8 * 128 * 54 / 519_952) for row in eight)
    assert {row.precision for row in rows if row.device_group == "t4"} == {Precision.FP32, Precision.AMP}


@pytest.mark.data
def test_mlperf_results_are_steps_of_a_global_batch() -> None:
    rows = rows_of("mlperf_training").rows
    [alone] = [row for row in rows if row.devices == 1]
    # 2994.36 images/s at batch 1000 on one A100 PCIe.
    assert (alone.device, alone.batch) == ("a100-pcie-80gb", 1000)
    assert alone.measured_s == pytest.approx(1000 / 2994.36, rel=1e-5)
    assert len({(row.model, row.devices, row.batch / row.measured_s) for row in rows}) == len(rows)


@pytest.mark.data
def test_the_newest_threshold_of_a_gaudi_test_counts() -> None:
    rows = rows_of("optimum_habana_baselines").rows
    assert {(row.device, row.batch) for row in rows if "spans" in row.graph} == {
        ("gaudi-oam-32gb", 24),
        ("gaudi2-oam-96gb", 32),
    }


@pytest.mark.data
def test_kernels_of_h20_and_h800_are_works() -> None:
    found = reader_of_module("infersim_bench").read(public_data("infersim_bench"))
    assert found.counts["available"] == 1883
    assert set(found.frame["device"]) == {"h20-sxm-96gb", "h800-sxm-80gb"}
    assert conform(found.frame, "infersim_bench").height == found.frame.height
    # 16 x 2048 by 2048 x 6144 in FP8 took 10.63 us.
    works = {row[0]: row[1] for row in found.frame.select("configuration", "value").iter_rows()}
    [seconds] = [
        value
        for configuration, value in works.items()
        if '"m":16,"n":6144' in configuration and '"k":2048' in configuration and value == 10.63e-6
    ][:1]
    assert seconds == pytest.approx(10.63e-6)


@pytest.mark.data
def test_layers_of_unnamed_devices_are_counted_and_not_used() -> None:
    found = reader_of_module("neurosurgeon_layers").read(public_data("neurosurgeon-layers"))
    assert found.frame.height == 0
    assert found.counts == {"available": 49_816, "device not named": 49_816}


def test_rows_of_our_own_are_packaged_and_in_the_catalogue(tmp_path: Path) -> None:
    source = load_manifest()["profiles"]
    source.verify(tmp_path)
    rows = reader_of("profiles").read_rows(source.folder(tmp_path)).rows
    assert len(rows) == 34
    assert {find_device(row.device).id for row in rows} == {"epyc-zen5-1-thread"}
    assert {row.mode for row in rows} == set(Mode)
    graph = reader_of("profiles").graph(tmp_path, rows[0].graph, rows[0].batch, rows[0].mode)
    assert graph.batch == rows[0].batch
