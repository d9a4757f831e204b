"""What a `quantization_config` says of weights: one reader per method."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from predictor.features.architectures.huggingface.fields import Fields
from predictor.features.dtype import DType
from predictor.features.weight_format import FORMATS, WeightFormat
from predictor.types import Weights

_FIELD = "quantization_config"
_BITS = (4, 8)
_FP8 = FORMATS[Weights.FP8]


def weight_format(fields: Fields) -> WeightFormat | None:
    """What the configuration's `quantization_config` says; None where it has none that is known here.

    Raises InvalidRequest for a field of the wrong kind.
    """
    if not fields.get(_FIELD):
        return None
    asked = fields.child(_FIELD)
    # bitsandbytes did not always name itself.
    method = _METHODS.get(asked.text("quant_method", default="bitsandbytes"))
    return method(asked) if method is not None else None


def not_followed(fields: Fields) -> str:
    """What of a `quantization_config` its graph does not have, as one sentence; "" for nothing."""
    if not fields.get(_FIELD):
        return ""
    asked = fields.child(_FIELD)
    method = asked.get("quant_method")
    how = f"{_FIELD} ({method})" if isinstance(method, str) else _FIELD
    stored = weight_format(fields)
    if stored is None:
        return (
            f"{how} is left out: weights are priced in the precision that you ask for; an export with "
            "quantised weights is priced as it is"
        )
    if stored.experts_only:
        return ""
    spared = [name for field in _SPARED for name in asked.words(field) if not _is_whole_anyway(name)]
    if spared:
        return f"{how} spares {', '.join(spared[:3])}; every layer but heads and routers is in few bits here"
    return ""


_SPARED = ("modules_to_not_convert", "ignore", "llm_int8_skip_modules")
_WHOLE = ("head", "gate", "router", "embed", "norm", "score")


def _is_whole_anyway(name: str) -> bool:
    last = name.lower().rstrip("$").split(".")[-1]
    return any(part in last for part in _WHOLE) and not last.startswith("gate_")


def _integers(bits: int, block: int, *, zeros: bool) -> WeightFormat | None:
    """A group of -1 or 0 is a whole column."""
    return WeightFormat(bits, max(0, block), has_zero_points=zeros) if bits in _BITS else None


def _gptq(asked: Fields) -> WeightFormat | None:
    """Its files hold zeros even where all are equal."""
    return _integers(asked.integer("bits", default=4), _group(asked), zeros=True)


def _awq(asked: Fields) -> WeightFormat | None:
    bits = asked.integer("bits", "w_bit", default=4)
    return _integers(bits, _group(asked), zeros=asked.flag("zero_point", default=True))


def _group(asked: Fields) -> int:
    return asked.integer("group_size", "q_group_size", default=128, least=-1)


def _hqq(asked: Fields) -> WeightFormat | None:
    inner = asked.child("quant_config").child("weight_quant_params")
    return _integers(inner.integer("nbits", default=4), inner.integer("group_size", default=64), zeros=True)


def _bitsandbytes(asked: Fields) -> WeightFormat | None:
    if asked.flag("load_in_4bit", default=False):
        return WeightFormat(4, 64)
    return FORMATS[Weights.INT8] if asked.flag("load_in_8bit", default=False) else None


def _fp8(_: Fields) -> WeightFormat:
    return _FP8


def _mxfp4(_: Fields) -> WeightFormat:
    """OCP microscaling FP4: 32 numbers share an exponent of a byte (OCP MX v1.0, section 5.1).

    Products widen them, as kernels before Blackwell do.
    """
    return WeightFormat(4, 32, experts_only=True, scale=DType.INT8)


def _compressed(asked: Fields) -> WeightFormat | None:
    """The only group of layers; None for several, which name layers that a graph does not."""
    groups = asked.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        return None
    group = asked.child("config_groups").child(*groups)
    weights = group.child("weights")
    bits = weights.integer("num_bits", default=8)
    if weights.text("type", default="int") == "float":
        return _FP8 if bits == _FP8.bits else None
    if group.get("input_activations"):
        return None
    block = weights.integer("group_size", default=-1, least=-1)
    return _integers(bits, block, zeros=not weights.flag("symmetric", default=True))


_METHODS: Mapping[str, Callable[[Fields], WeightFormat | None]] = {
    "gptq": _gptq,
    "awq": _awq,
    "hqq": _hqq,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed,
}
