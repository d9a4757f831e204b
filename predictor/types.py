"""The values that cross every layer: closed sets, intervals and the prediction itself.

No behaviour, no heavy import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from predictor.errors import UnknownName

PREDICTION_SCHEMA = "perfcast.prediction/1"


class _Choice(StrEnum):
    """A closed set whose members are parsed with a helpful error."""

    @classmethod
    def parse(cls, text: str | Self) -> Self:
        """The member named `text` (any case). Raises UnknownName listing near names."""
        try:
            return cls(str(text).lower())
        except ValueError:
            raise UnknownName.among(_words(cls.__name__), str(text), [m.value for m in cls]) from None


def _words(name: str) -> str:
    """`OffloadTarget` as people write it: `offload target`."""
    return "".join(f" {char}" if char.isupper() else char for char in name).strip().lower()


class Mode(_Choice):
    """What one iteration is: a forward pass, or forward + backward (+ optimizer step)."""

    INFER = "infer"
    TRAIN = "train"


class Precision(_Choice):
    """Numeric policy of the job.

    FP64, FP16 and BF16 convert every tensor; FP32 keeps TF32 off; TF32 keeps FP32 tensors and multiplies on
    tensor cores; AMP is 16-bit autocast (torch's op lists) with FP32 master weights.
    """

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    AMP = "amp"


class Optimizer(_Choice):
    """Update rule of the training step. NONE prices forward + backward only."""

    NONE = "none"
    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    ADAMW = "adamw"


class Runtime(_Choice):
    """How kernels are launched: one by one, fused by a compiler, or as an inference engine plans."""

    EAGER = "eager"
    COMPILED = "compiled"
    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


class Schedule(_Choice):
    """Order in which a pipeline runs its microbatches.

    GPIPE: all forward, then all backward. ONE_F_ONE_B: one of each in turn. INTERLEAVED: that over several
    chunks of the model per device. ZERO_BUBBLE: weight gradients fill the bubbles (Qi et al. 2023, ZB-H1).
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero_bubble"


class Recompute(_Choice):
    """Activations that backward computes again instead of keeping them.

    SELECTIVE: those of attention (Korthikanti et al. 2022). FULL: all but each layer's input.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Offload(_Choice):
    """What may live outside the device and visits it when needed."""

    OPTIMIZER = "optimizer"
    PARAMETERS = "parameters"
    ACTIVATIONS = "activations"


class OffloadTarget(_Choice):
    """Where it lives."""

    CPU = "cpu"
    NVME = "nvme"


class CpKind(_Choice):
    """How ranks that share a sequence attend to all of it.

    RING: keys and values go round (Liu et al. 2023). ALL_TO_ALL: sequence shards become head shards and back
    (DeepSpeed-Ulysses, Jacobs et al. 2023).
    """

    RING = "ring"
    ALL_TO_ALL = "all_to_all"


class Trainer(_Choice):
    """Whose modules run an eager training job: what the host does for each kernel, and how weights step.

    TORCH: torch's own. MEGATRON: a training framework's, which run much Python per kernel and step in one
    kernel. AUTO: a framework's where tensors, sequences or experts are split over ranks, else torch's.
    """

    AUTO = "auto"
    TORCH = "torch"
    MEGATRON = "megatron"


class Layout(_Choice):
    """How image tensors lie in memory: channels before space, or channels last (torch's channels_last)."""

    NCHW = "nchw"
    NHWC = "nhwc"


class Weights(_Choice):
    """How an inference job stores the weights of its products; heads, routers and embeddings stay FULL.

    FULL: in the job's precision. INT8, INT4: integers that the product widens. FP8: activations as well.
    """

    FULL = "full"
    INT8 = "int8"
    INT4 = "int4"
    FP8 = "fp8"


class TrainingArchitecture(_Choice):
    """How a job's replicas exchange weights, in the words of Wang et al. 2019 (arXiv:1910.05930).

    ONE_GPU: 1w1g, one device. ONE_SERVER: 1wng, several devices of one server, weights on its host.
    PS_WORKER: parameter servers in a cluster. ALLREDUCE_LOCAL: one NVLink server. ALLREDUCE_CLUSTER: several.
    PEARL: dense weights replicated, embeddings partitioned over devices of NVLink servers.
    """

    ONE_GPU = "1w1g"
    ONE_SERVER = "1wng"
    PS_WORKER = "ps_worker"
    ALLREDUCE_LOCAL = "allreduce_local"
    ALLREDUCE_CLUSTER = "allreduce_cluster"
    PEARL = "pearl"


class ServerPlacement(_Choice):
    """Where parameter servers run (Luo et al. 2018): with the workers or apart, one or as many as workers."""

    COLOCATED_CENTRAL = "cc"
    COLOCATED_SHARDED = "cs"
    SEPARATE_CENTRAL = "ncc"
    SEPARATE_SHARDED = "ncs"


@dataclass(frozen=True, slots=True)
class Interval:
    """A central value with the bounds of a `coverage` prediction interval; low <= value <= high."""

    value: float
    low: float
    high: float
    coverage: float = 0.9

    @classmethod
    def exact(cls, value: float) -> Interval:
        """A quantity without uncertainty."""
        return cls(value, value, value)

    def scaled(self, factor: float) -> Interval:
        """The interval times a positive number."""
        return Interval(self.value * factor, self.low * factor, self.high * factor, self.coverage)

    def inverse(self, numerator: float) -> Interval:
        """numerator / x, bounds swapped."""
        return Interval(numerator / self.value, numerator / self.high, numerator / self.low, self.coverage)


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning that travels in the answer: a stable code and a sentence a person can act on."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of the predicted time by where the knowledge came from; they sum to 1."""

    measured: float = 0.0
    learned: float = 0.0
    analytic: float = 0.0
    fallback: float = 0.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one iteration costs beyond the boards; None and "" are unknown, never 0.

    Attributes:
        scope: `device`, `node` or `facility`; `energy_j` is of it, and `parts_j` sums to its value.
        site: code of the place. node_count: nodes used, a share where the job fills none. pue: applied once.
        intensity_g_per_kwh: of the grid, the range of the tables that disagree.
        carbon_g: g CO2e, `embodied_g` included where that is known. carbon_note, cost_note: where the figures
            are from, or why there is none.
    """

    scope: str
    energy_j: Interval
    parts_j: Mapping[str, float]
    site: str = ""
    node_count: float = 1.0
    pue: float | None = None
    intensity_g_per_kwh: Interval | None = None
    carbon_g: Interval | None = None
    carbon_note: str = ""
    embodied_g: float | None = None
    cost_usd: Interval | None = None
    cost_note: str = ""

    @property
    def energy_kwh(self) -> Interval:
        """The energy in kWh."""
        return self.energy_j.scaled(1 / 3.6e6)


SURELY_FITS = 0.95
"""Chance below which an answer says that the job may not fit: where a bound of 90 % ends."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer to one request.

    `time_breakdown_s` sums to `iteration_time_s.value`, `memory_breakdown_bytes` to
    `device_peak_bytes.value`, `energy_breakdown_j` to `energy_j.value`. Energy is per iteration over all
    devices of the plan, scope `device`.
    """

    iteration_time_s: Interval
    throughput_samples_per_s: Interval
    device_peak_bytes: Interval
    allocator_peak_bytes: Interval
    fits: bool
    energy_j: Interval
    average_power_w: Interval
    time_breakdown_s: Mapping[str, float]
    memory_breakdown_bytes: Mapping[str, float]
    energy_breakdown_j: Mapping[str, float]
    coverage: Coverage
    bundle: str
    graph: str
    device: str
    device_count: int = 1
    capacity_bytes: float = 0.0
    fit_probability: float = 1.0
    """Chance that the job runs in the device's memory; `fits` is that it more likely does than not."""
    out_of_range: bool = False
    warnings: tuple[Notice, ...] = field(default=())
    schema: str = PREDICTION_SCHEMA
    energy_scope: str = "device"
    """What `energy_j` and `average_power_w` are of: the boards. The footprint names its own scope."""
    footprint: Footprint | None = None
    """With a request's accounting: the node and the building, carbon and money."""


@dataclass(frozen=True, slots=True)
class OpCostRow:
    """All equal ops of an iteration: what they cost and why.

    bound: `compute`, `memory`, `launch` or `network`, whichever sets the physical floor.
    source: `learned`, `analytic` or `fallback`.
    """

    op_type: str
    family: str
    kind: str
    phase: str
    count: int
    time_s: float
    share_fraction: float
    floor_s: float
    flops: int
    moved_bytes: int
    bound: str
    source: str
    example_node: str


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """What one group of ranks exchanges, and where its times come from.

    Attributes:
        group: tp, cp, ep, pp, dp_cp or expert_dp_cp. collective: its main one.
        source: `learned` from `systems` that timed it, or `analytic`: formulas on achieved bandwidths.
        log_spread: 90 % log half-width of its times.
    """

    group: str
    collective: str
    ranks: int
    nodes: int
    link: str
    source: str
    systems: tuple[str, ...]
    log_spread: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """A prediction with its op groups, most expensive first, and what its ranks exchange."""

    prediction: Prediction
    rows: tuple[OpCostRow, ...]
    exchanges: tuple[ExchangeRow, ...] = ()
