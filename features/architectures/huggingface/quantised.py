"""Weights in few bits, as a `quantization_config` asks for them.

- 4 or 8 bits in blocks (GPTQ, AWQ, HQQ, bitsandbytes, compressed-tensors): com.microsoft::MatMulNBits, the
  form in which ONNX Runtime's own exporters write such layers. Weights are widened inside the product;
  bitsandbytes' products on 8-bit integers (LLM.int8) are priced so, too.
- FP8 weights and activations: QuantizeLinear on the activations, then com.microsoft::GemmFloat8.

Heads and routers stay as they are, as all of these methods leave them by default.
"""

from __future__ import annotations

from predictor.features.architectures.huggingface.fields import Fields
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType
from predictor.features.reading.elements import TO_ONNX
from predictor.features.weight_format import WeightFormat

FIELD = "quantization_config"
_FP8_METHODS = frozenset({"fp8", "fbgemm_fp8"})
_BITS = (4, 8)


def weight_format(fields: Fields) -> WeightFormat | None:
    """What the configuration's `quantization_config` says; None where it has none that is known here.

    Raises InvalidRequest for a field of the wrong kind.
    """
    if not fields.get(FIELD):
        return None
    asked = fields.child(FIELD)
    # bitsandbytes did not always name itself.
    method = asked.text("quant_method", default="bitsandbytes")
    if method in _FP8_METHODS:
        return WeightFormat(8, is_float=True)
    if method in ("gptq", "awq"):
        # A group of -1 is a whole column; GPTQ's files hold zeros even where all are equal.
        block = max(0, asked.integer("group_size", "q_group_size", default=128, least=-1))
        zeros = method == "gptq" or asked.flag("zero_point", default=True)
        return _integers(asked.integer("bits", "w_bit", default=4), block, zeros=zeros)
    if method == "hqq":
        inner = asked.child("quant_config").child("weight_quant_params")
        block = inner.integer("group_size", default=64)
        return _integers(inner.integer("nbits", default=4), block, zeros=True)
    if method == "bitsandbytes":
        if asked.flag("load_in_4bit", default=False):
            return WeightFormat(4, 64)
        return WeightFormat(8) if asked.flag("load_in_8bit", default=False) else None
    if method == "compressed-tensors":
        return _compressed(asked)
    return None


def _integers(bits: int, block: int, *, zeros: bool) -> WeightFormat | None:
    return WeightFormat(bits, block, has_zero_points=zeros) if bits in _BITS else None


def _compressed(asked: Fields) -> WeightFormat | None:
    """The only group of layers; None for several, which name layers that a graph does not."""
    groups = asked.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        return None
    group = asked.child("config_groups").child(next(iter(groups)))
    weights = group.child("weights")
    bits = weights.integer("num_bits", default=8)
    if weights.text("type", default="int") == "float":
        return WeightFormat(8, is_float=True) if bits == DType.FLOAT8.bits else None
    if group.get("input_activations"):
        return None
    block = weights.integer("group_size", default=0, least=-1)
    return _integers(bits, max(0, block), zeros=not weights.flag("symmetric", default=True))


def not_followed(fields: Fields) -> str:
    """What of a `quantization_config` its graph does not have, as one sentence; "" for nothing."""
    if not fields.get(FIELD):
        return ""
    asked = fields.child(FIELD)
    method = asked.get("quant_method")
    how = f"{FIELD} ({method})" if isinstance(method, str) else FIELD
    if weight_format(fields) is None:
        return (
            f"{how} is left out: weights are priced in the precision that you ask for; an export with "
            "quantised weights is priced as it is"
        )
    spared = [name for field in _SPARED for name in asked.words(field) if not _is_whole_anyway(name)]
    if spared:
        return f"{how} spares {', '.join(spared[:3])}; every layer but heads and routers is in few bits here"
    return ""


_SPARED = ("modules_to_not_convert", "ignore", "llm_int8_skip_modules")
_WHOLE = ("head", "gate", "router", "embed", "norm", "score")


def _is_whole_anyway(name: str) -> bool:
    last = name.lower().rstrip("$").split(".")[-1]
    return any(part in last for part in _WHOLE) and not last.startswith("gate_")


class QuantisedBuilder(GraphBuilder):
    """Layers store the weights that they make in a format; weights that are given stay as they are."""

    def __init__(self, name: str, stored: WeightFormat, *, opset: int) -> None:
        super().__init__(name, opset=opset)
        self._stored = stored

    def linear(self, x: Tensor, features: int, *, bias: bool = True, weight: Tensor | None = None) -> Tensor:
        """As GraphBuilder.linear."""
        if weight is not None:
            return super().linear(x, features, bias=bias, weight=weight)
        if self._stored.is_float:
            return self._in_fp8(x, features, bias=bias)
        y = self._in_blocks(x, features)
        return self.add(y, self.parameter((features,), "linear.bias")) if bias else y

    def grouped_matmul(self, rows: Tensor, sizes: tuple[int, int, int], ends: Tensor, *, name: str) -> Tensor:
        """As GraphBuilder.grouped_matmul."""
        if not self._stored.is_float:
            return self._grouped(rows, self.parameter(sizes, name, self._stored.dtype), ends)
        stored = self.parameter(sizes, name, self._stored.dtype)
        return self._grouped(self._narrowed(rows), stored, ends, to=TO_ONNX[self.dtype])

    def _grouped(self, rows: Tensor, stored: Tensor, ends: Tensor, to: int | None = None) -> Tensor:
        y: Tensor = self.op("GroupedMatMul", [rows, stored, ends], domain="perfcast", to=to)
        return y

    def _narrowed(self, x: Tensor) -> Tensor:
        """Activations in FP8."""
        narrow: Tensor = self.op("QuantizeLinear", [x, self.constant(1.0), self.constant(0.0, DType.FLOAT8)])
        return narrow

    def _in_fp8(self, x: Tensor, features: int, *, bias: bool) -> Tensor:
        rows = x if x.rank == 2 else self.reshape(x, [-1, x.size(-1)])
        operands = [
            self._narrowed(rows),
            self.parameter((x.size(-1), features), "linear.weight", DType.FLOAT8),
            self.parameter((features,), "linear.bias") if bias else None,
            self.constant(1.0),
            self.parameter((), "linear.weight.scale"),
        ]
        y: Tensor = self.op("GemmFloat8", operands, domain="com.microsoft", dtype=TO_ONNX[self.dtype])
        inner = [x.size(axis) for axis in range(1, x.rank - 1)]
        return y if x.rank == 2 else self.reshape(y, [-1, *inner, features])

    def _in_blocks(self, x: Tensor, features: int) -> Tensor:
        depth, stored = x.size(-1), self._stored
        shape = stored.packed(depth, features)
        zero_bytes = stored.zero_bytes(depth, features)
        y: Tensor = self.op(
            "MatMulNBits",
            [
                x,
                self.parameter(shape, "linear.weight.packed", DType.INT8),
                self.parameter((shape[0] * shape[1],), "linear.weight.scales"),
                self.parameter((zero_bytes,), "linear.weight.zeros", DType.INT8) if zero_bytes else None,
            ],
            domain="com.microsoft",
            K=depth,
            N=features,
            bits=stored.bits,
            block_size=stored.block_of(depth),
        )
        return y
