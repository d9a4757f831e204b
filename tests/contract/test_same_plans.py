"""Plan searches and tables of splits: the server's answers are those in process, and so are its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from predictor.api import Predictor
from predictor.cli.main import app
from predictor.client import RemotePredictor
from predictor.errors import DoesNotFit, InvalidRequest, Overloaded, PerfcastError, UnknownName
from predictor.parallel.plan import Plan
from predictor.protocol import Forecaster
from predictor.request import PredictionRequest
from predictor.search.search import Goal, Objective
from predictor.serve.app import PerfcastServer, build_server
from predictor.serve.settings import ServerSettings
from predictor.v1 import plan_service_pb2 as pb
from predictor.v1.plan_service_pb2_grpc import PlanServiceStub
from predictor.wire.request import request_to_proto
from tests.contract.models import perceptron


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> PredictionRequest:
    path = tmp_path_factory.mktemp("models") / "perceptron.onnx"
    path.write_bytes(perceptron().SerializeToString())
    return PredictionRequest(
        str(path),
        "a100-sxm-80gb",
        batch=64,
        mode="train",
        precision="amp",
        optimizer="adamw",
        cluster="dgx-a100-80gb:1",
    )


@pytest.mark.parametrize("goal", [None, Goal(Objective.CARBON, carbon_g_per_kwh=100.0, pue=1.2, top=3)])
def test_searches_agree(
    local: Forecaster, remote: RemotePredictor, asked: PredictionRequest, goal: Goal | None
) -> None:
    mine = local.search_plans(asked, goal, max_devices=2, cp=(1, 2))
    assert remote.search_plans(asked, goal, max_devices=2, cp=(1, 2)) == mine
    assert len(mine.best) == (goal or Goal()).top


def test_tables_agree(local: Forecaster, remote: RemotePredictor, asked: PredictionRequest) -> None:
    devices, counts = ("a100-sxm-80gb", "v100-sxm-16gb"), (4, 1)
    mine = local.throughput_table(asked, devices, counts)
    assert remote.throughput_table(asked, devices, counts) == mine
    assert [(row.device, row.device_count) for row in mine] == [(d, n) for d in devices for n in counts]
    assert mine[0].throughput_samples_per_s >= mine[1].throughput_samples_per_s
    assert mine[1].plan == Plan(microbatches=mine[1].plan.microbatches if mine[1].plan else 1)


def test_curves_agree_and_are_single_answers(
    local: Forecaster, remote: RemotePredictor, asked: PredictionRequest
) -> None:
    mine = local.scaling_curve(asked, (1, 2, 8), weak=True)
    assert remote.scaling_curve(asked, (1, 2, 8), weak=True) == mine
    alone = local.predict(replace(asked, batch=128, plan=Plan(dp=2)))
    assert mine[1].iteration_time_s == alone.iteration_time_s.value
    assert [point.batch for point in mine] == [64, 128, 512]
    assert mine[0].efficiency == 1.0
    strong = local.scaling_curve(asked, (1, 2))
    assert [point.batch for point in strong] == [64, 64]


_Ask = Callable[[Any, PredictionRequest], object]
_WRONG: dict[str, tuple[_Ask, type[PerfcastError]]] = {
    "late": (lambda face, asked: face.search_plans(asked, Goal(deadline_s=1e-9)), DoesNotFit),
    "no batch": (lambda face, asked: face.search_plans(replace(asked, batch=None)), InvalidRequest),
    "no devices": (lambda face, asked: face.throughput_table(asked, [], [1]), InvalidRequest),
    "device": (lambda face, asked: face.throughput_table(asked, ["abacus"], [1]), UnknownName),
    "count": (lambda face, asked: face.throughput_table(asked, ["a100-sxm-80gb"], [0]), InvalidRequest),
    "replicas": (lambda face, asked: face.scaling_curve(asked, [0]), InvalidRequest),
    "cp": (lambda face, asked: face.search_plans(asked, cp=(0,)), InvalidRequest),
}


@pytest.mark.parametrize("case", _WRONG)
def test_errors_agree(
    case: str, local: Forecaster, remote: RemotePredictor, asked: PredictionRequest
) -> None:
    ask, kind = _WRONG[case]
    said = []
    for face in (local, remote):
        with pytest.raises(kind) as caught:
            ask(face, asked)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_the_command_answers_alike_with_a_server(server: PerfcastServer, asked: PredictionRequest) -> None:
    flags = ["plan", str(asked.graph), "-d", "a100-sxm-80gb", "--cluster", "dgx-a100-80gb:1", "-b", "64"]
    flags += ["--mode", "train", "--max-devices", "2", "-o", "json"]
    answers = [CliRunner().invoke(app, [*flags, *extra]) for extra in ([], ["--server", server.address])]
    assert [answer.exit_code for answer in answers] == [0, 0], answers[1].output
    assert json.loads(answers[0].stdout) == json.loads(answers[1].stdout)


def test_limits_of_the_server(remote: RemotePredictor, asked: PredictionRequest) -> None:
    with pytest.raises(InvalidRequest, match="1 to 65536"):
        remote.search_plans(asked, max_devices=65537)


def test_no_more_searches_at_once_than_slots(local: Forecaster, asked: PredictionRequest) -> None:
    assert isinstance(local, Predictor)
    settings = ServerSettings(port=0, threads=2, grace_s=1.0, access_log=False)
    with build_server(local, settings) as running, RemotePredictor(running.address, attempts=1) as client:
        model = client.add_graph(Path(str(asked.graph)).read_bytes())
        candidate = request_to_proto(asked, model)
        with grpc.insecure_channel(running.address) as channel:
            stub = PlanServiceStub(channel)
            # 64 searches at once for one slot: some are refused, and those that are not are answered.
            calls = [
                stub.SearchPlans.future(pb.SearchPlansRequest(candidate=candidate, request_id=str(n)))
                for n in range(64)
            ]
            codes = [call.code() for call in calls]
        assert grpc.StatusCode.OK in codes
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        with pytest.raises((Overloaded, InvalidRequest)):
            client.search_plans(asked, max_devices=2**17)
