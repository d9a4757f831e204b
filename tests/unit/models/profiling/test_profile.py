"""Graphs run by torch: they compute what they say, and what cannot be run is an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from predictor.errors import InvalidRequest, UnsupportedOp
from predictor.features.builder import GraphBuilder
from predictor.features.reading.reader import read_graph
from predictor.models.corpus.built_graphs import built_graph
from predictor.models.profiling.measure import Effort
from predictor.models.profiling.profile import profile
from predictor.models.profiling.runner import iteration
from predictor.models.profiling.suite import STANDARD, Case
from predictor.types import Mode, Optimizer, Precision

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other on shared cores would take most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


QUICK = Effort(warm_up=1, warm_up_s=0.0, least=2, at_least_s=0.0)


@pytest.mark.parametrize(
    ("key", "mode", "optimizer"),
    [
        ("resnet18--image=32", Mode.TRAIN, Optimizer.MOMENTUM),
        ("mobilenet_v2--image=32", Mode.INFER, Optimizer.NONE),
        ("shufflenet_v2--image=64", Mode.TRAIN, Optimizer.ADAM),
        ("densenet121--image=32", Mode.INFER, Optimizer.NONE),
        ("squeezenet1_1--image=64", Mode.TRAIN, Optimizer.SGD),
        ("gpt2--sequence=8", Mode.INFER, Optimizer.NONE),
        ("bert_base--sequence=8", Mode.INFER, Optimizer.NONE),
        ("micro_matmul--k=32--m=32--n=32", Mode.INFER, Optimizer.NONE),
    ],
)
def test_networks_run(key: str, mode: Mode, optimizer: Optimizer) -> None:
    run = iteration(
        built_graph(key, 2, mode), mode=mode, precision=Precision.FP32, optimizer=optimizer, device="cpu"
    )
    run()
    run()


def test_the_standard_set_has_a_graph_and_a_call_for_every_operator() -> None:
    from predictor.models.profiling.torch_ops import OPS

    for case in STANDARD:
        graph = built_graph(case.graph, case.batch, case.mode)
        assert {node.op_type for node in graph.nodes} <= set(OPS), case.graph


def test_rows_say_what_ran() -> None:
    jobs, failed = profile(
        [Case("micro_addition--elements=1024", 3, precision=Precision.BF16)],
        device="cpu",
        threads=1,
        effort=QUICK,
        label="my-cpu",
    )
    assert not failed
    [job] = jobs
    assert (job.device, job.batch, job.precision, job.threads) == ("my-cpu", 3, Precision.BF16, 1)
    assert 0 < job.low_s <= job.time_s <= job.high_s
    assert job.framework == "torch"


def test_what_cannot_run_fails_alone() -> None:
    jobs, failed = profile(
        [Case("tacotron2", 1), Case("micro_launches--count=3", 1)], device="cpu", effort=QUICK
    )
    assert len(jobs) == 1
    assert "tacotron2" in failed[0]
    assert "LSTM" in failed[0]


def test_an_operator_without_a_call_is_named() -> None:
    b = GraphBuilder()
    graph = read_graph(b.build([b.op("Hardmax", [b.input("x", (2, 3))])]))
    with pytest.raises(UnsupportedOp, match="Hardmax"):
        iteration(graph, mode=Mode.INFER, precision=Precision.FP32, optimizer=Optimizer.NONE, device="cpu")


@pytest.mark.parametrize(("device", "message"), [("tpu", "expected cpu"), ("cuda", "no CUDA device")])
def test_devices_that_are_not_there(device: str, message: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(InvalidRequest, match=message):
        profile([Case("micro_launches", 1)], device=device)


def test_processor_time_is_of_one_thread() -> None:
    with pytest.raises(InvalidRequest, match="--threads 1"):
        profile([Case("micro_launches", 1)], device="cpu", effort=Effort(clock="cpu"))
    jobs, _ = profile(
        [Case("micro_launches", 1)],
        device="cpu",
        threads=1,
        effort=Effort(warm_up=1, warm_up_s=0.0, least=2, at_least_s=0.0, clock="cpu"),
    )
    assert jobs[0].clock == "cpu"
