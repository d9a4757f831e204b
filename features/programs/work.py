"""What an op asks of a device: FLOPs, bytes and the shape facts that decide how well a kernel can use it.

An OpWork names neither the device nor the node, so equal ones are one: a 1284-node transformer has some
forty. One FLOP is one floating-point operation; a multiply-add counts 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from predictor.features.dtype import Compute
from predictor.types import Notice

if TYPE_CHECKING:
    from predictor.features.programs.memory_timeline import MemoryTimeline


class Family(StrEnum):
    """Groups of ops that one cost model serves."""

    MATMUL = "matmul"
    BATCHED_MATMUL = "batched_matmul"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    POOLING = "pooling"
    GATHER = "gather"
    COPY = "copy"
    RECURRENT = "recurrent"
    OPTIMIZER = "optimizer"
    # No rule: priced by the bytes it must move.
    UNKNOWN = "unknown"
    # Between ranks: priced by the links of a cluster, never by a device.
    COMMUNICATION = "communication"


IMAGE_CONVERSION = "image_conversion"
"""Kind of the copies in which a convolution's library turns images into the order that its tensor cores read.
Only devices that have such units run them."""


class Phase(StrEnum):
    """Where in the iteration an op runs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Contraction:
    """`batch` independent products of (m x k) by (k x n)."""

    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution in any number of spatial dimensions, as the forward pass sees it.

    `pass_name` is "forward", "data_gradient" or "weight_gradient"; the geometry is the forward one in all
    three. `channels_last`: the images lie so in memory, whatever the job asked for.
    """

    samples: int
    in_channels: int
    out_channels: int
    groups: int
    in_spatial: tuple[int, ...]
    out_spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pass_name: str = "forward"
    transposed: bool = False
    channels_last: bool = False

    @property
    def is_depthwise(self) -> bool:
        """One input channel a group."""
        return self.groups == self.in_channels > 1


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Scaled dot-product attention computed by one fused kernel.

    `kv_length` counts what a cache carries along; a causal mask is aligned at the last key. `window` is how
    many keys up to its own a query sees, 0 for all.
    """

    batch: int
    heads: int
    kv_heads: int
    q_length: int
    kv_length: int
    head_dim: int
    value_dim: int
    causal: bool
    window: int = 0

    @property
    def pairs(self) -> int:
        """Scores per head that a kernel computes: those that the mask and the window leave."""
        if not self.causal:
            return self.q_length * self.keys_seen
        hidden = min(self.q_length, self.kv_length)
        full = self.q_length * self.kv_length - hidden * (hidden - 1) // 2
        if not self.window:
            return full
        # The query whose last key is the e-th loses e - window keys.
        beyond = self.kv_length - self.window
        return full - _triangle(beyond) + _triangle(beyond - self.q_length)

    @property
    def keys_seen(self) -> int:
        """Keys of a sequence that some query sees: what a kernel must read."""
        if not self.window:
            return self.kv_length
        return min(self.kv_length, self.window + (self.q_length - 1 if self.causal else 0))


def has_images(works: Iterable[OpWork]) -> bool:
    """Whether any of them is a convolution: what is laid out, and corrected, as images are."""
    return any(work.family is Family.CONVOLUTION for work in works)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2 if n > 0 else 0


@dataclass(frozen=True, slots=True)
class Rows:
    """`rows` independent rows of `columns` elements: softmax, norms, reductions."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Elements:
    """`count` independent output elements."""

    count: int


class Collective(StrEnum):
    """What the ranks of a group exchange."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND_RECV = "send_recv"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One exchange among the `ranks` members of a plan's group (predictor.parallel.plan.GROUPS).

    `size_bytes` is the larger of the buffers that a rank puts in and gets out: the whole tensor of an
    all-reduce, all-gather or reduce-scatter, what a rank holds in an all-to-all, the message of a send.
    """

    kind: Collective
    group: str
    ranks: int
    size_bytes: int

    @property
    def sent_bytes(self) -> float:
        """Bytes that each rank sends: (n - 1) / n of the size, twice that in a ring all-reduce."""
        if self.kind in (Collective.SEND_RECV, Collective.BROADCAST):
            return float(self.size_bytes) if self.ranks > 1 else 0.0
        passes = 2 if self.kind is Collective.ALL_REDUCE else 1
        return passes * (self.ranks - 1) / self.ranks * self.size_bytes


WorkShape: TypeAlias = Contraction | Convolution | AttentionShape | Rows | Elements | Transfer


@dataclass(frozen=True, slots=True)
class OpWork:
    """The work of one op (one or a few kernels).

    Attributes:
        family: which cost model answers.
        kind: finer name inside the family (`relu`, `layer_norm`, `max_pool`, `adamw` ...).
        phase: forward, backward or optimizer.
        compute: arithmetic type of the matrix part (of the vector part where there is none).
        shape: the family's shape facts.
        element_bits: storage width of the widest float operand.
        matrix_flops: FLOPs a matrix unit can do (products and convolutions).
        vector_flops: all other FLOPs.
        read_bytes, write_bytes: traffic if every operand crossed the memory bus exactly once.
        parameter_bytes: the part of `read_bytes` that is weights.
        launch_count: kernels launched in eager mode; 0 for pure views.
    """

    family: Family
    kind: str
    phase: Phase
    compute: Compute
    shape: WorkShape
    element_bits: int
    matrix_flops: int
    vector_flops: int
    read_bytes: int
    write_bytes: int
    parameter_bytes: int = 0
    launch_count: int = 1

    @property
    def flops(self) -> int:
        """All FLOPs."""
        return self.matrix_flops + self.vector_flops

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes

    @property
    def host_launches(self) -> int:
        """Kernels for which the host takes its time.

        Where gradients meet, autograd's engine adds them without a node of their own. On slow hosts they take
        none: counted like others, training a DenseNet-201 (1,400 of 3,800 kernels) is 40 % too slow.
        Conversions of images are launched within the call of their convolution.
        """
        meets = self.kind == "add" and self.phase is Phase.BACKWARD
        return 0 if meets or self.kind == IMAGE_CONVERSION else self.launch_count

    def in_phase(self, phase: Phase) -> OpWork:
        """The same work in another phase."""
        return self if self.phase is phase else replace(self, phase=phase)


@dataclass(frozen=True, slots=True)
class OpInstance:
    """One op of the program: its work and the node it came from (for explanations and schedules)."""

    work: OpWork
    node: str
    op_type: str
    covered: bool = True
    """False when no rule knew the op and the bytes-moved fallback priced it."""
    replayed: bool = False
    """A kernel of forward that backward runs again for activations that were not kept."""

    @property
    def kernel(self) -> OpWork:
        """What the device runs: a replayed kernel is the one of forward, whenever it runs."""
        return self.work.in_phase(Phase.FORWARD) if self.replayed else self.work


@dataclass(frozen=True, slots=True)
class MemoryWork:
    """Bytes one device must hold for one iteration, before any allocator or runtime overhead.

    Attributes:
        parameter_bytes, gradient_bytes, optimizer_state_bytes, buffer_bytes: persistent tensors
            (buffers: BatchNorm statistics, index tables).
        input_bytes: the batch itself.
        activation_bytes: at the peak, tensors saved for backward (training) or alive (inference).
        transient_bytes: at the peak, everything else alive: temporaries, gradients of activations.
        saved_bytes: all that the forward pass leaves for backward, whenever it is freed; 0 in inference.
        live_peak_bytes: most bytes alive at once over the whole iteration, persistent tensors included.
        reserved_bytes: what a caching allocator holds after two iterations, kernels' workspace left out.
        workspace_reserved_bytes: the same when each convolution also takes workspace of its operands' size.
        large_workspace_reserved_bytes: the same with four times that.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    buffer_bytes: int
    input_bytes: int
    activation_bytes: int
    transient_bytes: int
    live_peak_bytes: int = 0
    reserved_bytes: int = 0
    workspace_reserved_bytes: int = 0
    large_workspace_reserved_bytes: int = 0
    saved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ParameterGradient:
    """A parameter's gradient becomes ready after backward op number `op_index` of the program."""

    parameter: str
    size_bytes: int
    op_index: int


@dataclass(frozen=True, slots=True)
class Program:
    """One iteration of one rank, in execution order: ops, memory and when each gradient is ready."""

    ops: tuple[OpInstance, ...]
    memory: MemoryWork
    gradients: tuple[ParameterGradient, ...]
    parameter_count: int
    batch: int
    fingerprint: str
    notes: tuple[Notice, ...] = ()
    """What was assumed about the model: sizes that depend on data, trip counts, branches."""
    timeline: MemoryTimeline | None = field(default=None, compare=False, repr=False)
    """What `memory` sums up, tensor by tensor; None where a program was read back from a cache."""
