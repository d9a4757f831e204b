"""TorchModel as a source of programs, and in the predictor's place of a graph."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from predictor.api.sources import GraphSources
from predictor.errors import InvalidInput, InvalidRequest
from predictor.features.programs.program_source import ProgramSource
from predictor.features.programs.work import Family
from predictor.features.torch_capture import TorchModel
from predictor.types import Mode, Optimizer, Precision, Runtime

torch = pytest.importorskip("torch")
nn = torch.nn


def small() -> Any:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))


def image(batch: int = 2) -> Any:
    return torch.empty(batch, 3, 8, 8)


def test_it_is_a_program_source_with_a_key_of_its_own() -> None:
    one, two = TorchModel(small(), image()), TorchModel(small(), image())
    assert isinstance(one, ProgramSource)
    assert not isinstance("model.onnx", ProgramSource)
    assert one.key != two.key
    assert GraphSources().key(one) == one.key
    assert one.name == "Sequential"


def test_a_batch_scales_the_work_and_not_the_parameters() -> None:
    model = TorchModel(small(), image())
    small_batch, large_batch = model.program(mode=Mode.TRAIN), model.program(mode=Mode.TRAIN, batch=20)
    assert (small_batch.batch, large_batch.batch) == (2, 20)
    assert small_batch.parameter_count == large_batch.parameter_count

    def flops(program: Any) -> int:
        return sum(op.work.matrix_flops for op in program.ops)

    assert flops(large_batch) == 10 * flops(small_batch)


def test_a_compiler_gets_fewer_kernels() -> None:
    model = TorchModel(
        nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Sigmoid(), nn.Linear(64, 8)), torch.empty(4, 8)
    )
    programs = [model.program(mode=Mode.INFER, runtime=runtime) for runtime in Runtime]
    eager, compiled, *_ = programs
    assert [[op.work.kind for op in program.ops] for program in programs] == [
        ["linear", "tanh", "sigmoid", "linear"],
        ["linear", "fused", "linear"],
        ["linear", "tanh", "sigmoid", "linear"],
        ["linear", "linear"],
    ]
    assert eager.batch == compiled.batch == 4


def test_a_compiled_loss_is_part_of_the_program() -> None:
    model = TorchModel(nn.Linear(8, 4), torch.empty(4, 8), loss=lambda out: out.square().mean())
    program = model.program(mode=Mode.TRAIN, runtime=Runtime.COMPILED)
    assert {op.work.family for op in program.ops} >= {Family.MATMUL, Family.ELEMENTWISE}


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, predictor.features.torch_capture, predictor.request; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidInput, match=r"pip install perfcast\[torch\]"):
        TorchModel(object(), ())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def predictor() -> Any:
    from predictor import Predictor

    return Predictor.load()


class TestPredictor:
    """Through the bundle that ships."""

    def test_a_module_is_a_question_of_its_own(self, predictor: Any) -> None:
        answer = predictor.predict(
            module=small(), example_inputs=image(), device="a100-sxm-80gb", mode="train", batch=64
        )
        assert answer.iteration_time_s.value > 0
        assert answer.throughput_samples_per_s.value == pytest.approx(64 / answer.iteration_time_s.value)
        assert answer.graph.startswith("sha256:")

    def test_requests_hold_modules_and_repeat(self, predictor: Any) -> None:
        from predictor import PredictionRequest

        model = TorchModel(small(), image())
        request = PredictionRequest(model, "a100-sxm-80gb", mode=Mode.TRAIN, optimizer=Optimizer.ADAM)
        first = predictor.predict(request)
        assert predictor.predict(request) is first
        rows = predictor.explain(request).rows
        assert {row.phase for row in rows} == {"forward", "backward", "optimizer"}
        assert "convolution_backward" in {row.op_type for row in rows}

    def test_replicas_share_the_batch(self, predictor: Any) -> None:
        from predictor import Plan

        options = {"device": "a100-sxm-80gb", "mode": "train", "batch": 8192}
        alone = predictor.predict(module=small(), example_inputs=image(), **options)
        shared = predictor.predict(module=small(), example_inputs=image(), plan=Plan(dp=4), **options)
        assert shared.device_count == 4
        assert shared.time_breakdown_s["forward"] < alone.time_breakdown_s["forward"]

    def test_half_precision_is_captured_as_such(self, predictor: Any) -> None:
        options = {"device": "a100-sxm-80gb", "mode": "train", "batch": 256}
        wide = predictor.predict(module=small(), example_inputs=image(), **options)
        half = predictor.predict(module=small(), example_inputs=image(), precision=Precision.BF16, **options)
        assert half.memory_breakdown_bytes["parameters"] < wide.memory_breakdown_bytes["parameters"]

    def test_misuse_is_told(self, predictor: Any) -> None:
        from predictor import PredictionRequest

        with pytest.raises(InvalidRequest, match="not both"):
            predictor.predict(PredictionRequest("x.onnx", "a100-sxm-80gb"), module=small())
        with pytest.raises(InvalidRequest, match="module="):
            predictor.predict()
        with pytest.raises(InvalidRequest, match="colour"):
            predictor.predict(module=small(), example_inputs=image(), device="a100-sxm-80gb", colour=1)
        with pytest.raises(InvalidRequest, match="example inputs"):
            predictor.predict(
                module=small(), example_inputs=image(), device="a100-sxm-80gb", dims={"batch": 4}
            )

    def test_a_server_is_given_a_file(self) -> None:
        from predictor import PredictionRequest, RemotePredictor

        remote = RemotePredictor("localhost:1")
        with pytest.raises(InvalidRequest, match="graph from-torch"):
            remote.predict(PredictionRequest(TorchModel(small(), image()), "a100-sxm-80gb"))
