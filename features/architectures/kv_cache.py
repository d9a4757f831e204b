"""Bytes of the keys and values that a decoder keeps of every token, from its `config.json`.

    kv_cache_bytes("config.json", batch=8, length=4096, element_bits=16)

Grouped heads keep fewer keys than queries, latent attention one short vector per token and layer, and a
window bounds how many tokens a layer keeps. Weights, page tables and padding to pages are not in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from predictor.checks import whole_number
from predictor.errors import InvalidRequest
from predictor.features.architectures.from_config import CACHES, read_fields
from predictor.features.architectures.huggingface.cache import LayerCache


def kv_cache_layers(config: Mapping[str, Any] | str | os.PathLike[str]) -> tuple[LayerCache, ...]:
    """What each decoder layer keeps per token. Raises InvalidRequest for a model without a decoder."""
    fields = read_fields(config)
    name = fields.text("model_type")
    if name not in CACHES:
        raise InvalidRequest(
            f"model_type {name!r} keeps no cache of keys and values that perfcast knows; expected one of "
            f"{', '.join(CACHES)}",
            field="model_type",
        )
    return CACHES[name](fields)


def kv_cache_bytes(
    config: Mapping[str, Any] | str | os.PathLike[str],
    batch: int = 1,
    length: int = 1,
    element_bits: int = 16,
) -> int:
    """Bytes of all layers for `batch` sequences of `length` tokens each, `element_bits` a number.

    Raises InvalidRequest for a model without a decoder and for sizes below 1.
    """
    for name, value in (("batch", batch), ("length", length), ("element_bits", element_bits)):
        whole_number(value, name, name, "a whole number of at least 1")
    return cache_bytes(kv_cache_layers(config), batch, length, element_bits)


def cache_bytes(layers: tuple[LayerCache, ...], batch: int, length: int, element_bits: int) -> int:
    """As `kv_cache_bytes`, for layers that are known already."""
    elements = sum(layer.tokens(length) * layer.elements_per_token for layer in layers)
    return -(-batch * elements * element_bits // 8)
