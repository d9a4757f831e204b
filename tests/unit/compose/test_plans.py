"""Plans through the public predictor: what must hold whatever the models say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.api import Predictor
from predictor.compose.plan_cost import compose_plan, microbatch_costs
from predictor.compose.plan_time import plan_time
from predictor.compose.timeline_page import timeline_page
from predictor.compose.trace import chrome_trace
from predictor.errors import InvalidPlan, InvalidRequest
from predictor.features.reading.reader import read_graph
from predictor.hardware.catalog import find_cluster
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import rank_program
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer, Precision, Prediction, Runtime, Schedule, Trainer

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CLUSTER = "dgx-a100-80gb"


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def request(model: str = "gpt2.onnx", batch: int = 32, **plan: Any) -> PredictionRequest:
    return PredictionRequest(
        str(EXAMPLES / model),
        "a100-sxm-80gb",
        batch=batch,
        mode=Mode.TRAIN,
        precision=Precision.AMP,
        optimizer=Optimizer.ADAMW,
        cluster=CLUSTER,
        plan=Plan(**plan),
    )


PLANS: list[dict[str, Any]] = [
    {"microbatches": 4},
    {"dp": 4, "microbatches": 2},
    {"dp": 8, "zero": 1},
    {"dp": 8, "zero": 2, "microbatches": 2},
    {"dp": 8, "zero": 3},
    {"dp": 8, "zero": 3, "shard_group": 4, "overlap": False},
    {"pp": 4, "microbatches": 8},
    {"pp": 4, "microbatches": 8, "schedule": "gpipe"},
    {"pp": 2, "microbatches": 8, "schedule": "interleaved", "virtual_stages": 3},
    {"pp": 4, "microbatches": 8, "schedule": "zero_bubble", "dp": 2, "zero": 1},
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_parts_add_up(predictor: Predictor, plan: dict[str, Any]) -> None:
    answer = predictor.predict(request(**plan))
    assert sum(answer.time_breakdown_s.values()) == pytest.approx(answer.iteration_time_s.value, rel=1e-9)
    assert sum(answer.energy_breakdown_j.values()) == pytest.approx(answer.energy_j.value, rel=1e-9)
    assert min(answer.time_breakdown_s.values()) >= 0
    assert answer.iteration_time_s.low < answer.iteration_time_s.value < answer.iteration_time_s.high
    assert answer.throughput_samples_per_s.value == pytest.approx(32 / answer.iteration_time_s.value)
    coverage = answer.coverage
    assert coverage.learned + coverage.analytic + coverage.fallback == pytest.approx(1.0)
    assert answer.device_count == Plan(**plan).device_count


def columns_of(predictor: Predictor, plan: Plan, batch: int = 4, mode: Mode = Mode.TRAIN) -> Any:
    """(costs of a microbatch of GPT-2, cluster)"""
    found = request(batch=batch * plan.dp * plan.microbatches)
    resolved = predictor._resolve(replace(found, plan=plan, mode=mode))
    rank, framework = resolved.rank, resolved.request.runs_framework
    if rank.graph is None:
        graph = read_graph(EXAMPLES / "gpt2.onnx", batch=batch)
        rank = rank_program(
            graph,
            plan,
            mode=mode,
            precision=Precision.AMP,
            optimizer=Optimizer.ADAMW,
            runtime=Runtime.EAGER,
        )
    return microbatch_costs(
        rank,
        resolved.costs,
        runtime=Runtime.EAGER,
        plan=plan,
        cluster=resolved.cluster,
        framework=framework,
    )


def test_small_models_wait_for_the_host_of_the_trainer_that_runs_them(predictor: Predictor) -> None:
    split, plain = request(batch=2, tp=2), request(batch=2)
    waits = {
        (asked.plan.tp, trainer): predictor.predict(replace(asked, trainer=trainer))
        for asked in (split, plain)
        for trainer in Trainer
    }
    host = {key: answer.time_breakdown_s["host_launch"] for key, answer in waits.items()}
    assert host[2, Trainer.AUTO] == host[2, Trainer.MEGATRON] > 5 * host[2, Trainer.TORCH]
    assert host[1, Trainer.AUTO] == host[1, Trainer.TORCH] < host[1, Trainer.MEGATRON] / 5
    told = {key for key, answer in waits.items() if "TRAINER_ASSUMED" in {n.code for n in answer.warnings}}
    assert told == {(2, Trainer.AUTO)}
    assert waits[1, Trainer.MEGATRON].time_breakdown_s["optimizer"] != pytest.approx(
        waits[1, Trainer.TORCH].time_breakdown_s["optimizer"]
    )


@pytest.mark.parametrize("dp", [1, 4, 16])
@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.INFER])
def test_whole_replicas_cost_what_the_plain_graph_costs(predictor: Predictor, dp: int, mode: Mode) -> None:
    plan = Plan(dp=dp)
    plain = predictor.predict(replace(request(batch=4 * dp, dp=dp), mode=mode))
    cluster = predictor.links.measured(find_cluster(CLUSTER), Runtime.EAGER)
    time, _ = compose_plan(columns_of(predictor, plan, mode=mode), plan, cluster, training=mode is Mode.TRAIN)
    assert time.iteration.value == pytest.approx(plain.iteration_time_s.value, rel=1e-9)
    for name, part in plain.time_breakdown_s.items():
        assert time.breakdown_s[name] == pytest.approx(part, rel=1e-9, abs=1e-12)
    assert time.iteration.high == pytest.approx(plain.iteration_time_s.high, rel=0.05)


@pytest.mark.parametrize(("pp", "zero"), [(1, 0), (1, 1), (2, 1), (1, 2), (1, 3)])
def test_gradients_are_added_to_those_of_earlier_microbatches(
    predictor: Predictor, pp: int, zero: int
) -> None:
    plan = Plan(dp=2, pp=pp, zero=zero, microbatches=4)
    costs, cluster = columns_of(predictor, plan), find_cluster(CLUSTER)
    rate = 1e-11

    def time(adding: float, microbatches: int) -> Any:
        columns = replace(costs.columns, adding_s_per_byte=adding)
        return plan_time(columns, replace(plan, microbatches=microbatches), cluster, training=True)

    bare, found = time(0.0, 4), time(rate, 4)
    held = costs.columns.parameter_bytes.sum() if zero < 2 else 0.0
    tied = sum(size for _, size in costs.columns.tied) if pp > 1 else 0.0
    assert found.busy_s.sum() - bare.busy_s.sum() == pytest.approx(3 * (held + tied) * rate)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.total_s)
    assert time(rate, 1).total_s == time(0.0, 1).total_s


@pytest.mark.parametrize("microbatches", [2, 8, 64])
def test_bubble_of_equal_stages(predictor: Predictor, microbatches: int) -> None:
    plan = Plan(pp=4, microbatches=microbatches)
    columns = columns_of(predictor, plan).columns
    # Four equal pieces, and messages that take no time.
    equal = replace(
        columns,
        **{
            name: getattr(columns, name)[..., :4] * 0 + 1.0
            for name in ("forward_s", "backward_s", "weight_s", "parameter_bytes", "kernel_s")
        },
        gap_s=columns.gap_s[..., :4] * 0,
        expert_bytes=columns.expert_bytes[:4] * 0,
        crossing_bytes=columns.crossing_bytes[:4] * 0,
        exchange_s={},
        sent_bytes={},
        optimizer_s=columns.optimizer_s * 0,
        tied=(),
    )
    found = plan_time(equal, plan, find_cluster(CLUSTER), training=True)
    bubble = found.breakdown_s["pipeline_bubble"] / found.total_s
    assert bubble == pytest.approx(3 / (microbatches + 3), rel=1e-12)


def test_bytes_sent_by_replicas_are_those_of_a_ring(predictor: Predictor) -> None:
    weights = 4 * read_graph(EXAMPLES / "gpt2.onnx", batch=1).parameter_count
    for zero in (0, 1, 3):
        plan = Plan(dp=8, zero=zero, microbatches=2)
        found = plan_time(columns_of(predictor, plan).columns, plan, find_cluster(CLUSTER), training=True)
        # A ring sends 2 (n - 1) / n of what it reduces; FSDP gathers twice and reduces once a microbatch.
        passes = {0: 2, 1: 2, 3: 2 * 3}[zero]
        assert found.sent_bytes["dp"] == pytest.approx(passes * 7 / 8 * weights, rel=1e-6)


def test_bytes_between_stages_are_what_crosses(predictor: Predictor) -> None:
    plan = Plan(pp=4, microbatches=8)
    found = plan_time(columns_of(predictor, plan).columns, plan, find_cluster(CLUSTER), training=True)
    # A stage in the middle sends activations on and gradients back: 4 x 1024 x 768 numbers of 4 bytes each.
    assert found.sent_bytes["pp"] == 8 * 2 * 4 * 1024 * 768 * 4


def test_faster_links_never_slow(predictor: Predictor) -> None:
    slow = find_cluster(CLUSTER)

    def at(cluster: ClusterSpec, plan: dict[str, Any]) -> float:
        return predictor.predict(replace(request(**plan), cluster=cluster)).iteration_time_s.value

    for factor in (0.1, 0.5):
        links = {
            name: replace(getattr(slow, name), bytes_per_s=getattr(slow, name).bytes_per_s * factor)
            for name in ("intra_node", "inter_node")
        }
        slower = replace(slow, **links)
        for plan in PLANS:
            assert at(slower, plan) >= at(slow, plan) * (1 - 1e-12)


def test_zero_shares_the_step(predictor: Predictor) -> None:
    whole = predictor.predict(request(dp=8)).time_breakdown_s["optimizer"]
    shared = predictor.predict(request(dp=8, zero=1)).time_breakdown_s["optimizer"]
    assert shared == pytest.approx(whole / 8, rel=1e-6)


@pytest.mark.parametrize("runtime", [Runtime.EAGER, Runtime.COMPILED])
@pytest.mark.parametrize("model", ["gpt2.onnx", "resnet50.onnx", "vit_b16.onnx"])
def test_every_recomputed_layer_takes_time(predictor: Predictor, model: str, runtime: Runtime) -> None:
    times = [
        predictor.predict(replace(request(model, **plan), runtime=runtime)).iteration_time_s.value
        for plan in (
            {},
            *({"recompute": "full", "recompute_layers": layers} for layers in (1, 2, 6)),
            {"recompute": "full"},
        )
    ]
    assert times == sorted(times)
    assert times[-1] < 4 / 3 * 1.05 * times[0]


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize(
    ("model", "plan", "group"),
    [
        ("gpt2.onnx", {}, None),
        ("gpt2.onnx", {"microbatches": 4}, None),
        ("gpt2.onnx", {"pp": 2, "microbatches": 4}, None),
        ("gpt2.onnx", {"dp": 4}, 1),
        ("resnet50.onnx", {}, None),
    ],
)
def test_one_rank_has_nobody_to_share_with(
    predictor: Predictor, zero: int, model: str, plan: dict[str, Any], group: int | None
) -> None:
    alone = predictor.predict(request(model, **plan))
    shared = predictor.predict(request(model, **plan, zero=zero, shard_group=group))
    assert replace(shared, graph=alone.graph) == alone


def test_pipelines_of_other_graphs(predictor: Predictor) -> None:
    for model in ("unet.onnx", "resnet50.onnx", "mobilenet_v2.onnx", "vit_b16.onnx"):
        alone = predictor.predict(request(model, microbatches=8))
        piped = predictor.predict(request(model, microbatches=8, pp=4))
        assert piped.iteration_time_s.value < alone.iteration_time_s.value
        assert piped.iteration_time_s.value > alone.iteration_time_s.value / 4


def test_inference_in_stages(predictor: Predictor) -> None:
    answer = predictor.predict(replace(request(pp=4, microbatches=4), mode=Mode.INFER))
    parts = answer.time_breakdown_s
    assert parts["backward"] == parts["optimizer"] == 0
    assert parts["pipeline_bubble"] > 0


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ({"pp": 64, "microbatches": 2}, InvalidPlan, "pieces at most; lower pp"),
        (
            {"dp": 8, "microbatches": 3},
            InvalidPlan,
            "dp=8 replicas in 3 microbatches each; try batch 24 or 48",
        ),
        ({"dp": 512}, InvalidPlan, "lower dp or name a larger one"),
        ({"pp": 2, "dp": 2, "zero": 3, "schedule": "zero_bubble", "microbatches": 2}, InvalidPlan, "zero=3"),
    ],
)
def test_plans_that_cannot_work(
    predictor: Predictor, plan: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        predictor.predict(request(**plan))


def test_microbatches_need_a_batch(predictor: Predictor) -> None:
    with pytest.raises(InvalidRequest, match="4 microbatches share the global batch"):
        predictor.predict(replace(request(microbatches=4), batch=None))


def test_trace_and_page_show_every_stage(predictor: Predictor) -> None:
    asked = request(pp=2, dp=2, microbatches=4, schedule=Schedule.ONE_F_ONE_B)
    found = predictor.timeline(asked)
    answer: Prediction = predictor.predict(asked)
    assert found.total_s == pytest.approx(answer.iteration_time_s.value, rel=1e-9)
    trace = json.loads(json.dumps(chrome_trace(found), allow_nan=False))
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == len(found.events)
    assert max(event["ts"] + event["dur"] for event in complete) == pytest.approx(found.total_s * 1e6)
    assert {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"} == {
        "stage 0 (2 ranks)",
        "stage 1 (2 ranks)",
    }
    page = timeline_page(found, "a <model>", {"iteration": "1 s"})
    assert "a &lt;model&gt;" in page
    assert "<model>" not in page
    assert page.count("<title>forward") == 8
    assert page.count('class="stage"') == 2


def test_a_host_has_nowhere_to_offload_to(predictor: Predictor) -> None:
    asked = replace(request(batch=2, offload="optimizer"), device="epyc-7763", cluster=None)
    with pytest.raises(InvalidPlan, match="host's own memory"):
        predictor.predict(asked)
    away = replace(asked, plan=replace(asked.plan, offload_to="nvme"))  # type: ignore[arg-type]
    assert predictor.predict(away).iteration_time_s.value > 0


def test_offloading_waits_for_the_host(predictor: Predictor) -> None:
    plain = predictor.predict(request(dp=4, zero=2))
    away = predictor.predict(request(dp=4, zero=2, offload="optimizer"))
    parts = away.time_breakdown_s
    assert sum(parts.values()) == pytest.approx(away.iteration_time_s.value, rel=1e-9)
    # A quarter of GPT-2 on each of four devices: Adam moves seven tensors on the shared host, one comes back.
    weights = 4 * read_graph(EXAMPLES / "gpt2.onnx", batch=1).parameter_count / 4
    host, copy = 0.75 * 16 * 25.6e9 / 4, 0.8 * 31.508e9
    assert parts["optimizer"] == pytest.approx(7 * weights / host + weights / copy, rel=1e-3)
    assert parts["optimizer"] > plain.time_breakdown_s["optimizer"]
    for what in ("parameters", "activations"):
        answer = predictor.predict(request(microbatches=2, offload=what))
        assert answer.time_breakdown_s["offload"] >= 0
        assert (
            answer.iteration_time_s.value >= predictor.predict(request(microbatches=2)).iteration_time_s.value
        )
