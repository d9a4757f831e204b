"""Layer, RMS and group normalisation written with reductions and pointwise operators."""

from __future__ import annotations

from itertools import product

from predictor.features.graph import Node
from predictor.features.lowering.patterns.language import FUSING, Builder, Match, rule
from predictor.types import Runtime

_VARIANCES = (
    "Add(ReduceMean(Pow(d, #)), #)",
    "Add(ReduceMean(Mul(d, d)), #)",
    "Add(ReduceMean(Pow(Sub(x, ReduceMean(x)), #)), #)",
)
_CENTRED = "d@Sub(x, m@ReduceMean(x))"
_SCALINGS = (
    "Div({value}, Sqrt({variance}))",
    "Mul({value}, Reciprocal(Sqrt({variance})))",
    "Mul({value}, Div(#, Sqrt({variance})))",
    "Mul({value}, Pow({variance}, #))",
)
_LAYER = tuple(
    scaling.format(value=_CENTRED, variance=variance) for scaling, variance in product(_SCALINGS, _VARIANCES)
)
_RMS = tuple(
    scaling.format(value="Cast?(x)", variance=f"Add(m@ReduceMean({square}), #)")
    for scaling, square in product(_SCALINGS, ("Pow(Cast?(x), #)", "Mul(x, x)"))
)


def _first_reduced_axis(match: Match) -> int | None:
    """The axis from which on everything was reduced; None when other axes were."""
    full, mean = match.shape("x"), match.shape("m")
    if len(mean) != len(full):
        return None
    reduced = [axis for axis, (size, left) in enumerate(zip(full, mean, strict=True)) if left == 1 != size]
    if not reduced or reduced != list(range(reduced[0], len(full))):
        return None
    return reduced[0]


def _row_norm(op_type: str) -> Builder:
    def build(match: Match) -> tuple[Node, ...] | None:
        axis = _first_reduced_axis(match)
        if axis is None:
            return None
        row = match.shape("x")[axis:]
        weights = [match.captures[name] for name in ("w", "b") if name in match.captures]
        if any(match.draft.shape(name) != row for name in weights):
            return None
        if not weights:
            # ONNX asks for a scale; a constant of ones, as the exporters write it from opset 17 on.
            ones = match.draft.new_value(
                f"{match.root.outputs[0]}.scale", row, match.value("x").dtype, like=""
            )
            match.draft.buffers.add(ones)
            weights = [ones]
        return (match.node("", op_type, (match.captures["x"], *weights), axis=axis - len(match.shape("x"))),)

    return build


_layer_norm = _row_norm("LayerNormalization")
_rms_norm = _row_norm("RMSNormalization")


def _exported_layer_norm(match: Match) -> tuple[Node, ...] | None:
    # From opset 17 on the exporters have an operator for it: what is spelled out then was written by hand.
    return _layer_norm(match) if match.draft.graph.opsets.get("", 0) < 17 else None


def _exported_rms_norm(match: Match) -> tuple[Node, ...] | None:
    # The exporter multiplies by the weight from the right, authors (T5's and Llama's code) from the left.
    return _rms_norm(match) if match.root.inputs[1] == match.captures["w"] else None


def _group_norm(match: Match) -> tuple[Node, ...] | None:
    draft, source, grouped = match.draft, match.shape("x"), match.shape("g")
    if len(source) < 3 or len(grouped) < 3 or grouped[0] != source[0] or source[1] % grouped[1]:
        return None
    weights = []
    for name in ("w", "b"):
        value = match.captures[name]
        made_by = draft.node(value)
        if made_by is not None and made_by.op_type == "Unsqueeze":
            value = made_by.inputs[0]
        if draft.values[value].elements not in (source[1], grouped[1]):
            return None
        weights.append(value)
    inputs = (match.captures["x"], *weights)
    return (match.node("", "GroupNormalization", inputs, num_groups=grouped[1]),)


def _batch_statistics(match: Match) -> tuple[Node, ...] | None:
    """A training-mode batch norm computes its statistics itself; the exporter spells them in front of it."""
    root, draft = match.root, match.draft
    if not root.attributes.get("training_mode") or any(
        draft.use_count.get(name, 0) for name in root.outputs[1:]
    ):
        return None
    statistics = []
    for name in root.inputs[3:5]:
        value = draft.values[name]
        statistics.append(draft.new_value(f"{name}.running", value.shape, value.dtype, like=""))
    draft.buffers.update(statistics)
    return (match.node("", "BatchNormalization", (*root.inputs[:3], *statistics), training_mode=1),)


def _scaled_sum(match: Match) -> tuple[Node, ...] | None:
    """torch.addcmul(bias, a, b): the exporter writes `bias + a * b * value`, value a tensor of shape [1]."""
    draft, root = match.draft, match.root
    scaled = draft.node(root.inputs[1])
    if root.inputs[0] != match.captures["bias"] or scaled is None or draft.shape(scaled.inputs[1]) != (1,):
        return None
    return (match.node("perfcast", "Addcmul", tuple(match.captures[name] for name in ("bias", "a", "b"))),)


_INSTANCE = "Reshape(InstanceNormalization(g@Reshape(x, _), {scale}, {bias}), _)"

_LAYER_SPELLINGS = (
    *(f"Add(Mul(Cast?({core}), $w), $b)" for core in _LAYER),
    *(f"Mul(Cast?({core}), $w)" for core in _LAYER),
    *_LAYER,
)
_RMS_SPELLINGS = (*(f"Mul(Cast?({core}), $w)" for core in _RMS), *_RMS)
_RMS_EXPORTED = "Mul(Mul(x, Reciprocal(Sqrt(Add(m@ReduceMean(Pow(x, #)), #)))), $w)"
_BY_HAND = FUSING

RULES = (
    rule("layer_norm", _LAYER_SPELLINGS, _exported_layer_norm),
    rule("layer_norm_by_hand", _LAYER_SPELLINGS, _layer_norm, runtimes=_BY_HAND),
    rule("rms_norm", (_RMS_EXPORTED,), _exported_rms_norm),
    rule("rms_norm_by_hand", _RMS_SPELLINGS, _rms_norm, runtimes=_BY_HAND),
    rule("batch_norm", ("BatchNormalization(x, _, _, ReduceMean(_), ReduceMean(_))",), _batch_statistics),
    rule(
        "group_norm",
        (
            f"Add(Mul({_INSTANCE.format(scale='_', bias='_')}, $w), $b)",
            _INSTANCE.format(scale="$w", bias="$b"),
        ),
        _group_norm,
    ),
    rule("scaled_sum", ("Add(bias, Mul(Mul(a, b), #))",), _scaled_sum, runtimes=(Runtime.EAGER,)),
)
