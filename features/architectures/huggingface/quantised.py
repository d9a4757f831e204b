"""A builder whose layers store their weights in few bits.

- Integers in blocks: com.microsoft::MatMulNBits, the form in which ONNX Runtime's own exporters write such
  layers. Weights are widened inside the product; bitsandbytes' products on 8-bit integers (LLM.int8) are
  priced so, too.
- FP8 weights and activations: QuantizeLinear on the activations, then com.microsoft::GemmFloat8.

Heads and routers stay as they are, as the methods of weight_methods.py leave them by default.
"""

from __future__ import annotations

from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType
from predictor.features.reading.elements import TO_ONNX
from predictor.features.weight_format import WeightFormat


class QuantisedBuilder(GraphBuilder):
    """Layers store the weights that they make in a format; weights that are given stay as they are."""

    def __init__(self, name: str, stored: WeightFormat, *, opset: int) -> None:
        super().__init__(name, opset=opset)
        self._stored = stored

    def linear(self, x: Tensor, features: int, *, bias: bool = True, weight: Tensor | None = None) -> Tensor:
        """As GraphBuilder.linear."""
        if weight is not None or self._stored.experts_only:
            return super().linear(x, features, bias=bias, weight=weight)
        if self._stored.is_float:
            return self._in_fp8(x, features, bias=bias)
        y = self._in_blocks(x, features)
        return self.add(y, self.parameter((features,), "linear.bias")) if bias else y

    def grouped_matmul(self, rows: Tensor, sizes: tuple[int, int, int], ends: Tensor, *, name: str) -> Tensor:
        """As GraphBuilder.grouped_matmul."""
        stored, to = self.parameter(sizes, name, self._stored.dtype), None
        if self._stored.is_float:
            rows, to = self._narrowed(rows), TO_ONNX[self.dtype]
        blocks = [
            self.parameter(shape, f"{name}.{what}", dtype)
            for what, shape, dtype in self._stored.grouped(*sizes)
        ]
        y: Tensor = self.op("GroupedMatMul", [rows, stored, ends, *blocks], domain="perfcast", to=to)
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
