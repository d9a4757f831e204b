"""Graph -> graph: blocks that exporters spell out become one node, so that they cost what the framework runs.

Emitted nodes (inputs in brackets are optional and may be absent or ""). They may occur in a graph of any
opset, so work rules for them must be registered `since=1`.

Standard domain, inputs and attributes as ONNX defines them:
    LayerNormalization(X, Scale[, B])       axis: int (negative or not)
    RMSNormalization(X, Scale)              axis: int
    GroupNormalization(X, Scale, B)         num_groups: int; Scale and B hold C elements, or one per group
    BatchNormalization(X, Scale, B, m, v)   training_mode: 1 where the file spells its statistics in front
    HardSwish(X), Softplus(X)

Domain `perfcast`:
    Gelu(x)                                 spelling: "erf" | "tanh" | "quick"
    Silu(x)                                 spelling: "sigmoid"
    Mish(x)                                 spelling: "softplus"
    Linear(x[..., in], weight[, bias[out]])
        transposed_weight: 1 when weight is [out, in] (torch), 0 when [in, out]
    Attention(q[B, H, Lq, D], k[B, Hkv, Lk, D], v[B, Hkv, Lk, Dv][, mask])
        causal: 0 | 1, heads: int, kv_heads: int; mask broadcasts to [B, H, Lq, Lk]
    Addcmul(bias, a, b)                     bias + a * b (eager)
    Contiguous(x)
        a copy that the framework makes before a kernel or a Reshape that cannot use x's strides;
        order: axes of the copy, outermost first, where it is not row-major
    FusedPointwise(inputs...) -> escaping outputs       (Runtime.COMPILED only)
        kinds: comma-joined op types, flops: int (total), op_count: int

A fused block also carries `eager_kernel_count`: kernels launched had it been written with single operators.

Marks:
    Conv, perfcast_channels_last = 1        its images lie channels-last
    Add and the like, perfcast_mixed_order = 1
                                            operands are adjacent along different axes: one of them is read
                                            across memory, as a transposition reads
    Conv, perfcast_images_in_place = 1      they lie as its kernel reads them, whatever that is
    Conv, perfcast_fused_bias = 1           its bias is added by the kernel that reads it
    Transpose, perfcast_view = 1            only strides change: after fuse every Transpose and Reshape is
                                            free, and copies are Contiguous nodes; engines without strides:
                                            the kernel beside it reorders
    Slice|Split|Expand, perfcast_copies = 1 a kernel, in engines without strides

Gone afterwards: shape arithmetic, Identity, Cast to the same type, transpositions of a Linear's weight, dead
code. The order of passes for a job is that of `predictor.features.lowering.lower.lower`: autocast decides per
operator, so precision is applied between recognition and a compiler's grouping.
"""

from __future__ import annotations

from predictor.features.draft import Draft
from predictor.features.graph import Graph
from predictor.features.lowering.engine_layout import make_copies_of_dense_tensors
from predictor.features.lowering.grouping import group_pointwise
from predictor.features.lowering.joined_slices import join_slices
from predictor.features.lowering.kernel_free import drop_host_arithmetic, drop_no_ops
from predictor.features.lowering.layout import make_copies_explicit
from predictor.features.lowering.patterns import Candidates
from predictor.features.lowering.patterns.language import Matcher
from predictor.types import Layout, Runtime

DENSE = frozenset({Runtime.ONNXRUNTIME, Runtime.TENSORRT})
"""Runtimes whose tensors have no strides."""


def fuse(graph: Graph, runtime: Runtime = Runtime.EAGER) -> Graph:
    """`graph` with spelled-out blocks as single nodes; with Runtime.COMPILED, pointwise neighbours grouped.

    Applying it twice changes nothing.
    """
    fused = recognise(graph, runtime)
    return group_pointwise(fused) if runtime is Runtime.COMPILED else fused


def recognise(
    graph: Graph, runtime: Runtime = Runtime.EAGER, layout: Layout = Layout.NCHW, release: float = 0.0
) -> Graph:
    """Blocks that `runtime` runs as one kernel made one, shape arithmetic gone, hidden copies visible.

    `release` of torch, as major + minor / 100: older compilers know fewer blocks; 0 is the newest.
    """
    draft = Draft(graph)
    drop_host_arithmetic(draft)
    drop_no_ops(draft)
    join_slices(draft)
    _replace_blocks(draft, runtime, release)
    draft.drop_dead()
    if runtime in DENSE:
        make_copies_of_dense_tensors(draft)
    else:
        make_copies_explicit(draft, images_last=layout is Layout.NHWC)
    return draft.finish()


def _replace_blocks(draft: Draft, runtime: Runtime, release: float) -> None:
    """Tries every spelling at every node, last node first: a block's longest form has the latest root."""
    candidates = Candidates(runtime, frozenset(node.op_type for node in draft.graph.nodes), release)
    for index in range(len(draft.slots) - 1, -1, -1):
        for root in draft.slots[index]:
            if root.domain:
                continue
            for spelling, rule in candidates.at(root.op_type, draft.producer_types(root)):
                found = Matcher(draft).match(spelling, root)
                nodes = rule.build(found[0]) if found else None
                if found and nodes:
                    for node in found[1]:
                        if node is not root:
                            draft.remove(node)
                    slot = draft.slots[index]
                    draft.put(index, tuple(n for old in slot for n in (nodes if old is root else (old,))))
                    break
