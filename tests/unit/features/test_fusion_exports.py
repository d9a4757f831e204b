"""The spellings of test_fusion_blocks.py, exported with torch: run with `-m slow` after a torch upgrade."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from predictor.features.lowering.fusion import fuse
from predictor.features.reading.reader import read_graph
from predictor.types import Runtime
from tests.unit.features.spelling import kinds

torch = pytest.importorskip("torch", reason="exports need torch: pip install -e '.[torch]'")
pytest.importorskip("onnxscript", reason="the dynamo exporter needs onnxscript: pip install -e '.[torch]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
nn, functional = torch.nn, torch.nn.functional

X = torch.zeros(2, 5, 16)
HEADS = (torch.zeros(2, 4, 5, 8),) * 3
EXPORTERS = {"script 14": (False, 14), "script 17": (False, 17), "dynamo 18": (True, 18)}


class _Call(nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _sdpa(**options: Any) -> _Call:
    return _Call(lambda q, k, v, *mask: functional.scaled_dot_product_attention(q, k, v, *mask, **options))


def _by_hand(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, dim=-1) @ v


def _new_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


MODULES: dict[str, tuple[Any, tuple[Any, ...], list[str]]] = {
    "layer norm": (nn.LayerNorm(16), (X,), ["LayerNormalization"]),
    "layer norm, no affine": (nn.LayerNorm(16, elementwise_affine=False), (X,), ["LayerNormalization"]),
    "gelu": (nn.GELU(), (X,), ["Gelu"]),
    "gelu tanh": (nn.GELU("tanh"), (X,), ["Gelu"]),
    "silu": (nn.SiLU(), (X,), ["Silu"]),
    "mish": (nn.Mish(), (X,), ["Mish"]),
    "hard swish": (nn.Hardswish(), (X,), ["HardSwish"]),
    "softplus": (nn.Softplus(), (X,), ["Softplus"]),
    "group norm": (nn.GroupNorm(4, 16), (torch.zeros(2, 16, 8, 8),), ["GroupNormalization"]),
    "linear": (nn.Linear(16, 4), (X,), ["Linear"]),
    "linear of a matrix": (nn.Linear(16, 4), (X[0],), ["Linear"]),
    "sdpa": (_sdpa(), HEADS, ["Attention"]),
    "sdpa causal": (_sdpa(is_causal=True), HEADS, ["Attention"]),
    "sdpa masked": (_sdpa(), (*HEADS, torch.zeros(2, 1, 1, 5)), ["Attention"]),
    "sdpa bool mask": (_sdpa(), (*HEADS, torch.ones(2, 1, 5, 5, dtype=torch.bool)), ["Where", "Attention"]),
}
BY_HAND: dict[str, tuple[Any, tuple[Any, ...], list[str]]] = {
    "attention": (_Call(_by_hand), HEADS, ["Attention"]),
    "gelu": (_Call(_new_gelu), (X,), ["Gelu"]),
}


def _exported(module: Any, arguments: tuple[Any, ...], exporter: str) -> bytes:
    dynamo, opset = EXPORTERS[exporter]
    logging.disable(logging.CRITICAL)
    buffer = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = module.eval()
            if dynamo:
                torch.onnx.export(module, arguments, buffer, dynamo=True, opset_version=opset, verbose=False)
            else:
                torch.onnx.export(module, arguments, buffer, dynamo=False, opset_version=opset)
    finally:
        logging.disable(logging.NOTSET)
    return buffer.getvalue()


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", MODULES)
def test_framework_call_is_one_kernel(name: str, exporter: str) -> None:
    module, arguments, wanted = MODULES[name]
    assert kinds(fuse(read_graph(_exported(module, arguments, exporter)))) == wanted


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", BY_HAND)
def test_written_by_hand_it_is_one_kernel_only_when_compiled(name: str, exporter: str) -> None:
    module, arguments, wanted = BY_HAND[name]
    graph = read_graph(_exported(module, arguments, exporter))
    assert len(kinds(fuse(graph))) >= 4
    assert kinds(fuse(graph, Runtime.COMPILED)) == wanted
