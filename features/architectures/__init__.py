"""Published architectures as graphs: no torch, no file, a name and its sizes are enough.

    onnx_bytes = architecture("gpt2_large", batch=4, sequence=1024)

The bytes go through `read_graph` like any exported model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from predictor.errors import UnknownName
from predictor.features.architectures.concatenated import CONCATENATED_CNNS
from predictor.features.architectures.detection import DETECTORS
from predictor.features.architectures.image_to_image import cyclegan
from predictor.features.architectures.keras_cnn import KERAS_CNNS
from predictor.features.architectures.micro import MICRO
from predictor.features.architectures.mobile_cnn import MOBILE_CNNS
from predictor.features.architectures.plain_cnn import PLAIN_CNNS
from predictor.features.architectures.recommenders import ncf, recommendation_autoencoder
from predictor.features.architectures.recurrent import deepspeech2
from predictor.features.architectures.residual import RESIDUAL_CNNS
from predictor.features.architectures.separable_cnn import nasnet_mobile, xception
from predictor.features.architectures.speech_synthesis import tacotron2, waveglow
from predictor.features.architectures.switch import SwitchConfig, switch_transformer
from predictor.features.architectures.transformer import (
    Head,
    Style,
    TransformerConfig,
    bert_like,
    gpt2_like,
    opt_like,
    transformer,
)
from predictor.features.architectures.transformer_xl import TRANSFORMER_XLS
from predictor.features.architectures.translation import gnmt, lstm_language_model, seq2seq_transformer
from predictor.features.architectures.two_stage import TWO_STAGE_DETECTORS

__all__ = [
    "ARCHITECTURES",
    "Head",
    "Style",
    "SwitchConfig",
    "TransformerConfig",
    "architecture",
    "switch_transformer",
    "transformer",
]

_TRANSFORMERS = {
    "gpt2": gpt2_like(12, 768, 12),
    "gpt2_medium": gpt2_like(24, 1024, 16),
    "gpt2_large": gpt2_like(36, 1280, 20),
    "gpt2_xl": gpt2_like(48, 1600, 25),
    # NeuSight's shapes under these names; they differ from the sizes in the GPT-3 paper.
    "gpt3_xl": gpt2_like(24, 3072, 24, positions=2048),
    "gpt3_27": gpt2_like(32, 2560, 32, positions=2048),
    "opt_13": opt_like(24, 2048, 32),
    "bert_base": bert_like(12, 768, 12),
    "bert_base_spans": bert_like(12, 768, 12, Head.SPANS),
    "bert_base_pretraining": bert_like(12, 768, 12, Head.PRETRAINING),
    "bert_large": bert_like(24, 1024, 16),
    "bert_large_spans": bert_like(24, 1024, 16, Head.SPANS),
    "bert_large_pretraining": bert_like(24, 1024, 16, Head.PRETRAINING),
}
_SWITCHES = {
    "switchxl4": SwitchConfig(layers=24, width=1024, heads=32, head_width=128, hidden=16384),
    # google/switch-base with four experts; NeuSight ships no configuration of that name.
    "switch4": SwitchConfig(layers=12, width=768, heads=12, head_width=64, hidden=3072),
}

ARCHITECTURES: Mapping[str, Callable[..., bytes]] = {
    **{name: partial(transformer, config) for name, config in _TRANSFORMERS.items()},
    **{name: partial(switch_transformer, config) for name, config in _SWITCHES.items()},
    **TRANSFORMER_XLS,
    **MICRO,
    "cyclegan": cyclegan,
    "deepspeech2": deepspeech2,
    "gnmt": gnmt,
    "lstm_language_model": lstm_language_model,
    "ncf": ncf,
    "recommendation_autoencoder": recommendation_autoencoder,
    "seq2seq_transformer": seq2seq_transformer,
    "tacotron2": tacotron2,
    "waveglow": waveglow,
    **PLAIN_CNNS,
    **RESIDUAL_CNNS,
    **CONCATENATED_CNNS,
    **MOBILE_CNNS,
    **KERAS_CNNS,
    **DETECTORS,
    **TWO_STAGE_DETECTORS,
    "nasnet_mobile": nasnet_mobile,
    "xception": xception,
}
"""Name -> builder of ONNX bytes. All take `batch`; transformers also `sequence` and `training`, image models
`image` and `classes`, deepspeech2 `frames`."""


def architecture(name: str, **options: object) -> bytes:
    """ONNX bytes of a published architecture. Raises UnknownName with near names."""
    if name not in ARCHITECTURES:
        raise UnknownName.among("architecture", name, ARCHITECTURES)
    return ARCHITECTURES[name](**options)
