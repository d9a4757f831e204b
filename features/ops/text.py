"""Strings and pictures. Strings count as pointers; what is done to their letters is not counted."""

from __future__ import annotations

from predictor.features.ops.parts import copy, pointwise, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import WORK_RULES
from predictor.features.programs.work import Elements, Family, OpWork, Rows

# Separable inverse cosine transform of 8x8 blocks: 2 x 8 multiply-adds an element.
_DECODE_FLOPS = 32


@WORK_RULES.register("", "StringConcat", "StringSplit", "StringNormalizer", "RegexFullMatch")
def strings(op: OpView) -> tuple[OpWork, ...]:
    """Reads pointers, writes pointers (or counts, or flags)."""
    return (copy(op, "string", reads=op.present_inputs, writes=op.present_outputs),)


@WORK_RULES.register("", "TfIdfVectorizer")
def n_grams(op: OpView) -> tuple[OpWork, ...]:
    """Zeros, then every n-gram of every length and skip of each row is looked up and counted."""
    data, out = op.input(0), op.output()
    columns = data.shape[-1] if data.shape else 1
    lengths = range(max(1, op.integer("min_gram_length", 1)), op.integer("max_gram_length", 1) + 1)
    rows = data.elements // max(1, columns)
    grams = 0
    for skip in range(op.integer("max_skip_count") + 1):
        # Single words have nothing to skip.
        counted = (length for length in lengths if skip == 0 or length > 1)
        grams += sum(max(0, columns - (length - 1) * (skip + 1)) for length in counted)
    count = work(
        op,
        Family.GATHER,
        "scatter_add",
        Rows(rows, columns),
        reads=(data,),
        writes=(),
        flops=rows * grams,
        extra_write_bytes=rows * grams * out.dtype.bits // 8,
    )
    return copy(op, "fill", reads=(), writes=(out,)), count


@WORK_RULES.register("", "ImageDecoder")
def decode(op: OpView) -> tuple[OpWork, ...]:
    """The compressed bytes in, one inverse cosine transform an element out."""
    return (pointwise(op, "decode", _DECODE_FLOPS),)


@WORK_RULES.register("com.microsoft", "MurmurHash3")
def hashes(op: OpView) -> tuple[OpWork, ...]:
    """Two products, two rotations and three exclusive ors a word, then five to finish."""
    out = op.output()
    return (
        work(
            op,
            Family.ELEMENTWISE,
            "hash",
            Elements(out.elements),
            reads=(op.input(0),),
            writes=(out,),
            flops=12 * out.elements,
        ),
    )
