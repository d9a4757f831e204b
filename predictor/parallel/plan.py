"""The plan of a job: which ranks hold what, how they exchange it, and what is recomputed or kept elsewhere.

Ranks are numbered along five axes: tp, cp, ep, dp (what is left of dp outside ep) and pp, the first of
`placement` innermost, so that neighbours in number share a node. With the default order the ranks of one
tensor group are neighbours, as in Megatron-LM (Narayanan et al. 2021, arXiv:2104.04473).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from predictor.checks import whole_number
from predictor.errors import InvalidPlan
from predictor.types import CpKind, Offload, OffloadTarget, Recompute, Schedule
from predictor.units import MIB

AXES = ("tp", "cp", "ep", "dp", "pp")
"""Axes of the rank grid, innermost first by default."""

# Axes of the rank grid that each communication group spans: gradients of dense weights are averaged over all
# replicas and all parts of a sequence, those of experts over the replicas that hold the same expert.
_GROUPS = {
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "dp": ("ep", "dp"),
    "expert_dp": ("dp",),
    "dp_cp": ("cp", "ep", "dp"),
    "expert_dp_cp": ("cp", "dp"),
    "pp": ("pp",),
}
GROUPS = tuple(_GROUPS)
"""Names of the communication groups of a plan."""

_COUNTS = ("dp", "tp", "pp", "cp", "ep", "ep_copies", "microbatches", "virtual_stages")
_MOST_DEVICES = 2**20
"""More than any system has; tables over ranks stay small."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one iteration is split over dp * tp * pp * cp devices; each replica runs global batch / dp samples.

    Attributes:
        dp: replicas. tp: ranks that share each weight. pp: pipeline stages. cp: ranks that share a sequence.
        ep: ranks that share the experts; they are replicas too, so `ep` divides `dp`.
        sequence_parallel: norms, dropouts and residuals between tensor-parallel blocks are split by sequence.
        tp_overlap: with it, gathers and scatters travel in parts beside the products that read or make them.
        zero: what replicas share instead of repeating: 1 optimizer state, 2 and gradients, 3 and parameters.
        shard_group: replicas that share one copy under `zero` (HSDP); None is all of dp.
        microbatches: parts in which a replica runs its batch, in a pipeline or one after the other
            (gradient accumulation).
        schedule, virtual_stages: order of a pipeline's microbatches, and model chunks per device.
        recompute: activations that backward computes again; `recompute_layers` of them, None is all.
        offload, offload_to: what lives outside the device, and where.
        cp_kind: keys and values travel a ring, or heads are exchanged all-to-all.
        ep_copies: experts of a token whose copies travel to a node as one (DeepEP, HybridEP: as many as a
            router chooses); 1 sends every copy, as a plain all-to-all does.
        load_imbalance: tokens of the busiest expert rank over the mean, at least 1.
        bucket_bytes: gradients are reduced in buckets of about this size while backward goes on; torch DDP
            takes 25 MiB.
        overlap: False sends all gradients after backward.
        placement: axes of the rank grid, innermost (same node) first.

    Raises InvalidPlan when numbers are out of range or do not divide one another, UnknownName for a schedule
    and the like that do not exist.
    """

    dp: int = 1
    bucket_bytes: int = 25 * MIB
    overlap: bool = True
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    tp_overlap: bool = False
    zero: int = 0
    shard_group: int | None = None
    microbatches: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    virtual_stages: int = 1
    recompute: Recompute = Recompute.NONE
    recompute_layers: int | None = None
    offload: frozenset[Offload] = frozenset()
    offload_to: OffloadTarget = OffloadTarget.CPU
    cp_kind: CpKind = CpKind.RING
    ep_copies: int = 1
    load_imbalance: float = 1.0
    placement: tuple[str, ...] = AXES

    def __post_init__(self) -> None:
        for name in _COUNTS:
            self._set(name, _whole(name, getattr(self, name)))
        self._set("bucket_bytes", _whole("bucket_bytes", self.bucket_bytes))
        for name in ("shard_group", "recompute_layers"):
            if getattr(self, name) is not None:
                self._set(name, _whole(name, getattr(self, name)))
        if isinstance(self.zero, bool) or self.zero not in (0, 1, 2, 3):
            raise InvalidPlan(f"plan: zero is {self.zero!r}; expected 0, 1, 2 or 3", field="plan.zero")
        self._set("zero", int(self.zero))
        self._set("schedule", Schedule.parse(self.schedule))
        self._set("recompute", Recompute.parse(self.recompute))
        self._set("cp_kind", CpKind.parse(self.cp_kind))
        self._set("offload_to", OffloadTarget.parse(self.offload_to))
        self._set("offload", _offload(self.offload))
        self._set("load_imbalance", _factor(self.load_imbalance))
        self._set("placement", _placement(self.placement))
        self._check_divisions()
        self._check_pipeline()

    @property
    def device_count(self) -> int:
        """Devices the plan uses."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def shard_size(self) -> int:
        """Ranks that share one copy of what `zero` shards; 1 without it.

        Without a `shard_group` all replicas and all parts of their sequences do, as in Megatron-LM and FSDP2.
        """
        if not self.zero:
            return 1
        return self.dp * self.cp if self.shard_group is None else self.shard_group

    @property
    def shared(self) -> int:
        """The stage of `zero` as it acts: 0 where one rank holds the only copy, as FSDP's NO_SHARD."""
        return self.zero if self.shard_size > 1 else 0

    @property
    def splits_graph(self) -> bool:
        """True when a rank runs another graph than the whole one: weights, sequences or experts are split."""
        return self.tp > 1 or self.cp > 1 or self.ep > 1

    @property
    def training_only(self) -> tuple[str, ...]:
        """What it says that means nothing without a backward pass, as `field=value`."""
        bare = self.for_inference()
        fields = ("zero", "schedule", "recompute", "offload")
        return tuple(
            f"{name}={_said(getattr(self, name))}"
            for name in fields
            if getattr(self, name) != getattr(bare, name)
        )

    def for_inference(self) -> Plan:
        """The same plan without what only training has: gradients, optimizer state, kept activations."""
        bubbles = self.schedule is Schedule.ZERO_BUBBLE
        return replace(
            self,
            zero=self.zero if self.zero == _SHARES_WEIGHTS else 0,
            shard_group=self.shard_group if self.zero == _SHARES_WEIGHTS else None,
            schedule=Schedule.ONE_F_ONE_B if bubbles else self.schedule,
            recompute=Recompute.NONE,
            recompute_layers=None,
            offload=self.offload & {Offload.PARAMETERS},
        )

    def group_size(self, group: str) -> int:
        """Ranks of a communication group; see GROUPS. Raises InvalidPlan for a group that does not exist."""
        sizes = self._axis_sizes()
        return prod(sizes[axis] for axis in axes_of(group))

    def group_ranks(self, group: str, rank: int = 0) -> tuple[int, ...]:
        """Numbers of the ranks in the group that holds `rank`, ascending.

        Raises InvalidPlan for a group that does not exist or a rank beyond the plan.
        """
        if not 0 <= rank < self.device_count:
            raise InvalidPlan(
                f"plan: rank {rank} of {self.device_count} devices; expected 0 to {self.device_count - 1}",
                field="rank",
            )
        wanted = axes_of(group)
        sizes, stride, first, steps = self._axis_sizes(), 1, rank, [0]
        for axis in self.placement:
            if axis in wanted:
                first -= rank // stride % sizes[axis] * stride
                steps = [step + index * stride for index in range(sizes[axis]) for step in steps]
            stride *= sizes[axis]
        return tuple(sorted(first + step for step in steps))

    def _axis_sizes(self) -> dict[str, int]:
        return {"tp": self.tp, "cp": self.cp, "ep": self.ep, "dp": self.dp // self.ep, "pp": self.pp}

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_divisions(self) -> None:
        if self.device_count > _MOST_DEVICES:
            raise InvalidPlan(
                f"plan: {self.device_count} devices (dp x tp x pp x cp); expected at most {_MOST_DEVICES}",
                field="plan",
            )
        if self.dp % self.ep:
            raise InvalidPlan(
                f"plan: ep={self.ep} does not divide dp={self.dp}; expert ranks are replicas, so take a "
                f"dp that is a multiple of {self.ep}",
                field="plan.ep",
            )
        if self.shard_group is not None and (not self.zero or self.dp % self.shard_group):
            raise InvalidPlan(
                f"plan: shard_group={self.shard_group} with dp={self.dp} and zero={self.zero}; expected a "
                "divisor of dp, and zero of 1 to 3",
                field="plan.shard_group",
            )
        if self.tp_overlap and not self.sequence_parallel:
            raise InvalidPlan(
                "plan: tp_overlap without sequence_parallel, which makes the gathers and scatters that it "
                "overlaps; set sequence_parallel too",
                field="plan.tp_overlap",
            )
        if self.recompute_layers is not None and self.recompute is Recompute.NONE:
            raise InvalidPlan(
                f"plan: recompute_layers={self.recompute_layers} but recompute is none; set recompute to "
                "selective or full",
                field="plan.recompute_layers",
            )

    def _check_pipeline(self) -> None:
        interleaved = self.schedule is Schedule.INTERLEAVED
        if self.virtual_stages > 1 and not interleaved:
            raise InvalidPlan(
                f"plan: virtual_stages={self.virtual_stages} with schedule {self.schedule}; only interleaved "
                "has several model chunks per device",
                field="plan.virtual_stages",
            )
        if interleaved and self.pp > 1 and (self.virtual_stages < 2 or self.microbatches % self.pp):
            raise InvalidPlan(
                f"plan: interleaved with virtual_stages={self.virtual_stages}, microbatches="
                f"{self.microbatches}, pp={self.pp}; expected at least 2 virtual stages and a multiple of pp "
                "microbatches",
                field="plan.virtual_stages",
            )


_SHARES_WEIGHTS = 3
"""The stage of `zero` that an inference job can have."""


def _said(value: object) -> str:
    return "+".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def _whole(name: str, value: object) -> int:
    what = "1 device" if name == "dp" else "1"
    return whole_number(value, f"plan: {name}", name, f"at least {what}", InvalidPlan)


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < float("inf"):
        raise InvalidPlan(
            f"plan: load_imbalance is {value!r}; expected tokens of the busiest expert rank over the mean, "
            "at least 1",
            field="plan.load_imbalance",
        )
    return float(value)


def _offload(value: object) -> frozenset[Offload]:
    if isinstance(value, str):
        value = [part for part in value.replace("+", ",").split(",") if part.strip()]
    if not isinstance(value, Iterable):
        raise InvalidPlan(
            f"plan: offload is {value!r}; expected a set out of {', '.join(Offload)}", field="plan.offload"
        )
    return frozenset(Offload.parse(str(part).strip()) for part in value)


def _placement(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    order = tuple(str(part).strip().lower() for part in value) if isinstance(value, Iterable) else ()
    if sorted(order) != sorted(AXES):
        raise InvalidPlan(
            f"plan: placement is {value!r}; expected each of {', '.join(AXES)} once, innermost first",
            field="plan.placement",
        )
    return order


def axes_of(group: str) -> tuple[str, ...]:
    """Axes of the rank grid that a group spans. Raises InvalidPlan for a group that does not exist."""
    if group not in _GROUPS:
        raise InvalidPlan(f"plan: no group {group!r}; expected one of {', '.join(GROUPS)}", field="group")
    return _GROUPS[group]
