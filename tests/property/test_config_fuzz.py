"""Whatever stands in a configuration: a graph or one clear error, within bounded time and memory."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor.errors import InvalidInput
from predictor.features.architectures.from_config import CACHES, from_config
from predictor.features.reading.reader import read_graph

FOLDER = Path(__file__).parents[1] / "assets" / "configs"
# One of each builder, cut to two layers.
NAMES = (
    *("gpt2", "gpt-neo-1.3b", "gpt-j-6b", "gpt-neox-20b", "opt-350m", "bloom-560m", "falcon-40b", "mpt-7b"),
    *("llama-3-8b", "gemma-3-1b", "phi-2", "granite-3.1-2b", "mixtral-8x7b", "qwen1.5-moe-a2.7b"),
    *("deepseek-v3", "bert-base-uncased", "albert-base-v2", "deberta-v3-base", "t5-small", "bart-base"),
    *("whisper-tiny", "vit-base-patch16-224", "dinov2-base", "clip-vit-base-patch32"),
)
LAYERS = {
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"),
    *("encoder_layers", "decoder_layers"),
}


def small(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return {field: 2 if field in LAYERS else value for field, value in found.items()}


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70),
    st.sampled_from([0, 2**31 - 1, 2**31, 2**63, -(2**63)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=6),
    st.sampled_from(["gelu", "relu", "layer_norm", "c2p|p2c", "gated-gelu", "group_limited_greedy"]),
    st.lists(st.integers(-1, 3), max_size=3),
    st.lists(st.lists(st.text(max_size=3), max_size=2), max_size=2),
    st.dictionaries(
        st.sampled_from(["rope_theta", "partial_rotary_factor", "0"]), st.integers(0, 3), max_size=2
    ),
)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_a_changed_configuration_is_built_or_refused(name: str, data: st.DataObject) -> None:
    values = small(name)
    fields = st.sampled_from(sorted(values.keys() - {"model_type"}))
    changed = data.draw(st.dictionaries(fields, VALUES, min_size=1, max_size=3))
    batch = data.draw(st.sampled_from([1, "batch"]))
    past = data.draw(st.sampled_from([None, None, 0, 5])) if values["model_type"] in CACHES else None
    with suppress(InvalidInput):
        read_graph(from_config({**values, **changed}, batch=batch, sequence=4, past_length=past))
