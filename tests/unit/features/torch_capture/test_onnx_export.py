"""Files written from modules: no weights, any batch, and the work of the module itself."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from predictor.errors import InvalidGraph
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Phase, Program
from predictor.features.reading.reader import read_graph
from predictor.features.torch_capture import TorchModel
from predictor.features.torch_capture.onnx_export import export_onnx
from predictor.types import Mode, Optimizer, Precision, Runtime

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn


def program_of_file(data: bytes, batch: int) -> Program:
    return build_program(
        read_graph(data, batch=batch),
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
    )


def totals(program: Program, phase: Phase) -> tuple[int, int]:
    found = [op.work for op in program.ops if op.work.phase is phase]
    return sum(work.matrix_flops for work in found), sum(work.moved_bytes for work in found)


@pytest.mark.parametrize("name", ["MobileNet", "GPT", "ViT"])
def test_the_file_and_the_module_ask_for_the_same_work(name: str) -> None:
    from predictor.evaluation.torch_networks import NETWORKS

    model = TorchModel(*next(case for case in NETWORKS if case.name == name).make())
    data = export_onnx(model)
    for batch in (2, 6):
        written, captured = program_of_file(data, batch), model.program(mode=Mode.TRAIN, batch=batch)
        assert written.parameter_count == captured.parameter_count
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            flops, moved = totals(captured, phase)
            assert totals(written, phase)[0] == flops
            assert totals(written, phase)[1] == pytest.approx(moved, rel=0.02)


def test_weights_are_neither_allocated_nor_written() -> None:
    with torch.device("meta"):
        huge = nn.Sequential(nn.Linear(200_000, 200_000), nn.BatchNorm1d(200_000))
    data = export_onnx(TorchModel(huge, torch.empty(4, 200_000, device="meta")))
    assert len(data) < 10_000
    graph = read_graph(data)
    # Batch norm keeps its own numbers: folded into the layer, training could not be priced.
    assert graph.parameter_count == 200_000 * 200_000 + 3 * 200_000
    assert "BatchNormalization" in {node.op_type for node in graph.nodes}


def test_a_convolution_without_bias_stays_without() -> None:
    data = export_onnx(TorchModel(nn.Conv2d(3, 8, 3, bias=False), torch.empty(2, 3, 8, 8)))
    (node,) = read_graph(data).nodes
    assert len([name for name in node.inputs if name]) == 2


def test_the_batch_can_stay_fixed() -> None:
    model = TorchModel(nn.Linear(8, 4), torch.empty(3, 8))
    assert read_graph(export_onnx(model)).batch == 1
    assert read_graph(export_onnx(model, dynamic_batch=False)).batch == 3


def test_what_torch_cannot_export_says_so() -> None:
    class Custom(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, data: Any) -> Any:
            return torch.linalg.eigvals(data).real

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    class Module(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, data: Any) -> Any:
            return Custom.apply(data)

    with pytest.raises(InvalidGraph, match=r"Module runs, but torch cannot export it"):
        export_onnx(TorchModel(Module(), torch.empty(3, 3)))


def test_a_decoder_with_a_mask_is_written() -> None:
    from tests.unit.features.torch_capture.test_cuda_choices import Translation

    data = export_onnx(TorchModel(Translation(), (torch.empty(2, 12, 32), torch.empty(2, 8, 32))))
    assert program_of_file(data, 4).batch == 4


def test_exporters_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Bag(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(10, 4, mode="sum")

        def forward(self, words: Any) -> Any:
            return self.bag(words)

    export_onnx(TorchModel(Bag(), torch.zeros(3, 2, dtype=torch.int64)))
    assert [record.name for record in caplog.records if record.levelno > logging.DEBUG] == []
