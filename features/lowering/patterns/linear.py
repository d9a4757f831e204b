"""Linear layers: a product with a weight, and its bias where it has one."""

from __future__ import annotations

from predictor.features.graph import Node
from predictor.features.lowering.patterns.language import Match, rule


def _linear(match: Match) -> tuple[Node, ...] | None:
    draft = match.draft
    weight, transposed = match.captures["w"], 0
    if len(draft.shape(weight)) != 2:
        return None
    # torch stores [out, in]; the exporter transposes it in the graph, which costs nothing at run time.
    made_by = draft.node(weight)
    if made_by is not None and made_by.op_type == "Transpose":
        weight, transposed = made_by.inputs[0], 1
    product = draft.node(match.captures["y"]) if "y" in match.captures else match.root
    assert product is not None
    if product.op_type == "Gemm":
        factors = (product.attributes.get(name, 1.0) for name in ("alpha", "beta"))
        if product.attributes.get("transA", 0) or any(factor != 1.0 for factor in factors):
            return None
        transposed ^= int(bool(product.attributes.get("transB", 0)))
    out_features = draft.shape(weight)[0 if transposed else 1]
    inputs = [match.captures["x"], weight]
    if "b" in match.captures:
        if draft.shape(match.captures["b"]) != (out_features,):
            return None
        inputs.append(match.captures["b"])
    return (match.node("perfcast", "Linear", tuple(inputs), transposed_weight=transposed),)


RULES = (
    rule(
        "linear",
        ("Add(y@MatMul|Gemm(x, $w), $b)", "Gemm(x, $w, $b)", "MatMul|Gemm(x, $w)"),
        _linear,
    ),
)
