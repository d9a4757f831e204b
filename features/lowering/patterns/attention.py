"""Attention: call sites of the framework's fused kernel, and hand-written ones that a compiler recognises.

Both exporters of torch spell `scaled_dot_product_attention` with the square root of the scale on *both*
operands of the first product. Nobody writes that by hand, so it marks a call of the fused kernel.
Attention written out by the model's author scales the scores (or one operand); eager mode runs it op by
op, while torch.compile replaces the forms with the scale on the scores, or none, when the operands have
four dimensions; scores that are chosen by a mask (GPT-2 in transformers) since torch 2.3. Before torch 2.0
there was no fused kernel: what calls it today was written out, with the scale on the scores.
"""

from __future__ import annotations

from predictor.features.draft import CONSTANT, Draft
from predictor.features.graph import Node
from predictor.features.lowering.patterns.language import FUSING, Match, rule

_SCORES = {"marked": "MatMul(Mul(q, #), Mul(k, #))", "plain": "Div?(Mul?(MatMul(q, k), #), #)"}
_ADDED = ("Add?({scores}, mask)",)
_CHOSEN = (
    "Where(mask, {scores}, #)",
    "Where(mask, #, {scores})",
    "Add(Where(causal, {scores}, #), mask)",
)
# A row that is masked throughout gives NaN, which the exporter spells as a replacement after the softmax.
_SOFTMAX = ("Cast?(Softmax(Cast?({masked})))", "Where(IsNaN(p), #, p@Softmax({masked}))")


_CHOSEN_SINCE = 2.03
FUSED_SINCE = 2.0
"""Release of torch from which on eager mode runs attention as one kernel."""


def _spellings(kind: str, forms: tuple[str, ...] = _ADDED + _CHOSEN) -> tuple[str, ...]:
    scores = [masked.format(scores=_SCORES[kind]) for masked in forms]
    return tuple(f"MatMul({form.format(masked=masked)}, v)" for form in _SOFTMAX for masked in scores)


def _attention(match: Match) -> tuple[Node, ...] | None:
    draft = match.draft
    query, transposed_key, value = (match.shape(name) for name in "qkv")
    # Other ranks take the decomposed path in the framework too.
    if not len(query) == len(transposed_key) == len(value) == 4:
        return None
    mask = match.captures.get("mask", "")
    causal = _is_causal(draft, mask, query[2], value[2])
    if "causal" in match.captures:
        if not _is_causal(draft, match.captures["causal"], query[2], value[2]):
            return None
        causal = True
    elif causal:
        mask = ""
    key, extra = _untransposed(draft, match.captures["k"], match.root.name)
    key, heads_k = _before_repeat(draft, key)
    val, heads_v = _before_repeat(draft, match.captures["v"])
    if heads_k != heads_v:
        return None
    inputs = (match.captures["q"], key, val, *([mask] if mask else []))
    node = match.node("perfcast", "Attention", inputs, causal=int(causal), heads=query[1], kv_heads=heads_k)
    return (*extra, node)


def _by_hand(match: Match) -> tuple[Node, ...] | None:
    # The compiler's patterns do not cover a query that was scaled before the product.
    query = match.draft.node(match.captures["q"])
    if query is not None and query.op_type in ("Mul", "Div"):
        return None
    return _attention(match)


def _is_causal(draft: Draft, mask: str, q_length: int, kv_length: int) -> bool:
    """A square constant mask, equal for all samples and heads, is the causal triangle."""
    if not mask or draft.depends_on(mask) != CONSTANT or q_length < 2:
        return False
    *leading, rows, columns = (1, 1, *draft.shape(mask))
    return rows == columns == q_length == kv_length and all(size == 1 for size in leading)


def _untransposed(draft: Draft, value: str, stem: str) -> tuple[str, tuple[Node, ...]]:
    """[B, H, D, L] -> the name of [B, H, L, D], with a view node where no such value exists yet."""
    node, shape = draft.node(value), draft.shape(value)
    wanted = (*shape[:2], shape[3], shape[2])
    source, order = value, [0, 1, 3, 2]
    if node is not None and node.op_type == "Transpose":
        permutation = node.attributes.get("perm")
        if isinstance(permutation, tuple) and len(permutation) == 4:
            source, order = node.inputs[0], [int(permutation[axis]) for axis in order]
    elif node is not None and node.op_type == "Reshape":
        folded = _folded_source(draft, node)
        if folded and draft.shape(folded) == wanted:
            return folded, ()
        repeated, heads = _before_repeat(draft, folded) if folded else ("", 0)
        if heads and repeated != folded:
            return repeated, ()
    if order == [0, 1, 2, 3]:
        return source, ()
    key = draft.new_value(f"{stem}.key", wanted, draft.values[value].dtype, like=value)
    return key, (Node(f"{stem}.key", "Transpose", (source,), (key,), "", {"perm": tuple(order)}),)


def _folded_source(draft: Draft, node: Node) -> str:
    """x of Reshape(Transpose(Reshape(x))): dynamo folds batch and heads around a transposition."""
    inner = draft.node(node.inputs[0])
    outer = draft.node(inner.inputs[0]) if inner is not None and inner.op_type == "Transpose" else None
    return outer.inputs[0] if outer is not None and outer.op_type == "Reshape" else ""


def _before_repeat(draft: Draft, value: str) -> tuple[str, int]:
    """Keys or values before each head was repeated for its group of queries, and their number of heads."""
    name = value
    node = draft.node(name)
    while node is not None and node.op_type == "Reshape":
        name = node.inputs[0]
        node = draft.node(name)
    if node is not None and node.op_type == "Expand" and len(draft.shape(name)) == 5:
        inner = draft.node(node.inputs[0])
        before = draft.shape(node.inputs[0])
        if inner is not None and inner.op_type == "Unsqueeze" and before[2:3] == (1,) and len(before) == 5:
            return inner.inputs[0], before[1]
    return value, draft.shape(value)[1]


def _native(match: Match) -> tuple[Node, ...] | None:
    query, key, value = (match.shape(name) for name in "qkv")
    if not len(query) == len(key) == len(value) == 4:
        return None
    extra = match.root.inputs[3:4]
    causal = int(bool(match.root.attributes.get("is_causal", 0)))
    inputs = (*match.root.inputs[:3], *(name for name in extra if name))
    return (match.node("perfcast", "Attention", inputs, causal=causal, heads=query[1], kv_heads=key[1]),)


def _scaled_scores(match: Match) -> tuple[Node, ...] | None:
    """One scale on the scores in the place of one on each operand."""
    draft, root = match.draft, match.root
    scaled = draft.node(root.inputs[0])
    if scaled is None or not len(match.shape("q")) == len(draft.shape(root.outputs[0])) == 4:
        return None
    scale = next(name for name in scaled.inputs if name != match.captures["q"])
    made = draft.values[root.outputs[0]]
    scores = draft.new_value(f"{root.name}.scores", made.shape, made.dtype, like=root.outputs[0])
    product = Node(root.name, "MatMul", (match.captures["q"], match.captures["k"]), (scores,))
    return product, Node(f"{root.name}.scale", "Mul", (scores, scale), root.outputs)


RULES = (
    rule("sdpa", _spellings("marked"), _attention, since=FUSED_SINCE),
    rule("scores_before_sdpa", (_SCORES["marked"],), _scaled_scores, before=FUSED_SINCE),
    rule("sdpa_native", ("Attention(q, k, v)", "Attention(q, k, v, _)"), _native),
    rule("attention_by_hand", _spellings("plain", _ADDED), _by_hand, runtimes=FUSING),
    rule(
        "attention_chosen_by_hand",
        _spellings("plain", _CHOSEN),
        _by_hand,
        runtimes=FUSING,
        since=_CHOSEN_SINCE,
    ),
)
