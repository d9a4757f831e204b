"""A pipeline over different kinds of devices: what its iteration takes, and whether each stage fits.

    mixed_pipeline(predictor, request, ["a100-sxm-80gb", "v100-sxm-32gb"])

One device a stage, `dp`, `tp` and the other axes of the request's plan alike on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING

import numpy as np

from predictor.compose.interval import log_interval
from predictor.compose.memory import MemoryCost, held_and_seen, stage_memory_cost
from predictor.compose.mixed_stages import mixed_columns, mixed_ends
from predictor.compose.plan_cost import compose_plan
from predictor.compose.plan_time import plan_time
from predictor.compose.stragglers import with_stragglers
from predictor.errors import InvalidPlan, InvalidRequest
from predictor.hardware.spec import DeviceSpec
from predictor.parallel.memory_stages import RankMemory
from predictor.request import PredictionRequest
from predictor.types import Interval, Mode

if TYPE_CHECKING:
    from predictor.api.predictor import Predictor


@dataclass(frozen=True, slots=True)
class MixedStage:
    """One stage.

    Attributes:
        device: catalogue id. pieces: of the graph, from first to last (exclusive).
        busy_s: its work in an iteration. peak: memory of one of its devices.
    """

    device: str
    pieces: tuple[int, int]
    busy_s: float
    peak: MemoryCost


@dataclass(frozen=True, slots=True)
class MixedAnswer:
    """An iteration of a pipeline over different devices; `time_breakdown_s` sums to its time."""

    iteration_time_s: Interval
    throughput_samples_per_s: Interval
    time_breakdown_s: dict[str, float]
    stages: tuple[MixedStage, ...]

    @property
    def fits(self) -> bool:
        """Whether every stage fits on its device."""
        return all(stage.peak.fits for stage in self.stages)


def mixed_pipeline(
    predictor: Predictor, request: PredictionRequest, devices: Sequence[str | DeviceSpec]
) -> MixedAnswer:
    """An iteration of `request` with stage i on `devices[i]`; the request's own device does not matter.

    The cluster's links are those between all of them.

    Raises as `Predictor.predict`; InvalidRequest: not one device a stage; InvalidPlan: plans with several
    model chunks a device or with offload, which are cut otherwise.
    """
    plan = request.plan
    if len(devices) != plan.pp:
        raise InvalidRequest(
            f"{len(devices)} devices for {plan.pp} pipeline stages; expected one a stage", field="devices"
        )
    if plan.virtual_stages > 1 or plan.offload:
        raise InvalidPlan(
            "plan: stages on different devices run one chunk each and keep all on the device; take schedule "
            "1f1b, gpipe or zero_bubble without offload",
            field="plan.schedule",
        )
    training = request.mode is Mode.TRAIN
    resolved = [predictor._resolve(replace(request, device=device), needs_graph=True) for device in devices]
    microbatches = [predictor._pricing.microbatch(each) for each in resolved]
    costs = [each.columns.total_s if training else each.columns.forward_s for each in microbatches]
    ends = mixed_ends(np.stack(costs))
    cluster = resolved[0].cluster
    columns = mixed_columns([each.columns for each in microbatches], ends)
    found = plan_time(columns, plan, cluster, training=training)
    alone = [compose_plan(each, plan, cluster, training=training)[0] for each in microbatches]
    spread = max(log(each.iteration.high / each.iteration.value) for each in alone)
    time = replace(
        alone[0], iteration=log_interval(found.total_s, spread), breakdown_s=dict(found.breakdown_s)
    )
    time = with_stragglers(time, plan.device_count, request.rank_jitter)
    rank = resolved[0].rank
    memories, seen = held_and_seen(RankMemory(rank), ends, plan, training=training)
    begins = [0, *ends[:-1].tolist()]
    stages = tuple(
        MixedStage(
            device=each.device.id,
            pieces=(begins[index], int(ends[index])),
            busy_s=float(found.busy_s[index]),
            peak=stage_memory_cost(
                rank.program,
                each.device,
                plan,
                predictor._pricing.memory,
                memories[index],
                seen[index],
                training=training,
            ),
        )
        for index, each in enumerate(resolved)
    )
    samples = rank.program.batch * plan.dp * plan.microbatches
    return MixedAnswer(time.iteration, time.iteration.inverse(samples), dict(time.breakdown_s), stages)
