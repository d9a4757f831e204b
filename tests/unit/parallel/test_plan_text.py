"""Plans as text: what is written reads back, and what is no plan is named."""

from __future__ import annotations

import pytest

from predictor.errors import InvalidPlan, UnknownName
from predictor.parallel.plan import Plan
from predictor.parallel.plan_text import format_plan, parse_plan
from predictor.types import Offload, Recompute, Schedule

PLANS = {
    "": Plan(),
    "dp=8 zero=3 shard_group=4": Plan(dp=8, zero=3, shard_group=4),
    "overlap=False tp=2 load_imbalance=1.5": Plan(tp=2, overlap=False, load_imbalance=1.5),
    "pp=4 microbatches=8 schedule=interleaved virtual_stages=2 recompute=full": Plan(
        pp=4, microbatches=8, schedule=Schedule.INTERLEAVED, virtual_stages=2, recompute=Recompute.FULL
    ),
    "dp=2 offload=optimizer,parameters placement=dp,tp,cp,ep,pp": Plan(
        dp=2,
        offload=frozenset({Offload.PARAMETERS, Offload.OPTIMIZER}),
        placement=("dp", "tp", "cp", "ep", "pp"),
    ),
}


@pytest.mark.parametrize("text", PLANS)
def test_reads_what_it_writes(text: str) -> None:
    assert parse_plan(text) == PLANS[text]
    assert format_plan(PLANS[text]) == text
    assert parse_plan(text.lower()) == PLANS[text]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recomputed=full", r"is no name=value of a plan; did you mean recompute=\?"),
        ("dp", "'dp' is no name=value"),
        ("dp=", "'dp=' is no name=value"),
        ("dp=two", "dp is 'two'; expected a number"),
        ("overlap=perhaps", "overlap is 'perhaps'; expected true or false"),
        ("zero=7", "zero is 7"),
    ],
)
def test_names_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        parse_plan(text)


def test_unknown_schedules_are_named() -> None:
    with pytest.raises(UnknownName, match="sideways"):
        parse_plan("pp=2 schedule=sideways")
