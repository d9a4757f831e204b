"""Captures on a CPU build hold the kernels that a CUDA device would run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from predictor.features.dtype import DType
from predictor.features.programs.work import Phase
from predictor.features.torch_capture import TorchModel
from predictor.types import Mode, Optimizer, Precision, Runtime

torch = pytest.importorskip("torch")
nn = torch.nn
attention = nn.functional.scaled_dot_product_attention


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, call: Any) -> None:
        super().__init__()
        self.scale, self._call = nn.Parameter(torch.ones(1)), call

    def forward(self, *inputs: Any) -> Any:
        return self._call(*(item * self.scale if item.is_floating_point() else item for item in inputs))


def captured(module: Any, *inputs: Any, precision: Precision = Precision.FP32) -> Counter[str]:
    calls = TorchModel(module, inputs).capture(mode=Mode.TRAIN, precision=precision).calls
    return Counter(call.op for call in calls if not call.is_view)


def heads(count: int = 4, length: int = 16) -> Any:
    return torch.empty(2, count, length, 32)


@pytest.mark.parametrize(
    ("precision", "kernel"),
    [(Precision.FP32, "efficient"), (Precision.BF16, "flash"), (Precision.AMP, "flash")],
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_is_one_kernel(precision: Precision, kernel: str, dropout: float) -> None:
    module = Attention(lambda q, k, v: attention(q, k, v, is_causal=True, dropout_p=dropout))
    calls = captured(module, heads(), heads(), heads(), precision=precision)
    if precision is not Precision.AMP:
        assert "bmm" not in calls
    assert calls[f"_scaled_dot_product_{kernel}_attention"] == 1
    assert calls[f"_scaled_dot_product_{kernel}_attention_backward"] == 1


def test_a_mask_takes_the_efficient_kernel_whatever_the_precision() -> None:
    module = Attention(lambda q, k, v, mask: attention(q, k, v, attn_mask=mask))
    mask = torch.empty(2, 1, 16, 16, dtype=torch.bool)
    calls = captured(module, heads(), heads(), heads(), mask, precision=Precision.FP16)
    assert calls["_scaled_dot_product_efficient_attention"] == 1


def test_grouped_heads_run_fused_in_half_and_by_hand_in_single() -> None:
    module = Attention(lambda q, k, v: attention(q, k, v, enable_gqa=True))
    inputs = heads(), heads(2), heads(2)
    assert captured(module, *inputs, precision=Precision.BF16)["_scaled_dot_product_flash_attention"] == 1
    assert captured(module, *inputs)["bmm"] == 6


def test_modules_of_torch_reach_the_fused_kernel() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1)
    calls = captured(layer, torch.empty(2, 16, 32))
    assert calls["_scaled_dot_product_efficient_attention"] == 1
    assert calls["native_dropout"] == calls["native_dropout_backward"] == 3
    assert calls["bernoulli"] == 0


def test_dropout_is_one_kernel_in_training_and_none_in_inference() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout(0.0))
    assert captured(module, torch.empty(2, 4))["native_dropout"] == 1
    calls = TorchModel(module, torch.empty(2, 4)).capture(mode=Mode.INFER).calls
    assert [call.op for call in calls if not call.is_view] == ["addmm"]


def test_rms_norm_is_one_kernel() -> None:
    calls = captured(nn.Sequential(nn.RMSNorm(8), nn.RMSNorm(8, elementwise_affine=False)), torch.empty(2, 8))
    assert calls["rms_norm"] == calls["rms_norm_backward"] == 2
    assert calls["pow"] == calls["rsqrt"] == 0


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_one_call(kind: Any) -> None:
    class Last(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = kind(8, 16, 2, bidirectional=True, batch_first=True)

        def forward(self, data: Any) -> Any:
            out, last = self.layer(data)
            assert out.shape == (3, 5, 32)
            state = last[0] if isinstance(last, tuple) else last
            assert state.shape == (4, 3, 16)
            return out

    model = TorchModel(Last(), torch.empty(3, 5, 8))
    calls = Counter(call.op for call in model.capture(mode=Mode.TRAIN).calls)
    assert calls["rnn"] == calls["rnn_backward"] == 1
    assert calls["addmm"] == calls["mm"] == 0
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    forward = 2 * 5 * 3 * 2 * gates * 16 * ((8 + 16) + (32 + 16))
    flops = Counter[Phase]()
    for op in model.program(mode=Mode.TRAIN).ops:
        flops[op.work.phase] += op.work.matrix_flops
    assert flops == {Phase.FORWARD: forward, Phase.BACKWARD: 2 * forward}


def test_autocast_follows_the_lists_of_cuda() -> None:
    class Mixed(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, data: Any) -> Any:
            return self.norm(self.layer(data).relu()).pow(2)

    capture = TorchModel(Mixed(), torch.empty(4, 8)).capture(mode=Mode.TRAIN, precision=Precision.AMP)
    types = {call.op: call.outputs[0].dtype for call in capture.calls if call.phase is Phase.FORWARD}
    assert types["addmm"] is types["relu"] is DType.FLOAT16
    # On a CPU, autocast would leave these in half precision.
    assert types["native_layer_norm"] is types["pow"] is DType.FLOAT32


@pytest.mark.skipif(not hasattr(nn.functional, "grouped_mm"), reason="torch before 2.10")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_experts_multiply_in_any_type(dtype: Any) -> None:
    class Experts(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(4, 16, 24, dtype=dtype))

        def forward(self, rows: Any, ends: Any) -> Any:
            return nn.functional.grouped_mm(rows, self.weight, offs=ends)

    rows = torch.empty(32, 16, dtype=dtype, requires_grad=True)
    program = TorchModel(Experts(), (rows, torch.zeros(4, dtype=torch.int32))).program(
        batch=None,
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
        strict=True,
    )
    products = [op.work for op in program.ops if op.work.matrix_flops]
    assert [work.kind for work in products] == ["grouped_matmul", "bmm"]
    assert {work.matrix_flops for work in products} == {2 * 32 * 16 * 24}
    assert program.memory.parameter_bytes == 4 * 16 * 24 * torch.finfo(dtype).bits // 8


class Translation(nn.Module):  # type: ignore[misc, name-defined]
    """torch's own encoder and decoder, which look at the contents of the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Transformer(32, 2, 1, 1, 64, batch_first=True)

    def forward(self, source: Any, target: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.inner(source, target, tgt_mask=mask)


def test_a_square_mask_of_a_transformer_is_causal() -> None:
    model = TorchModel(Translation(), (torch.empty(2, 12, 32), torch.empty(2, 8, 32)))
    asked = nn.modules.transformer._detect_is_causal_mask
    calls = model.capture(mode=Mode.INFER, precision=Precision.BF16).calls
    # The encoder's, the decoder's own, and the one from decoder to encoder; none reads a mask.
    kernels = Counter(call.op for call in calls if "attention" in call.op)
    assert kernels == {"_scaled_dot_product_flash_attention": 3}
    assert nn.modules.transformer._detect_is_causal_mask is asked
