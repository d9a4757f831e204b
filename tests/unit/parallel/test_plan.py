"""Plans: what they accept, how they count devices, and which ranks talk to which."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import InvalidPlan, UnknownName
from predictor.parallel.plan import AXES, GROUPS, Plan
from predictor.request import PredictionRequest
from predictor.types import CpKind, Offload, OffloadTarget, Recompute, Schedule


def test_a_plan_of_one_device_splits_nothing() -> None:
    plan = Plan()
    assert plan.device_count == 1
    assert not plan.splits_graph
    assert all(plan.group_ranks(group) == (0,) for group in GROUPS)


def test_text_becomes_choices() -> None:
    plan = Plan(
        pp=2,
        microbatches=4,
        schedule="INTERLEAVED",  # type: ignore[arg-type]
        virtual_stages=2,
        recompute="full",  # type: ignore[arg-type]
        offload="optimizer,activations",  # type: ignore[arg-type]
        offload_to="nvme",  # type: ignore[arg-type]
        cp_kind="all_to_all",  # type: ignore[arg-type]
        placement="cp,tp,ep,dp,pp",  # type: ignore[arg-type]
    )
    assert plan.schedule is Schedule.INTERLEAVED
    assert plan.recompute is Recompute.FULL
    assert plan.offload == {Offload.OPTIMIZER, Offload.ACTIVATIONS}
    assert plan.offload_to is OffloadTarget.NVME
    assert plan.cp_kind is CpKind.ALL_TO_ALL
    assert plan.placement[0] == "cp"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp": 0}, "tp is 0"),
        ({"pp": 2.5}, "pp is 2.5"),
        ({"zero": 4}, "expected 0, 1, 2 or 3"),
        ({"zero": True}, "expected 0, 1, 2 or 3"),
        ({"dp": 4, "ep": 3}, "multiple of 3"),
        ({"dp": 4, "shard_group": 2}, "zero of 1 to 3"),
        ({"dp": 4, "zero": 3, "shard_group": 3}, "divisor"),
        ({"virtual_stages": 2}, "only interleaved"),
        ({"pp": 2, "schedule": "interleaved"}, "at least 2 virtual stages"),
        ({"pp": 4, "schedule": "interleaved", "virtual_stages": 2, "microbatches": 6}, "multiple of pp"),
        ({"recompute_layers": 3}, "recompute is none"),
        ({"tp": 2, "tp_overlap": True}, "without sequence_parallel"),
        ({"load_imbalance": 0.9}, "at least 1"),
        ({"load_imbalance": float("nan")}, "at least 1"),
        ({"placement": ("tp", "dp")}, "each of tp"),
        ({"offload": 3}, "a set out of"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidPlan, match=said):
        Plan(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["schedule", "recompute", "offload", "cp_kind", "offload_to"])
def test_unknown_choices_list_the_known_ones(field: str) -> None:
    with pytest.raises(UnknownName, match=r"known:|did you mean"):
        Plan(**{field: "sideways"})  # type: ignore[arg-type]


def test_groups_of_the_default_placement() -> None:
    plan = Plan(dp=4, tp=2, pp=2, ep=2)
    assert plan.group_ranks("tp", 3) == (2, 3)
    assert plan.group_ranks("ep", 3) == (1, 3)
    assert plan.group_ranks("expert_dp", 3) == (3, 7)
    assert plan.group_ranks("dp", 3) == (1, 3, 5, 7)
    assert plan.group_ranks("pp", 3) == (3, 11)
    with pytest.raises(InvalidPlan, match="no group"):
        plan.group_size("rows")
    with pytest.raises(InvalidPlan, match="rank 16"):
        plan.group_ranks("tp", 16)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    ep = draw(st.integers(1, 3))
    return Plan(
        dp=ep * draw(st.integers(1, 3)),
        tp=draw(st.integers(1, 3)),
        pp=draw(st.integers(1, 3)),
        cp=draw(st.integers(1, 2)),
        ep=ep,
        placement=tuple(draw(st.permutations(AXES))),
    )


@given(plans(), st.sampled_from(GROUPS))
def test_groups_of_one_kind_divide_the_ranks(plan: Plan, group: str) -> None:
    groups = {plan.group_ranks(group, rank) for rank in range(plan.device_count)}
    assert sorted(rank for members in groups for rank in members) == list(range(plan.device_count))
    assert {len(members) for members in groups} == {plan.group_size(group)}
    if group == plan.placement[0] and group != "dp":
        assert plan.group_ranks(group, 0) == tuple(range(plan.group_size(group)))


def test_a_plan_has_no_more_devices_than_any_system() -> None:
    assert Plan(dp=2**20).device_count == 2**20
    with pytest.raises(InvalidPlan, match="expected at most 1048576"):
        Plan(dp=2**20, tp=2)


def test_an_inference_job_has_neither_gradients_nor_state() -> None:
    plan = Plan(
        dp=4,
        pp=2,
        microbatches=4,
        zero=2,
        shard_group=2,
        schedule=Schedule.ZERO_BUBBLE,
        recompute=Recompute.FULL,
        recompute_layers=3,
        offload=frozenset({Offload.ACTIVATIONS, Offload.PARAMETERS}),
    )
    assert plan.training_only == (
        "zero=2",
        "schedule=zero_bubble",
        "recompute=full",
        "offload=activations+parameters",
    )
    assert plan.for_inference() == Plan(dp=4, pp=2, microbatches=4, offload=frozenset({Offload.PARAMETERS}))
    shared = Plan(dp=4, zero=3, shard_group=2)
    assert shared.for_inference() == shared
    assert not shared.training_only


@pytest.mark.parametrize("options", [{"recompute": "full"}, {"dp": 2, "zero": 1}, {"offload": "optimizer"}])
def test_a_request_of_inference_refuses_what_training_has(options: dict[str, Any]) -> None:
    plan = Plan(**options)
    assert PredictionRequest("model.onnx", "a100", mode="train", plan=plan).plan == plan  # type: ignore[arg-type]
    with pytest.raises(InvalidPlan, match="in training only"):
        PredictionRequest("model.onnx", "a100", plan=plan)
