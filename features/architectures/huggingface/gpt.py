"""GPT-2 and what followed it: learned, rotary or linear positions, layer norms, plain feed-forwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

from predictor.features.architectures.huggingface.attention import (
    Attention,
    Pairing,
    Rotary,
    linear_biases,
)
from predictor.features.architectures.huggingface.cache import Caches, LayerCache
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
from predictor.features.architectures.huggingface.job import Family, Job
from predictor.features.architectures.huggingface.parts import FeedForward, Norm, NormKind
from predictor.features.architectures.huggingface.stack import Arrangement, Branch, Decoder, decoder
from predictor.features.builder import Tensor

# With the names under which the first checkpoints were published.
_FALCONS = ("falcon", "RefinedWeb", "RefinedWebModel")


def branches(
    job: Job, attention: Attention, feed_forward: FeedForward, position_bias: Tensor | None = None
) -> tuple[Branch, Branch]:
    """The two branches of a layer."""
    return partial(attention, job, position_bias=position_bias), partial(feed_forward, job.b)


def layer_norm(f: Fields, default: float = 1e-5) -> Norm:
    """The family's layer norm."""
    return Norm(NormKind.LAYER, f.number(*NORM_EPSILON, default=default))


def _sizes(f: Fields) -> tuple[int, int, int, int, int]:
    """(vocabulary, width, layers, heads, head size)."""
    width, heads = f.integer(*WIDTH), f.integer(*HEADS)
    return f.integer("vocab_size"), width, f.layers(*LAYERS), heads, f.divided(width, heads, *HEADS)


def _kv_heads(f: Fields, heads: int) -> int:
    """Heads of keys and values: one in GPTBigCode and the first Falcons, few in the later ones."""
    kind = f.get("model_type")
    if kind == "gpt_bigcode":
        return 1 if f.flag("multi_query", default=True) else heads
    if kind not in _FALCONS:
        return heads
    new = f.flag("new_decoder_architecture", default=False)
    if f.flag("multi_query", default=True) and not new:
        return 1
    return f.integer("num_kv_heads", "n_head_kv", default=heads) if new else heads


def caches(f: Fields) -> tuple[LayerCache, ...]:
    """What each layer keeps per token; GPT-Neo's windows hide old tokens, and do not forget them."""
    _, _, layers, heads, head_dim = _sizes(f)
    return (LayerCache(_kv_heads(f, heads), head_dim, head_dim),) * layers


def gpt2(job: Job) -> Sequence[Tensor]:
    """GPT-2; GPTBigCode (StarCoder, SantaCoder) with one head of keys and values."""
    f = job.fields
    vocabulary, width, layers, heads, head_dim = _sizes(f)
    big_code = f.get("model_type") == "gpt_bigcode"
    attention = Attention(heads, _kv_heads(f, heads), head_dim, bias=True, out_bias=True, joint=True)
    act = f.text(*ACTIVATION, default="gelu_pytorch_tanh" if big_code else "gelu_new")
    feed_forward = FeedForward(f.integer(*HIDDEN, default=4 * width), act, bias=True)
    return decoder(
        job,
        Decoder(
            vocabulary,
            width,
            layers,
            layer_norm(f),
            lambda job, _: branches(job, attention, feed_forward),
            positions=f.integer(*POSITIONS),
            tied=f.flag("tie_word_embeddings", default=True),
        ),
    )


def gpt_neo(job: Job) -> Sequence[Tensor]:
    """GPT-Neo: scores without scale, every second layer sees a window."""
    f = job.fields
    vocabulary, width, layers, heads, head_dim = _sizes(f)
    kinds = _neo_layers(f, layers)
    window = f.integer("window_size", default=256)
    feed_forward = FeedForward(
        f.integer(*HIDDEN, default=4 * width), f.text(*ACTIVATION, default="gelu_new"), bias=True
    )

    def layer(job: Job, index: int) -> tuple[Branch, Branch]:
        reach = window if kinds[index] == "local" else None
        attention = Attention(
            heads,
            heads,
            head_dim,
            out_bias=True,
            window=reach,
            keeps_window=False,
            scale=1.0,
            written_out=True,
        )
        return branches(job, attention, feed_forward)

    return decoder(
        job,
        Decoder(
            vocabulary,
            width,
            layers,
            layer_norm(f),
            layer,
            positions=f.integer(*POSITIONS),
            tied=f.flag("tie_word_embeddings", default=True),
        ),
    )


def _neo_layers(f: Fields, layers: int) -> list[str]:
    """`attention_types` is a list of (list of kinds, how often it repeats)."""
    groups = f.get("attention_types") or [[["global", "local"], -(-layers // 2)]]
    try:
        repeated = (str(kind) for names, times in groups for _ in range(times) for kind in names)
        kinds = list(islice(repeated, layers))
    except (TypeError, ValueError):
        kinds = []
    return kinds + ["global"] * (layers - len(kinds))


def gptj(job: Job) -> Sequence[Tensor]:
    """GPT-J; CodeGen, whose query, key and value are one matrix."""
    f = job.fields
    vocabulary, width, layers, heads, head_dim = _sizes(f)
    rotary = Rotary(f.integer("rotary_dim", default=head_dim), Pairing.NEIGHBOURS)
    joint = f.get("model_type") == "codegen"
    attention = Attention(heads, heads, head_dim, joint=joint, rotary=rotary)
    feed_forward = FeedForward(
        f.integer(*HIDDEN, default=4 * width), f.text(*ACTIVATION, default="gelu_new"), bias=True
    )
    return decoder(
        job,
        Decoder(
            vocabulary,
            width,
            layers,
            layer_norm(f),
            lambda job, _: branches(job, attention, feed_forward),
            Arrangement.PARALLEL,
            tied=f.flag("tie_word_embeddings", default=False),
            head_bias=True,
        ),
    )


def gpt_neox(job: Job) -> Sequence[Tensor]:
    """GPT-NeoX, Pythia: part of each head rotated, both branches read the stream side by side."""
    f = job.fields
    vocabulary, width, layers, heads, head_dim = _sizes(f)
    fraction = f.number("rotary_pct", "partial_rotary_factor", default=0.25)
    biased = f.flag("attention_bias", default=True)
    attention = Attention(
        heads,
        heads,
        head_dim,
        bias=biased,
        out_bias=biased,
        joint=True,
        rotary=Rotary(int(head_dim * fraction)),
    )
    feed_forward = FeedForward(f.integer(*HIDDEN), f.text(*ACTIVATION, default="gelu"), bias=True)
    parallel = f.flag("use_parallel_residual", default=True)
    return decoder(
        job,
        Decoder(
            vocabulary,
            width,
            layers,
            layer_norm(f),
            lambda job, _: branches(job, attention, feed_forward),
            Arrangement.PARALLEL_NORMS if parallel else Arrangement.BEFORE,
            tied=f.flag("tie_word_embeddings", default=False),
        ),
    )


def opt(job: Job) -> Sequence[Tensor]:
    """OPT; the 350M size normalises after each branch and keeps narrower word vectors."""
    f = job.fields
    vocabulary, width, layers, heads, head_dim = _sizes(f)
    biased = f.flag("enable_bias", default=True)
    attention = Attention(heads, heads, head_dim, bias=biased, out_bias=biased)
    feed_forward = FeedForward(f.integer(*HIDDEN), f.text(*ACTIVATION, default="relu"), bias=biased)
    before = f.flag("do_layer_norm_before", default=True)
    affine = f.flag("layer_norm_elementwise_affine", default=True)
    return decoder(
        job,
        Decoder(
            vocabulary,
            width,
            layers,
            Norm(NormKind.LAYER if affine else NormKind.LAYER_PLAIN),
            lambda job, _: branches(job, attention, feed_forward),
            Arrangement.BEFORE if before else Arrangement.AFTER,
            positions=f.integer(*POSITIONS),
            # The first two rows are reserved by the implementation.
            position_offset=2,
            embedding_width=f.optional_integer("word_embed_proj_dim"),
            final_norm=before and not f.flag("_remove_final_layer_norm", default=False),
            tied=f.flag("tie_word_embeddings", default=True),
        ),
    )


def bloom(job: Job) -> Sequence[Tensor]:
    """BLOOM: linear position biases, written-out attention, a norm after the word vectors."""
    f = job.fields
    vocabulary, width, layers, heads, head_dim = _sizes(f)
    attention = Attention(heads, heads, head_dim, bias=True, out_bias=True, joint=True, written_out=True)
    feed_forward = FeedForward(4 * width, "gelu_new", bias=True)
    return decoder(
        job,
        Decoder(
            vocabulary,
            width,
            layers,
            layer_norm(f),
            lambda job, _: branches(job, attention, feed_forward, linear_biases(job, heads, job.length)),
            embedding_norm=True,
            tied=f.flag("tie_word_embeddings", default=True),
        ),
    )


def mpt(job: Job) -> Sequence[Tensor]:
    """MPT: linear position biases, written-out attention, no biases anywhere."""
    f = job.fields
    vocabulary, width, layers, heads, head_dim = _sizes(f)
    attention = Attention(heads, heads, head_dim, joint=True, written_out=True)
    feed_forward = FeedForward(4 * width, "gelu")
    norm = Norm(NormKind.LAYER_NO_SHIFT, f.number(*NORM_EPSILON, default=1e-5))
    return decoder(
        job,
        Decoder(
            vocabulary,
            width,
            layers,
            norm,
            lambda job, _: branches(job, attention, feed_forward, linear_biases(job, heads, job.length)),
            tied=f.flag("tie_word_embeddings", default=True),
        ),
    )


def falcon(job: Job) -> Sequence[Tensor]:
    """Falcon: rotary or linear positions, one or few heads of keys and values, parallel branches."""
    f = job.fields
    vocabulary, width, layers, heads, head_dim = _sizes(f)
    new = f.flag("new_decoder_architecture", default=False)
    biased, alibi = f.flag("bias", default=False), f.flag("alibi", default=False)
    attention = Attention(
        heads,
        _kv_heads(f, heads),
        head_dim,
        bias=biased,
        out_bias=biased,
        joint=True,
        rotary=None if alibi else Rotary(head_dim),
    )
    feed_forward = FeedForward(
        f.integer("ffn_hidden_size", default=4 * width), f.text("activation", default="gelu"), bias=biased
    )
    arrangement = Arrangement.BEFORE
    if new and f.integer("num_ln_in_parallel_attn", default=2) == 2:
        arrangement = Arrangement.PARALLEL_NORMS
    elif new or f.flag("parallel_attn", default=True):
        arrangement = Arrangement.PARALLEL

    def layer(job: Job, index: int) -> tuple[Branch, Branch]:
        bias = linear_biases(job, heads, job.length) if alibi else None
        return branches(job, attention, feed_forward, bias)

    tied = f.flag("tie_word_embeddings", default=True)
    return decoder(job, Decoder(vocabulary, width, layers, layer_norm(f), layer, arrangement, tied=tied))


FAMILIES: Mapping[str, Family] = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt2,
    "gpt_neo": gpt_neo,
    "gptj": gptj,
    "codegen": gptj,
    "gpt_neox": gpt_neox,
    "opt": opt,
    "bloom": bloom,
    "mpt": mpt,
    **dict.fromkeys(_FALCONS, falcon),
}
CACHES: Mapping[str, Caches] = dict.fromkeys(FAMILIES, caches)
