"""Kernels that move elements: copies, casts, fills, joins, look-ups and their gradients."""

from __future__ import annotations

from dataclasses import replace

from predictor.features.dtype import DType
from predictor.features.lowering.strides import is_row_major
from predictor.features.programs.work import Elements, Family, OpWork, Rows
from predictor.features.torch_capture.call_view import (
    ATEN_RULES,
    CallView,
    elementwise,
    moved,
    stored_bytes,
    vector_work,
)
from predictor.features.torch_capture.calls import Tensor

_FREE = (
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "detach",
    "alias",
    "lift",
    "lift_fresh_copy",
    "resize",
    "set",
    "is_same_size",
    "record_stream",
    "_assert_async",
    "_unsafe_view",
    "view_as_real",
    "view_as_complex",
    # Marks on a tensor; the kernel that reads it does the work.
    "_conj",
    "_neg_view",
)


@ATEN_RULES.register("aten", *_FREE)
def nothing(view: CallView) -> tuple[OpWork, ...]:
    """Memory without contents, or another name for it."""
    return ()


_FILLS = (
    "zeros",
    "ones",
    "full",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "zero",
    "fill",
    "arange",
    "linspace",
    "logspace",
    "eye",
    "tril_indices",
    "triu_indices",
)


@ATEN_RULES.register("aten", *_FILLS)
def fill(view: CallView) -> tuple[OpWork, ...]:
    """Writes only."""
    return (elementwise(view, "fill", 0, reads=()),)


def _copy_kind(source: Tensor, target: Tensor) -> str:
    if source.dtype is not target.dtype:
        return "cast"
    return "copy" if source.strides == target.strides else "transpose"


@ATEN_RULES.register("aten", "clone", "_to_copy", "contiguous", "_reshape_copy", "view_copy", "lift_fresh")
def clone(view: CallView) -> tuple[OpWork, ...]:
    """A copy in another order or type."""
    source = view.inputs[0] if view.inputs else view.output
    if source.shape != view.output.shape:
        kind = "transpose" if not is_row_major(source.shape, source.strides) else "copy"
    else:
        kind = _copy_kind(source, view.output)
    return (moved(view, kind, (source,), (view.output,)),)


@ATEN_RULES.register("aten", "copy", "_foreach_copy")
def copy_into(view: CallView) -> tuple[OpWork, ...]:
    """Overwrites the target without reading it."""
    if view.call.op == "_foreach_copy":
        return (moved(view, "copy", view.tensors("src"), view.call.outputs),)
    source = view.optional("src") or view.inputs[-1]
    return (moved(view, _copy_kind(source, view.output), (source,), (view.output,)),)


@ATEN_RULES.register("aten", "cat", "stack", "_chunk_cat")
def concatenate(view: CallView) -> tuple[OpWork, ...]:
    """All parts into one new tensor."""
    return (moved(view, "concat", view.inputs, (view.output,)),)


_MOVES = {
    "constant_pad_nd": "pad",
    **{f"{kind}_pad{rank}d": "pad" for kind in ("reflection", "replication") for rank in (1, 2, 3)},
    **{f"{kind}_pad{rank}d_backward": "pad" for kind in ("reflection", "replication") for rank in (1, 2, 3)},
    "repeat": "tile",
    "flip": "flip",
    "roll": "flip",
    "rot90": "flip",
    "tril": "tril",
    "triu": "tril",
    "pixel_shuffle": "transpose",
    "pixel_unshuffle": "transpose",
    "channel_shuffle": "transpose",
    "native_channel_shuffle": "transpose",
    "split_with_sizes_copy": "split",
    "diag_embed": "copy",
    "_pack_padded_sequence": "pad",
    "_pad_packed_sequence": "pad",
    "unfold_copy": "copy",
    "one_hot": "one_hot",
    "block_diag": "concat",
}


@ATEN_RULES.register("aten", *_MOVES)
def move(view: CallView) -> tuple[OpWork, ...]:
    """Reads what is there, writes the result."""
    return (moved(view, _MOVES[view.call.op], view.inputs, view.call.outputs),)


_PART_GRADIENTS = ("select_backward", "slice_backward", "diagonal_backward", "as_strided_scatter")


@ATEN_RULES.register("aten", *_PART_GRADIENTS, "select_scatter", "slice_scatter")
def part_gradient(view: CallView) -> tuple[OpWork, ...]:
    """Zeros of the whole (or a copy of it), then the part written into it."""
    part = view.inputs[-1]
    into = replace(part, storage=view.output.storage)
    whole = (
        fill(view)
        if view.call.op.endswith("_backward")
        else (moved(view, "copy", view.inputs[:1], (view.output,)),)
    )
    return (*whole, moved(view, "slice", (part,), (into,)))


def _like(tensor: Tensor, dtype: DType | None = None) -> Tensor:
    """A tensor of the same shape elsewhere in memory."""
    return replace(tensor, storage=-1, dtype=dtype or tensor.dtype)


@ATEN_RULES.register("aten", "embedding", "index_select", "index", "gather", "take", "_unsafe_index")
def gather(view: CallView) -> tuple[OpWork, ...]:
    """Reads only the rows that are picked, and the indices."""
    table, out = view.inputs[0], view.output
    kind = "embedding" if table.is_weight else "gather"
    picked = _like(out, table.dtype)
    work = vector_work(Family.GATHER, kind, Elements(out.elements), (picked, *view.inputs[1:]), (out,))
    if not table.is_weight:
        return (work,)
    read = min(picked.stored.size_bytes, table.stored.size_bytes)
    return (replace(work, parameter_bytes=read),)


@ATEN_RULES.register("aten", "masked_select", "nonzero", "unique_consecutive", "_unique2", "unique_dim")
def select_present(view: CallView) -> tuple[OpWork, ...]:
    """A scan over the input."""
    source = view.inputs[0]
    work = vector_work(
        Family.REDUCTION,
        "scan",
        Elements(source.elements),
        view.inputs,
        view.call.outputs,
        flops=source.elements,
        launches=3,
    )
    return (replace(work, shape=Rows(1, source.elements)),)


@ATEN_RULES.register("aten", "embedding_dense_backward", "embedding_backward")
def embedding_backward(view: CallView) -> tuple[OpWork, ...]:
    """Zeros of the table's size, the indices sorted, the rows added."""
    gradient, indices, table = view.tensor("grad_output"), view.tensor("indices"), view.output
    sorting = vector_work(Family.REDUCTION, "sort", Elements(indices.elements), (indices,), (_like(indices),))
    return (
        elementwise(view, "fill", 0, (), (table,)),
        sorting,
        _scatter_add(gradient, indices, _like(gradient)),
    )


def _scatter_add(updates: Tensor, indices: Tensor, target: Tensor) -> OpWork:
    return vector_work(
        Family.GATHER,
        "scatter_add",
        Elements(updates.elements),
        (updates, indices),
        (target,),
        flops=updates.elements,
    )


_SCATTERS = {
    "scatter": "src",
    "scatter_add": "src",
    "scatter_reduce": "src",
    "index_add": "source",
    "index_copy": "source",
    "index_fill": "",
    "index_put": "values",
    "_index_put_impl": "values",
    "_unsafe_index_put": "values",
    "masked_scatter": "source",
    "put": "source",
}


@ATEN_RULES.register("aten", *_SCATTERS)
def scatter(view: CallView) -> tuple[OpWork, ...]:
    """Updates written or added at places; a copy of the whole first unless it happens in place."""
    whole, out = view.inputs[0], view.output
    name = _SCATTERS[view.call.op]
    updates = view.optional(name) if name else None
    indices = [item for item in view.inputs[1:] if item is not updates]
    added = view.call.op in ("scatter_add", "index_add") or bool(view.integer("accumulate"))
    source = updates or (indices[0] if indices else whole)
    written = replace(source, storage=-1, dtype=out.dtype)
    work = vector_work(
        Family.GATHER,
        "scatter_add" if added else "scatter",
        Elements(source.elements),
        (*((updates,) if updates else ()), *indices),
        (written,),
        flops=source.elements if added else 0,
    )
    if whole.storage == out.storage:
        return (work,)
    return (moved(view, "copy", (whole,), (out,)), work)


@ATEN_RULES.register("aten", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(view: CallView) -> tuple[OpWork, ...]:
    """Rows picked and summed per bag."""
    table, indices, out = view.tensor("weight"), view.tensor("indices"), view.output
    width = table.shape[-1]
    count = indices.elements * width
    read = count * table.dtype.bits // 8
    work = vector_work(
        Family.GATHER,
        "embedding",
        Elements(count),
        (indices,),
        (out,),
        flops=count,
        read_bytes=read + stored_bytes((indices,)),
    )
    return (replace(work, parameter_bytes=min(read, table.stored.size_bytes)),)


@ATEN_RULES.register("aten", "_embedding_bag_dense_backward", "_embedding_bag_backward")
def embedding_bag_backward(view: CallView) -> tuple[OpWork, ...]:
    """As an embedding: zeros, sort, rows added."""
    gradient, indices, table = view.tensor("grad"), view.tensor("indices"), view.output
    width = table.shape[-1]
    rows = replace(gradient, shape=(indices.elements, width), strides=(width, 1), storage=-1)
    sorting = vector_work(Family.REDUCTION, "sort", Elements(indices.elements), (indices,), (_like(indices),))
    return (elementwise(view, "fill", 0, (), (table,)), sorting, _scatter_add(rows, indices, _like(rows)))


@ATEN_RULES.register("aten", "unfold_backward")
def unfold_backward(view: CallView) -> tuple[OpWork, ...]:
    """Zeros, then windows added."""
    windows = view.tensor("grad_in")
    return (*fill(view), _scatter_add(windows, replace(windows, shape=(0,), strides=(1,)), _like(windows)))
