"""Llama and its relatives: rotary positions, grouped heads, gated feed-forwards; what differs is a table.

`VARIANTS` says per `model_type` what the configuration does not: which norm, where it stands, which biases
exist, what is normalised inside attention. Sizes always come from the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt

from predictor.errors import InvalidRequest
from predictor.features.architectures.huggingface.attention import (
    Attention,
    Pairing,
    QueryKeyNorm,
    Rotary,
)
from predictor.features.architectures.huggingface.cache import Caches, LayerCache
from predictor.features.architectures.huggingface.fields import (
    ACTIVATION,
    HEADS,
    HIDDEN,
    LAYERS,
    NORM_EPSILON,
    WIDTH,
    Fields,
)
from predictor.features.architectures.huggingface.gpt import branches
from predictor.features.architectures.huggingface.job import Family, Job
from predictor.features.architectures.huggingface.parts import FeedForward, Norm, NormKind, scaled
from predictor.features.architectures.huggingface.stack import Arrangement, Branch, Decoder, decoder
from predictor.features.builder import Tensor


@dataclass(frozen=True, slots=True)
class Variant:
    """What one relative does; a flag that a configuration may carry is given by its name and default.

    Attributes:
        attention_bias, output_bias, mlp_bias: biases of q/k/v, of the output projection, of the feed-forward.
        rotary_fraction: rotated part of a head, unless the configuration says.
        joint_projections: q/k/v are one matrix, gate and up-projection another; `joint_gate`: the latter.
        scaled_embedding: word vectors are multiplied by the root of the width.
        windowed: the configuration's `sliding_window` applies, unless `use_sliding_window` (default
            `window_used`) is false; in all layers but each `every`-th, or in all for 0.
        local_rotary: windowed layers rotate by frequencies of their own.
        rotary_in_windows: where a configuration has windows, only those layers rotate.
        sinks: each head has a score of its own beside those of the keys, which takes part of the softmax.
        norm_is_asked: `use_qk_norm` says whether queries and keys are normalised head by head.
    """

    norm: NormKind = NormKind.RMS
    epsilon: float = 1e-6
    arrangement: Arrangement = Arrangement.BEFORE
    attention_bias: tuple[str, bool] = ("attention_bias", False)
    output_bias: tuple[str, bool] | None = None
    mlp_bias: tuple[str, bool] = ("mlp_bias", False)
    activation: str = "silu"
    gated: bool = True
    joint_projections: bool = False
    joint_gate: bool = False
    query_key_norm: QueryKeyNorm = QueryKeyNorm.NONE
    pairing: Pairing = Pairing.HALVES
    rotary_fraction: float = 1.0
    scaled_embedding: bool = False
    windowed: bool = False
    window_used: bool = True
    every: int = 0
    local_rotary: bool = False
    rotary_in_windows: bool = False
    sinks: bool = False
    norm_is_asked: bool = False
    written_out: bool = False
    tied: bool = False
    head_bias: bool = False


_NEVER = ("", False)
_ALWAYS = ("", True)
_GEMMA = Variant(norm=NormKind.RMS_OFFSET, activation="gelu_pytorch_tanh", scaled_embedding=True, tied=True)
_OLMO2 = Variant(
    epsilon=1e-5,
    arrangement=Arrangement.RESULT,
    mlp_bias=_NEVER,
    query_key_norm=QueryKeyNorm.ALL_HEADS,
)
_COHERE = Variant(
    norm=NormKind.LAYER_BY_HAND,
    epsilon=1e-5,
    arrangement=Arrangement.PARALLEL,
    mlp_bias=_NEVER,
    pairing=Pairing.NEIGHBOURS,
    tied=True,
)
_GLM = Variant(
    epsilon=1e-5,
    output_bias=_NEVER,
    mlp_bias=_NEVER,
    joint_gate=True,
    pairing=Pairing.NEIGHBOURS,
    rotary_fraction=0.5,
)

VARIANTS: Mapping[str, Variant] = {
    "llama": Variant(),
    "mistral": Variant(attention_bias=_NEVER, windowed=True),
    "ministral": Variant(attention_bias=_NEVER, windowed=True),
    "qwen2": Variant(
        attention_bias=_ALWAYS, output_bias=_NEVER, mlp_bias=_NEVER, windowed=True, window_used=False
    ),
    "qwen3": Variant(query_key_norm=QueryKeyNorm.HEAD, mlp_bias=_NEVER, windowed=True, window_used=False),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, arrangement=Arrangement.AROUND, windowed=True, every=2, written_out=True),
    "gemma3_text": replace(
        _GEMMA,
        arrangement=Arrangement.AROUND,
        query_key_norm=QueryKeyNorm.HEAD,
        windowed=True,
        every=6,
        local_rotary=True,
    ),
    "phi": Variant(
        norm=NormKind.LAYER,
        epsilon=1e-5,
        arrangement=Arrangement.PARALLEL,
        attention_bias=_ALWAYS,
        mlp_bias=_ALWAYS,
        activation="gelu_new",
        gated=False,
        rotary_fraction=0.5,
        head_bias=True,
    ),
    "phi3": Variant(
        epsilon=1e-5, attention_bias=_NEVER, mlp_bias=_NEVER, joint_projections=True, windowed=True
    ),
    "stablelm": Variant(
        norm=NormKind.LAYER,
        epsilon=1e-5,
        attention_bias=("use_qkv_bias", False),
        output_bias=_NEVER,
        mlp_bias=_NEVER,
        rotary_fraction=0.25,
    ),
    "starcoder2": Variant(
        norm=NormKind.LAYER,
        epsilon=1e-5,
        attention_bias=("use_bias", True),
        mlp_bias=("use_bias", True),
        activation="gelu_pytorch_tanh",
        gated=False,
        windowed=True,
        tied=True,
    ),
    "olmo": Variant(norm=NormKind.LAYER_PLAIN, epsilon=1e-5, mlp_bias=_NEVER),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, windowed=True, every=4),
    "granite": Variant(),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, windowed=True, every=4, rotary_in_windows=True),
    "smollm3": Variant(tied=True),
    "arcee": Variant(epsilon=1e-5, activation="relu2", gated=False),
    "seed_oss": Variant(attention_bias=("attention_bias", True), output_bias=("attention_out_bias", False)),
    "glm": _GLM,
    "glm4": replace(_GLM, arrangement=Arrangement.AROUND),
    "ernie4_5": Variant(
        epsilon=1e-5,
        attention_bias=("use_bias", False),
        mlp_bias=("use_bias", False),
        pairing=Pairing.NEIGHBOURS,
        tied=True,
    ),
    "helium": Variant(epsilon=1e-8, output_bias=_NEVER, pairing=Pairing.NEIGHBOURS),
    "nemotron": Variant(
        norm=NormKind.LAYER, epsilon=1e-5, activation="relu2", gated=False, rotary_fraction=0.5
    ),
    "exaone4": Variant(
        epsilon=1e-5,
        arrangement=Arrangement.RESULT,
        attention_bias=_NEVER,
        mlp_bias=_NEVER,
        query_key_norm=QueryKeyNorm.HEAD,
        windowed=True,
        every=4,
        rotary_in_windows=True,
    ),
}


def attention_of(f: Fields, variant: Variant, index: int) -> Attention:
    """Attention of layer `index`."""
    width, heads = f.integer(*WIDTH), f.integer(*HEADS)
    head_dim = f.head_dim(width, heads)
    kv_heads = f.integer("num_key_value_heads", default=heads)
    f.divided(heads, kv_heads, "num_key_value_heads")
    biased = f.flag(variant.attention_bias[0], default=variant.attention_bias[1])
    out_bias = (
        f.flag(*variant.output_bias[:1], default=variant.output_bias[1]) if variant.output_bias else biased
    )
    query_scale = f.optional_number("query_pre_attn_scalar")
    window = window_of(f, variant, index)
    return Attention(
        heads,
        kv_heads,
        head_dim,
        bias=biased,
        out_bias=out_bias,
        joint=variant.joint_projections,
        window=window,
        rotary=_rotary(f, variant, head_dim, index, window),
        normalised=_query_key_norm(f, variant),
        norm=Norm(variant.norm, f.number(*NORM_EPSILON, default=variant.epsilon)),
        scale=query_scale**-0.5 if query_scale else f.optional_number("attention_multiplier"),
        written_out=variant.written_out,
        softcap=f.optional_number("attn_logit_softcapping"),
        sinks=variant.sinks,
    )


def _query_key_norm(f: Fields, variant: Variant) -> QueryKeyNorm:
    if variant.norm_is_asked:
        return QueryKeyNorm.HEAD if f.flag("use_qk_norm", default=False) else QueryKeyNorm.NONE
    return variant.query_key_norm


def _rotary(f: Fields, variant: Variant, head_dim: int, index: int, window: int | None) -> Rotary | None:
    """None in the layers that a configuration takes positions out of."""
    without = f.get("no_rope_layers")
    if isinstance(without, Sequence) and index < len(without) and not without[index]:
        return None
    if variant.rotary_in_windows and window is None and _has_windows(f, variant):
        return None
    fraction = f.child("rope_parameters").number(
        "partial_rotary_factor",
        default=f.number("partial_rotary_factor", "rotary_pct", "rope_pct", default=variant.rotary_fraction),
    )
    local = variant.local_rotary and window is not None
    return Rotary(int(head_dim * fraction), variant.pairing, "local_rotary" if local else "rotary")


def _has_windows(f: Fields, variant: Variant) -> bool:
    used = variant.windowed and f.flag("use_sliding_window", default=variant.window_used)
    return used and f.get("sliding_window") is not None


def window_of(f: Fields, variant: Variant, index: int) -> int | None:
    """How far layer `index` sees: `layer_types` where given, else the family's own pattern."""
    if not _has_windows(f, variant):
        return None
    size = f.integer("sliding_window")
    kinds = f.words("layer_types")
    if index < len(kinds):
        return size if kinds[index] == "sliding_attention" else None
    if f.get("max_window_layers") is not None and f.get("use_sliding_window"):
        return size if index >= f.integer("max_window_layers", least=0) else None
    every = f.integer("sliding_window_pattern", "_sliding_window_pattern", default=variant.every, least=0)
    if not variant.every or not every:
        return size
    return size if (index + 1) % every else None


def feed_forward_of(f: Fields, variant: Variant, hidden: int | None = None) -> FeedForward:
    """Feed-forward of any layer; `hidden` defaults to the configuration's."""
    # Gemma's first configurations name the exact GELU and mean the other.
    act = f.text("hidden_activation", default="")
    if not act:
        act = (
            variant.activation
            if variant.scaled_embedding
            else f.text(*ACTIVATION, default=variant.activation)
        )
    biased = f.flag(variant.mlp_bias[0], default=variant.mlp_bias[1])
    return FeedForward(
        hidden or f.integer(*HIDDEN),
        act,
        gated=variant.gated,
        joint=variant.joint_projections or variant.joint_gate,
        bias=biased,
    )


def decoder_of(f: Fields, variant: Variant, layers: int) -> Decoder:
    """Everything but the layers, which the caller replaces."""
    width = f.integer(*WIDTH)

    def layer(job: Job, index: int) -> tuple[Branch, Branch]:
        return branches(job, attention_of(f, variant, index), feed_forward_of(f, variant))

    return Decoder(
        f.integer("vocab_size"),
        width,
        layers,
        Norm(variant.norm, f.number(*NORM_EPSILON, default=variant.epsilon)),
        layer,
        variant.arrangement,
        embedding_scale=sqrt(width)
        if variant.scaled_embedding
        else f.optional_number("embedding_multiplier"),
        tied=f.flag("tie_word_embeddings", default=variant.tied),
        head_bias=variant.head_bias,
        logit_scale=_logit_scale(f),
        logit_cap=f.optional_number("final_logit_softcapping"),
    )


def _logit_scale(f: Fields) -> float | None:
    divisor = f.optional_number("logits_scaling")
    return f.optional_number("logit_scale") if divisor is None else 1.0 / divisor


def llama_like(job: Job, variant: Variant) -> Sequence[Tensor]:
    """A decoder of `VARIANTS`."""
    f = job.fields
    _refuse(f)
    return decoder(job, damped(f, decoder_of(f, variant, f.layers(*LAYERS))))


def damped(f: Fields, c: Decoder) -> Decoder:
    """Granite scales each branch before adding it."""
    factor = f.optional_number("residual_multiplier")
    return c if factor is None else replace(c, layer=partial(_damped, c, factor))


def _damped(c: Decoder, factor: float, job: Job, index: int) -> tuple[Branch, Branch]:
    first, second = c.layer(job, index)
    return (lambda x: scaled(job.b, first(x), factor)), (lambda x: scaled(job.b, second(x), factor))


def _refuse(f: Fields) -> None:
    """Options of the families above that no published model of theirs uses, or that are not built yet."""
    for name in ("use_qk_norm", "qk_layernorm", "use_parallel_residual"):
        if f.flag(name, default=False):
            raise InvalidRequest(
                f"field {name!r} is true; perfcast builds this family without it only", field=name
            )


def caches(f: Fields, variant: Variant) -> tuple[LayerCache, ...]:
    """What each layer keeps per token."""
    found = (attention_of(f, variant, index) for index in range(f.layers(*LAYERS)))
    return tuple(LayerCache(a.kv_heads, a.head_dim, a.head_dim, a.window) for a in found)


FAMILIES: Mapping[str, Family] = {
    name: partial(llama_like, variant=variant) for name, variant in VARIANTS.items()
}
CACHES: Mapping[str, Caches] = {name: partial(caches, variant=variant) for name, variant in VARIANTS.items()}
