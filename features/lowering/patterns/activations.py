"""Activations that are one kernel in the framework and several operators in a file."""

from __future__ import annotations

from itertools import product

from predictor.features.graph import Node
from predictor.features.lowering.patterns.language import FUSING, Builder, Match, rule


def _unary(domain: str, op_type: str, **attributes: str) -> Builder:
    def build(match: Match) -> tuple[Node, ...]:
        return (match.node(domain, op_type, (match.captures["x"],), **attributes),)

    return build


# 0.5 may multiply the input, the gate or the product.
_HALVED = ("Mul(Mul(x, {gate}), #)", "Mul(x, Mul({gate}, #))", "Mul(Mul(x, #), {gate})")
_CUBE = ("Pow(x, #)", "Mul(x, Mul(x, x))")
_TANH_GATES = (
    *(f"Add(Tanh(Mul(Add(x, Mul({cube}, #)), #)), #)" for cube in _CUBE),
    # x (1 + 0.0447 x^2), as some transformer code writes it.
    "Add(Tanh(Mul(Mul(x, #), Add(Mul(Mul(x, #), x), #))), #)",
    "Add(Tanh(Mul(Mul(x, #), Add(Mul(Mul(x, x), #), #))), #)",
)
# torch spells its own tanh form in two ways, one per exporter: 0.5 on the product with the cube as two
# products, and 0.5 on the gate with the cube as a power. Any other spelling was written by hand and runs
# kernel by kernel in eager mode (GPT-2's code has 0.5 on the input).
_TANH_EXPORTED = (_HALVED[0].format(gate=_TANH_GATES[1]), _HALVED[1].format(gate=_TANH_GATES[0]))
_TANH_ANY = tuple(shape.format(gate=gate) for shape, gate in product(_HALVED, _TANH_GATES))
_RELU6 = "Clip(Add(x, #), #, #)"

# torch.erf's argument is divided by the square root of 2; 0.5 on the input is nobody's export.
_ERF_EXPORTED = tuple(shape.format(gate="Add(Erf(Div(x, #)), #)") for shape in _HALVED[:2])
_ERF_ANY = tuple(shape.format(gate="Add(Erf(Div|Mul(x, #)), #)") for shape in _HALVED)

RULES = (
    rule("gelu_erf", _ERF_EXPORTED, _unary("perfcast", "Gelu", spelling="erf")),
    rule(
        "gelu_erf_by_hand",
        _ERF_ANY,
        _unary("perfcast", "Gelu", spelling="erf"),
        runtimes=FUSING,
    ),
    rule("gelu_tanh", _TANH_EXPORTED, _unary("perfcast", "Gelu", spelling="tanh")),
    rule(
        "gelu_tanh_by_hand",
        tuple(spelling for spelling in _TANH_ANY if spelling not in _TANH_EXPORTED),
        _unary("perfcast", "Gelu", spelling="tanh"),
        runtimes=FUSING,
    ),
    # No framework has this one as a kernel; only a compiler makes one of it.
    rule(
        "gelu_quick",
        ("Mul(x, Sigmoid(Mul(x, #)))",),
        _unary("perfcast", "Gelu", spelling="quick"),
        runtimes=FUSING,
    ),
    rule("silu", ("Mul(x, Sigmoid(x))",), _unary("perfcast", "Silu", spelling="sigmoid")),
    rule("mish", ("Mul(x, Tanh(Softplus(x)))",), _unary("perfcast", "Mish", spelling="softplus")),
    rule("hard_swish", ("Mul(x, HardSigmoid(x))",), _unary("", "HardSwish")),
    rule(
        "hard_swish_by_hand",
        (f"Div|Mul(Mul(x, {_RELU6}), #)", f"Mul(x, Div|Mul({_RELU6}, #))"),
        _unary("", "HardSwish"),
        runtimes=FUSING,
    ),
    # The linear branch for large inputs belongs to the same kernel.
    rule("softplus", ("Where(Greater(x, #), x, Softplus(x))",), _unary("", "Softplus")),
)
