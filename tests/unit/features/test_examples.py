"""The shipped examples are real exports: their sizes and work are the published ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from predictor.features.programs.program import build_program
from predictor.features.programs.work import Family, Program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = ("bert_base", "gpt2", "mobilenet_v2", "resnet50", "unet", "vit_b16")
DIMS: dict[str, dict[str, int]] = {"bert_base": {"sequence": 512}}


@cache
def program(name: str, *, batch: int = 1, mode: Mode = Mode.INFER) -> Program:
    graph = read_graph(EXAMPLES / f"{name}.onnx", batch=batch, dims=DIMS.get(name, {}))
    return build_program(
        graph,
        mode=mode,
        precision=Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
        strict=True,
    )


def macs(found: Program) -> float:
    return sum(op.work.matrix_flops for op in found.ops) / 2


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet50", 25_557_032),
        ("mobilenet_v2", 3_504_872),
        # 64 to 1024 channels with batch normalisation and transposed convolutions, two classes.
        ("unet", 31_037_698),
        ("gpt2", 124_439_808),
        ("bert_base", 109_482_240),
        ("vit_b16", 86_567_656),
    ],
)
def test_parameters_are_the_published_count(name: str, published: int) -> None:
    assert program(name).parameter_count == published


def test_resnet50_runs_4_1_giga_multiply_adds() -> None:
    found = program("resnet50")
    # 53 convolutions and the classifier at 224 x 224: 4.09 GMAC.
    assert macs(found) == 4_089_184_256
    assert sum(op.work.flops for op in found.ops) == pytest.approx(8.2e9, rel=0.01)


def test_mobilenet_v2_runs_300_million_multiply_adds() -> None:
    assert macs(program("mobilenet_v2")) == pytest.approx(300.8e6, rel=1e-3)


def test_vit_b16_runs_17_6_giga_multiply_adds() -> None:
    assert macs(program("vit_b16")) == pytest.approx(17.56e9, rel=1e-3)


def test_gpt2_products_are_tokens_times_weights() -> None:
    found = program("gpt2", batch=4)
    linear = sum(op.work.matrix_flops for op in found.ops if op.work.family is Family.MATMUL) / 2
    assert linear == 4 * 1024 * (12 * 12 * 768**2 + 50257 * 768)


def test_bert_needs_its_sequence_and_scales_with_it() -> None:
    path = EXAMPLES / "bert_base.onnx"
    shapes = {
        n: read_graph(path, batch=2, dims={"sequence": n}).values["input_ids"].shape for n in (128, 384)
    }
    assert shapes == {128: (2, 128), 384: (2, 384)}


@pytest.mark.parametrize("name", NAMES)
def test_every_op_has_rules_and_training_costs_about_three_forwards(name: str) -> None:
    forward, training = program(name, batch=2), program(name, batch=2, mode=Mode.TRAIN)
    assert 2.9 < macs(training) / macs(forward) < 3.1


@pytest.mark.parametrize("name", NAMES)
def test_work_grows_with_the_batch(name: str) -> None:
    assert macs(program(name, batch=8)) == pytest.approx(8 * macs(program(name, batch=1)), rel=1e-9)


def test_fused_attention_is_recognised_in_both_exports_of_it() -> None:
    for name, causal in (("gpt2", True), ("bert_base", False), ("vit_b16", False)):
        shapes = [op.work.shape for op in program(name).ops if op.work.family is Family.ATTENTION]
        assert len(shapes) == 12
        assert {getattr(shape, "causal", None) for shape in shapes} == {causal}


@pytest.mark.parametrize("name", NAMES)
def test_files_are_small_because_they_carry_no_weights(name: str) -> None:
    assert (EXAMPLES / f"{name}.onnx").stat().st_size < 100_000


@pytest.mark.slow
def test_exporting_again_gives_the_same_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs the extra `torch`")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from export_examples import EXAMPLES as SPECIFIED
    from export_examples import export

    for name in ("resnet50", "mobilenet_v2", "unet"):
        again = read_graph(export(SPECIFIED[name]), batch=2)
        assert again.fingerprint == read_graph(EXAMPLES / f"{name}.onnx", batch=2).fingerprint


@pytest.mark.parametrize("name", NAMES)
def test_files_say_nothing_about_the_machine_that_exported_them(name: str) -> None:
    data = (EXAMPLES / f"{name}.onnx").read_bytes()
    assert b".py" not in data
    assert b"stack_trace" not in data
