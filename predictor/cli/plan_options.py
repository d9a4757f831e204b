"""Flags that spell a plan: how a job is split over devices. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from predictor.parallel.plan import Plan

_PLAN = "Plan"


def _option(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=_PLAN)


DataParallel: TypeAlias = Annotated[int, _option("--dp", metavar="N", help="Replicas.")]
TensorParallel: TypeAlias = Annotated[int, _option("--tp", metavar="N", help="Ranks that share each weight.")]
PipelineParallel: TypeAlias = Annotated[int, _option("--pp", metavar="N", help="Pipeline stages.")]
ContextParallel: TypeAlias = Annotated[
    int, _option("--cp", metavar="N", help="Ranks that share each sequence.")
]
ExpertParallel: TypeAlias = Annotated[
    int, _option("--ep", metavar="N", help="Ranks that share the experts; divides --dp.")
]
SequenceParallel: TypeAlias = Annotated[
    bool, _option("--sequence-parallel", help="Split norms and residuals over --tp by sequence.")
]
TensorOverlap: TypeAlias = Annotated[
    bool,
    _option("--tp-overlap", help="Exchange parts of tensors beside products, with --sequence-parallel."),
]
Zero: TypeAlias = Annotated[
    int,
    _option(
        "--zero", metavar="0..3", help="What replicas share: 1 optimizer, 2 and gradients, 3 and weights."
    ),
]
ShardGroup: TypeAlias = Annotated[
    int | None,
    _option("--shard-group", metavar="N", help="Replicas that share one copy under --zero (HSDP)."),
]
Microbatches: TypeAlias = Annotated[
    int, _option("--microbatches", metavar="N", help="Parts in which each replica runs its batch.")
]
ScheduleOption: TypeAlias = Annotated[
    str,
    _option(
        "--schedule", metavar="gpipe|1f1b|interleaved|zero_bubble", help="Order of a pipeline's microbatches."
    ),
]
VirtualStages: TypeAlias = Annotated[
    int, _option("--virtual-stages", metavar="N", help="Model chunks per device, interleaved.")
]
RecomputeOption: TypeAlias = Annotated[
    str, _option("--recompute", metavar="none|selective|full", help="Activations computed again.")
]
RecomputeLayers: TypeAlias = Annotated[
    int | None, _option("--recompute-layers", metavar="N", help="Layers that do so; default: all.")
]
OffloadOption: TypeAlias = Annotated[
    str,
    _option(
        "--offload",
        metavar="optimizer,parameters,activations",
        help="What lives outside the device; several with commas.",
    ),
]
OffloadTo: TypeAlias = Annotated[str, _option("--offload-to", metavar="cpu|nvme", help="Where it lives.")]
CpKindOption: TypeAlias = Annotated[
    str, _option("--cp-kind", metavar="ring|all_to_all", help="How a split sequence attends.")
]
ExpertCopies: TypeAlias = Annotated[
    int,
    _option("--ep-copies", metavar="N", help="Experts of a token whose copies reach a node as one (DeepEP)."),
]
LoadImbalance: TypeAlias = Annotated[
    float, _option("--load-imbalance", metavar="X", help="Tokens of the busiest expert rank over the mean.")
]
Placement: TypeAlias = Annotated[
    str, _option("--placement", metavar="AXES", help="Axes of the rank grid, same node first.")
]
BucketMib: TypeAlias = Annotated[
    int, _option("--bucket-mib", metavar="N", help="Size of gradient buckets, MiB.")
]
NoOverlap: TypeAlias = Annotated[
    bool, _option("--no-overlap", help="Exchange gradients and weights only while nothing computes.")
]


@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """How the job is split."""

    dp: DataParallel = 1
    tp: TensorParallel = 1
    pp: PipelineParallel = 1
    cp: ContextParallel = 1
    ep: ExpertParallel = 1
    sequence_parallel: SequenceParallel = False
    tp_overlap: TensorOverlap = False
    zero: Zero = 0
    shard_group: ShardGroup = None
    microbatches: Microbatches = 1
    schedule: ScheduleOption = "1f1b"
    virtual_stages: VirtualStages = 1
    recompute: RecomputeOption = "none"
    recompute_layers: RecomputeLayers = None
    offload: OffloadOption = ""
    offload_to: OffloadTo = "cpu"
    cp_kind: CpKindOption = "ring"
    ep_copies: ExpertCopies = 1
    load_imbalance: LoadImbalance = 1.0
    placement: Placement = "tp,cp,ep,dp,pp"
    bucket_mib: BucketMib = 25
    no_overlap: NoOverlap = False

    def plan(self) -> Plan:
        """The plan they spell. Raises InvalidPlan or UnknownName."""
        from predictor.parallel.plan import Plan
        from predictor.types import CpKind, OffloadTarget, Recompute, Schedule
        from predictor.units import MIB

        return Plan(
            dp=self.dp,
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            ep=self.ep,
            sequence_parallel=self.sequence_parallel,
            tp_overlap=self.tp_overlap,
            zero=self.zero,
            shard_group=self.shard_group,
            microbatches=self.microbatches,
            schedule=Schedule.parse(self.schedule),
            virtual_stages=self.virtual_stages,
            recompute=Recompute.parse(self.recompute),
            recompute_layers=self.recompute_layers,
            offload=frozenset(part for part in self.offload.split(",") if part),  # type: ignore[misc]
            offload_to=OffloadTarget.parse(self.offload_to),
            cp_kind=CpKind.parse(self.cp_kind),
            ep_copies=self.ep_copies,
            load_imbalance=self.load_imbalance,
            placement=tuple(self.placement.split(",")),
            bucket_bytes=self.bucket_mib * MIB,
            overlap=not self.no_overlap,
        )
