"""Transformers over patches of images, and the text towers that are trained with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from predictor.features.architectures.huggingface.attention import Attention
from predictor.features.architectures.huggingface.fields import (
    ACTIVATION,
    HEADS,
    HIDDEN,
    LAYERS,
    NORM_EPSILON,
    POSITIONS,
    WIDTH,
    Fields,
)
from predictor.features.architectures.huggingface.job import Family, Job, Task
from predictor.features.architectures.huggingface.parts import (
    FeedForward,
    Norm,
    NormKind,
    activation,
    pooled,
)
from predictor.features.architectures.huggingface.stack import Arrangement, Branch, block
from predictor.features.architectures.layers import embed, indices
from predictor.features.builder import GraphBuilder, Tensor


@dataclass(frozen=True, slots=True)
class Variant:
    """What one family does around its layers.

    Attributes:
        tokens: learned tokens in front of the patches.
        patch_bias: the patches' convolution has a bias.
        norm_first, norm_last: all tokens are normalised before and after the layers.
        norm_pooled: the pooled vector is normalised.
        pooler: the body ends with a matrix and tanh over the first token.
        layer_scale: each branch is multiplied by a learned vector.
        mean_head: the classifier reads the mean of the patches beside the first token.
        attention_pool: a learned query pools the tokens.
        epsilon: of the norms, unless the configuration says.
    """

    tokens: int = 1
    patch_bias: bool = True
    norm_first: bool = False
    norm_last: bool = True
    norm_pooled: bool = False
    pooler: bool = False
    layer_scale: bool = False
    mean_head: bool = False
    attention_pool: bool = False
    epsilon: float = 1e-12


_CLIP = Variant(patch_bias=False, norm_first=True, norm_last=False, norm_pooled=True, epsilon=1e-5)
VARIANTS: Mapping[str, Variant] = {
    "vit": Variant(pooler=True),
    "deit": Variant(tokens=2, pooler=True),
    "dinov2": Variant(layer_scale=True, mean_head=True, epsilon=1e-6),
    "clip_vision_model": _CLIP,
    "siglip_vision_model": Variant(tokens=0, attention_pool=True, epsilon=1e-6),
}


def _norm(f: Fields, epsilon: float) -> Norm:
    return Norm(NormKind.LAYER, f.number(*NORM_EPSILON, default=epsilon))


def _attention(f: Fields, *, causal: bool = False) -> Attention:
    width, heads = f.integer(*WIDTH), f.integer(*HEADS)
    head_dim = f.divided(width, heads, *HEADS)
    return Attention(
        heads, heads, head_dim, bias=f.flag("qkv_bias", default=True), out_bias=True, causal=causal
    )


def _feed_forward(f: Fields) -> FeedForward:
    act = f.text(*ACTIVATION, default="gelu")
    width = f.integer(*WIDTH)
    hidden = f.optional_integer(*HIDDEN) or int(width * f.number("mlp_ratio"))
    if f.flag("use_swiglu_ffn", default=False):
        # Two thirds of the width, rounded up to a multiple of 8.
        return FeedForward((int(hidden * 2 / 3) + 7) // 8 * 8, "silu", gated=True, bias=True)
    return FeedForward(hidden, act, bias=True)


def _stretched(b: GraphBuilder, branch: Branch, x: Tensor) -> Tensor:
    """A branch's result times a learned vector."""
    y = branch(x)
    return b.mul(y, b.parameter((y.size(-1),), "layer_scale"))


def _layers(job: Job, f: Fields, x: Tensor, norm: Norm, *, causal: bool, stretched: bool = False) -> Tensor:
    b = job.b
    branches: tuple[Branch, ...] = (partial(_attention(f, causal=causal), job), partial(_feed_forward(f), b))
    if stretched:
        branches = tuple(partial(_stretched, b, branch) for branch in branches)
    for _ in range(f.layers(*LAYERS)):
        x = block(b, x, branches, norm, Arrangement.BEFORE)
    return x


def image_tokens(job: Job, f: Fields, variant: Variant) -> Tensor:
    """Pixels to the tokens that leave the last layer, (batch, tokens, width)."""
    b, width, norm = job.b, f.integer(*WIDTH), _norm(f, variant.epsilon)
    size, patch = f.integer("image_size"), f.integer("patch_size")
    pixels = b.input("pixel_values", (job.batch, f.integer("num_channels", default=3), size, size))
    x = b.conv(pixels, width, kernel=patch, stride=patch, padding=0, bias=variant.patch_bias)
    x = b.transpose(b.reshape(x, [0, width, -1]), [0, 2, 1])
    if variant.tokens:
        extra = [b.parameter((1, 1, width), "token") for _ in range(variant.tokens)]
        x = b.concat([*(b.expand(token, (job.batch, 1, width)) for token in extra), x], axis=1)
    x = b.add(x, b.parameter((1, x.size(1), width), "positions"))
    if variant.norm_first:
        x = norm(b, x)
    x = _layers(job, f, x, norm, causal=False, stretched=variant.layer_scale)
    return norm(b, x) if variant.norm_last else x


def image_vector(job: Job, f: Fields, variant: Variant, x: Tensor) -> Tensor:
    """One vector per image, (batch, width)."""
    if variant.attention_pool:
        return _attention_pool(job, f, x, _norm(f, variant.epsilon))
    vector = pooled(job.b, x, activation("tanh") if variant.pooler else None)
    return _norm(f, variant.epsilon)(job.b, vector) if variant.norm_pooled else vector


def _attention_pool(job: Job, f: Fields, x: Tensor, norm: Norm) -> Tensor:
    b = job.b
    query = b.expand(b.parameter((1, 1, x.size(-1)), "probe"), (job.batch, 1, x.size(-1)))
    y = _attention(f).cross(job, query, x)
    y = b.add(y, _feed_forward(f)(b, norm(b, y)))
    return b.reshape(y, [0, x.size(-1)])


def image_model(job: Job, variant: Variant) -> Sequence[Tensor]:
    """Pixels to classes, a projected vector, or tokens and their pooled vector."""
    heads = (Task.PROJECTION,) if variant is _CLIP else (Task.CLASSIFIER,) if variant.tokens else ()
    task = job.among(Task.BASE, *heads)
    b, f = job.b, job.fields
    if task is not Task.CLASSIFIER:
        x = image_tokens(job, f, variant)
        vector = image_vector(job, f, variant, x)
        if task is Task.PROJECTION:
            return [b.linear(vector, f.integer("projection_dim", default=512), bias=False)]
        return [x, vector]
    x = image_tokens(job, f, variant)
    count, width = x.size(1), x.size(-1)
    if variant.mean_head:
        mean = b.reduce_mean(b.slice(x, 1, count, axis=1), [1])
        return [b.linear(b.concat([pooled(b, x), mean], axis=-1), f.labels)]
    if "WithTeacher" in str(f.get("architectures")):
        second = b.reshape(b.slice(x, 1, 2, axis=1), [0, width])
        both = b.add(b.linear(pooled(b, x), f.labels), b.linear(second, f.labels))
        return [b.div(both, b.constant(2.0))]
    return [b.linear(pooled(b, x), f.labels)]


def text_vector(job: Job, f: Fields, length: int) -> tuple[Tensor, Tensor]:
    """CLIP's text tower: all tokens, and the vector at the end of each text."""
    b, width, norm = job.b, f.integer(*WIDTH), _norm(f, 1e-5)
    table = b.parameter((f.integer(*POSITIONS, default=77), width), "text.positions")
    ids = job.ids(length=length)
    x = embed(b, ids, b.parameter((f.integer("vocab_size"), width), "tokens"))
    x = b.add(x, embed(b, indices(b, (1, length), "position_ids"), table))
    x = norm(b, _layers(job, f, x, norm, causal=True))
    ends = b.op("ArgMax", [ids], axis=1, keepdims=0)
    places = b.expand(b.reshape(ends, [-1, 1, 1]), (job.batch, 1, width))
    return x, b.reshape(b.op("GatherElements", [x, places], axis=1), [0, width])


def clip_text(job: Job) -> Sequence[Tensor]:
    """Token ids to tokens and a vector per text, projected where asked."""
    task = job.among(Task.BASE, Task.PROJECTION)
    f = job.fields
    job.check_positions(f.integer(*POSITIONS, default=77))
    x, vector = text_vector(job, f, job.sequence)
    if task is Task.BASE:
        return [x, vector]
    return [job.b.linear(vector, f.integer("projection_dim", default=512), bias=False)]


def clip(job: Job) -> Sequence[Tensor]:
    """Both towers, and how well every text fits every image; texts are cut to the table of positions."""
    job.among(Task.BASE)
    b, f = job.b, job.fields
    text, vision = f.child("text_config"), f.child("vision_config")
    width = f.integer("projection_dim", default=512)
    length = min(job.sequence, text.integer(*POSITIONS, default=77))
    tokens = image_tokens(job, vision, _CLIP)
    image = _unit(b, b.linear(image_vector(job, vision, _CLIP, tokens), width, bias=False))
    _, words = text_vector(job, text, length)
    words = _unit(b, b.linear(words, width, bias=False))
    scale = b.op("Exp", [b.parameter((1,), "logit_scale")])
    scores = b.mul(b.matmul(words, b.transpose(image, [1, 0])), scale)
    return [scores, words, image]


def _unit(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.div(x, b.op("ReduceL2", [x, b.constant([-1])], keepdims=1))


FAMILIES: Mapping[str, Family] = {
    **{name: partial(image_model, variant=variant) for name, variant in VARIANTS.items()},
    "clip_text_model": clip_text,
    "clip": clip,
}
