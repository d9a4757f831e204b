"""Products and convolutions that finish their result before they write it (emitted for inference engines).

perfcast::FusedProduct(operands of the product..., operands of the epilogue...) -> result. The product's own
rule prices it; the epilogue adds its arithmetic and what it reads, and saves the way through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.features.graph import Node
from predictor.features.ops.parts import size_of
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import WORK_RULES, unknown_work
from predictor.features.programs.work import OpWork

_OP, _DOMAIN, _OPSET = "perfcast_op", "perfcast_domain", "perfcast_opset"
_OPERANDS, _FLOPS, _KINDS = "perfcast_operands", "perfcast_flops", "perfcast_kinds"


def with_epilogue(product: Node, chain: Sequence[Node], bias: str, flops: int, opset: int) -> Node:
    """`product` with the pointwise ops of `chain`, each of which reads the one before, as its epilogue.

    Args:
        bias: one number per channel that is added first; "" for none.
        flops: arithmetic of bias and chain.
        opset: version of the product's domain.
    """
    made = {product.outputs[0], *(name for node in chain for name in node.outputs)}
    operands = (bias, *(name for node in chain for name in node.inputs))
    others = dict.fromkeys(name for name in operands if name and name not in made)
    last = [product, *chain][-1]
    return Node(
        last.name,
        "FusedProduct",
        (*product.inputs, *others),
        last.outputs,
        "perfcast",
        {
            **product.attributes,
            _OP: product.op_type,
            _DOMAIN: product.domain,
            _OPSET: opset,
            _OPERANDS: len(product.inputs),
            _FLOPS: flops,
            _KINDS: ",".join(node.op_type for node in chain),
        },
    )


@WORK_RULES.register("perfcast", "FusedProduct")
def fused_product(op: OpView) -> tuple[OpWork, ...]:
    """The product's kernels; the last one reads the epilogue's operands as well."""
    count, domain, opset = op.integer(_OPERANDS), op.text(_DOMAIN), op.integer(_OPSET, 1)
    rule = WORK_RULES.get(domain, op.text(_OP), opset) or unknown_work
    *before, last = rule(
        replace(
            op,
            domain=domain,
            op_type=op.text(_OP),
            inputs=op.inputs[:count],
            constants=op.constants[:count],
            weights=op.weights[:count],
            opset=opset,
        )
    )
    own = {value.name for value in op.inputs[:count] if value is not None}
    others = [value for value in op.inputs[count:] if value is not None and value.name not in own]
    finished = replace(
        last,
        read_bytes=last.read_bytes + size_of(others),
        vector_flops=last.vector_flops + op.integer(_FLOPS),
    )
    return (*before, finished)
