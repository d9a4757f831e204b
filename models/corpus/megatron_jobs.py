"""From the command line of a Megatron-LM case to a rank's graph, a plan, and what libraries hold beside them.

What a case leaves open (which attention kernel runs, how much workspace cuBLAS takes) is decided by the
software; the rules below name the facts they rest on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from predictor.features.architectures.megatron import (
    AttentionKernel,
    Experts,
    Latent,
    MegatronConfig,
    StateSpace,
    Style,
    megatron_graph,
)
from predictor.features.dtype import DType
from predictor.features.lowering.layers import named_segments
from predictor.features.programs.program import program_of
from predictor.models.corpus.megatron_golden import GoldenRun
from predictor.parallel.memory_stages import RankMemory, StageMemory, stage_memories
from predictor.parallel.memory_weights import GradientBuffers
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram
from predictor.types import Mode, Optimizer, Precision, Schedule
from predictor.units import MIB

# GPT-2's byte pairs, and the WordPieces of BERT with cases; T5 adds its sentinels to the latter.
_GPT2_WORDS, _BERT_WORDS = 50257, 28996
# When the images of either branch got a newer torch and Transformer Engine, seen from what they hold.
_LTS_RENEWED, _DEV_RENEWED = 2025.83, 2025.35
_STYLES = {"bert": Style.BERT, "t5": Style.T5, "hybrid": Style.HYBRID}


@dataclass(frozen=True, slots=True)
class MegatronJob:
    """One case as a rank's memory sees it.

    Attributes:
        layer_ends: layers up to and including each virtual stage.
        buffers: how gradients are kept. expert_shards: ranks that hold the same experts.
        library_bytes: what lives throughout beside the graph's tensors, by name.
    """

    config: MegatronConfig
    plan: Plan
    layer_ends: tuple[int, ...]
    buffers: GradientBuffers
    expert_shards: int
    library_bytes: Mapping[str, float]


class _Arguments:
    """Typed reading of a command line; an absent argument has its default."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def flag(self, name: str) -> bool:
        """True where it is set."""
        return self._given.get(name, "false").lower() == "true"

    def number(self, name: str, default: int = 0) -> int:
        """A whole number, whatever way it is written."""
        return int(float(self._given.get(name, default)))

    def text(self, name: str, default: str = "") -> str:
        """A word."""
        return self._given.get(name, default)

    def words(self, name: str, default: str = "") -> frozenset[str]:
        """A list in brackets."""
        return frozenset(self._given.get(name, default).strip("[]").split())


def job_of(run: GoldenRun) -> MegatronJob:
    """The job of a run."""
    a = _Arguments(run.arguments)
    style = _STYLES.get(run.kind, Style.GPT)
    encoder_stages = a.number("encoder-pipeline-model-parallel-size")
    tp, cp = a.number("tensor-model-parallel-size", 1), a.number("context-parallel-size", 1)
    pp = a.number("pipeline-model-parallel-size", 1) + encoder_stages
    replicas = max(1, run.devices // (tp * pp * cp))
    config = _config(run, a, style, tp, cp)
    layout = _layout(a)
    chunks = a.number("num-virtual-stages-per-pipeline-rank")
    chunk_layers = a.number("num-layers-per-virtual-pipeline-stage")
    chunks = chunks or (config.layers // pp // chunk_layers if chunk_layers else max(1, len(layout) // pp))
    interleaved = pp > 1 and chunks > 1
    microbatches = max(1, a.number("global-batch-size", 1) // (config.micro_batch * replicas))
    if interleaved:
        microbatches = max(pp, microbatches // pp * pp)
    plan = Plan(
        dp=replicas,
        cp=cp,
        pp=pp,
        zero=_zero(a),
        shard_group=_shard_group(a, replicas),
        microbatches=microbatches,
        schedule=Schedule.INTERLEAVED if interleaved else Schedule.ONE_F_ONE_B,
        virtual_stages=chunks if interleaved else 1,
    )
    return MegatronJob(
        config=config,
        plan=plan,
        layer_ends=_ends(a, config, layout, encoder_stages, pp, pp * plan.virtual_stages),
        buffers=GradientBuffers(
            resident=True,
            wide=not a.flag("fp16"),
            fused=not a.flag("no-gradient-accumulation-fusion"),
            copied=False,
        ),
        expert_shards=_expert_shards(run, a, config, pp),
        library_bytes=_library_bytes(run, a, config),
    )


def rank_memory(job: MegatronJob) -> RankMemory:
    """The memory of one rank that runs the whole depth of the model."""
    made = megatron_graph(job.config)
    program = program_of(
        made.graph,
        mode=Mode.TRAIN,
        precision=Precision.BF16,
        optimizer=Optimizer.ADAM,
        master_weights=True,
        wide_gradients=job.buffers.wide,
        replays=made.again,
    )
    names = list(dict.fromkeys(made.pieces))
    repeats = ["layer" if name.startswith("layer") else name for name in names]
    pieces = named_segments(made.graph, made.pieces, repeats)
    return RankMemory(RankProgram(program, made.graph, pieces, made.experts), made.away)


def last_stage(job: MegatronJob, memory: RankMemory) -> StageMemory:
    """The stage of the rank that was measured."""
    ends = [1 + end for end in job.layer_ends[:-1]]
    stages = stage_memories(
        memory,
        [*ends, memory.pieces],
        job.plan,
        training=True,
        buffers=job.buffers,
        expert_shards=job.expert_shards,
    )
    return stages[-1]


def _config(run: GoldenRun, a: _Arguments, style: Style, tp: int, cp: int) -> MegatronConfig:
    local = "local" if a.flag("use-legacy-models") else "transformer_engine"
    engine = a.text("transformer-impl", local) == "transformer_engine" and a.text("spec") != "local"
    hidden, heads = a.number("hidden-size"), a.number("num-attention-heads", 1)
    layers = a.number("num-layers") or a.number("encoder-num-layers", 12)
    pattern = "".join(_pattern(a))
    if style is Style.HYBRID:
        layers = len(pattern)
    positions = a.text("position-embedding-type", "learned_absolute")
    fused_loss = a.flag("cross-entropy-loss-fusion")
    space_width = a.number("mamba-head-dim", 64)
    return MegatronConfig(
        style=style,
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=a.number("ffn-hidden-size", 4 * hidden),
        vocabulary=_vocabulary(a, style, tp),
        sequence=a.number("seq-length") or a.number("encoder-seq-length", 512),
        micro_batch=a.number("micro-batch-size", 1),
        head_dim=a.number("kv-channels", hidden // heads),
        kv_heads=a.number("num-query-groups", heads) if a.flag("group-query-attention") else heads,
        positions=a.number("max-position-embeddings") if positions == "learned_absolute" else 0,
        decoder_layers=a.number("decoder-num-layers", layers) if style is Style.T5 else 0,
        decoder_sequence=a.number("decoder-seq-length", 128) if style is Style.T5 else 0,
        dtype=DType.FLOAT16 if a.flag("fp16") else DType.BFLOAT16,
        tp=tp,
        cp=cp,
        sequence_parallel=a.flag("sequence-parallel") and tp > 1,
        engine=engine,
        attention=_attention_kernel(run, a, engine),
        wide_loss=not (fused_loss and a.text("cross-entropy-fusion-impl") == "te"),
        loss_copies=_loss_copies(run, a),
        hidden_dropout=float(a.text("hidden-dropout", "0.1")) > 0,
        attention_dropout=float(a.text("attention-dropout", "0.1")) > 0,
        bias=not a.flag("disable-bias-linear"),
        qkv_bias=a.flag("add-qkv-bias"),
        rms=a.text("normalization") == "RMSNorm",
        gated=a.flag("swiglu"),
        rotary=positions == "rope",
        query_key_norm=a.flag("qk-layernorm"),
        tied=not a.flag("untie-embeddings-and-output-weights"),
        binary_head=not a.flag("bert-no-binary-head"),
        experts=_experts(a, layers, tp),
        latent=_latent(a),
        spaces=StateSpace(
            pattern,
            a.number("mamba-num-heads", 2 * hidden // space_width),
            space_width,
            a.number("mamba-num-groups", 8),
            a.number("mamba-state-dim", 128),
        )
        if style is Style.HYBRID
        else None,
        recomputed=_recomputed(a),
        offloaded=a.words("offload-modules") if a.flag("fine-grained-activation-offloading") else frozenset(),
        future_layers=a.number("mtp-num-layers"),
    )


def _attention_kernel(run: GoldenRun, a: _Arguments, engine: bool) -> AttentionKernel:
    if not engine:
        return AttentionKernel.LOCAL
    backend = a.text("attention-backend", "auto")
    if backend != "auto":
        return AttentionKernel(backend)
    deterministic = run.environment.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0"
    if run.branch == "lts" and run.year < _LTS_RENEWED and deterministic:
        # Its Transformer Engine had no fused kernel with reproducible gradients.
        return AttentionKernel.UNFUSED
    return AttentionKernel.FUSED if run.device == "h100-sxm-80gb" else AttentionKernel.FLASH


def _loss_copies(run: GoldenRun, a: _Arguments) -> int:
    """FP32 copies of the scores that the compiled loss holds beside its own, by torch's generation."""
    native = a.text("cross-entropy-fusion-impl", "native") == "native"
    if not a.flag("cross-entropy-loss-fusion") or not native:
        return 0
    if run.branch == "lts" and run.year < _LTS_RENEWED:
        return 3
    return 2 if run.year < _DEV_RENEWED else 1


def _vocabulary(a: _Arguments, style: Style, tp: int) -> int:
    """Words, padded so that every tensor rank has as many."""
    words = a.number("vocab-size")
    if not words:
        plain = _BERT_WORDS if style in (Style.BERT, Style.T5) else _GPT2_WORDS
        words = plain + a.number("vocab-extra-ids")
    step = a.number("make-vocab-size-divisible-by", 128) * tp
    return -(-words // step) * step


def _zero(a: _Arguments) -> int:
    if a.flag("use-megatron-fsdp") or a.flag("use-custom-fsdp"):
        strategy = a.text("data-parallel-sharding-strategy", "no_shard")
        return {"optim_grads_params": 3, "optim_grads": 2, "optim": 1}.get(strategy, 0)
    return int(a.flag("use-distributed-optimizer"))


def _shard_group(a: _Arguments, replicas: int) -> int | None:
    """Replicas that share one copy of what is sharded, where there are several copies."""
    copies = a.number("num-distributed-optimizer-instances", 1)
    return replicas // copies if _zero(a) and copies > 1 and replicas % copies == 0 else None


def _expert_shards(run: GoldenRun, a: _Arguments, config: MegatronConfig, pp: int) -> int:
    """Ranks that hold the same experts; several copies of what is sharded divide them."""
    experts = config.experts
    ranks = max(1, run.devices // (pp * (experts.ep * experts.etp if experts else 1)))
    copies = a.number("num-distributed-optimizer-instances", 1)
    return ranks // copies if ranks % copies == 0 else ranks


def _experts(a: _Arguments, layers: int, tp: int) -> Experts | None:
    if "num-experts" not in a:
        return None
    return Experts(
        count=a.number("num-experts"),
        top_k=a.number("moe-router-topk", 2),
        hidden=a.number("moe-ffn-hidden-size", a.number("ffn-hidden-size", 4 * a.number("hidden-size"))),
        shared_hidden=a.number("moe-shared-expert-intermediate-size"),
        ep=a.number("expert-model-parallel-size", 1),
        etp=a.number("expert-tensor-parallel-size", tp),
        grouped=a.flag("moe-grouped-gemm"),
        dispatcher=a.text("moe-token-dispatcher-type", "allgather"),
        wide_router=a.text("moe-router-dtype") == "fp32",
        layers=_mixture_layers(a, layers),
    )


def _mixture_layers(a: _Arguments, layers: int) -> tuple[bool, ...] | None:
    """`([0]*3+[1]*12)`: three layers without experts, then twelve with."""
    runs = re.findall(r"\[(\d)\]\*(\d+)", a.text("moe-layer-freq"))
    if not runs:
        return None
    return tuple(kind == "1" for kind, times in runs for _ in range(int(times)))[:layers]


def _latent(a: _Arguments) -> Latent | None:
    if not a.flag("multi-latent-attention"):
        return None
    return Latent(
        a.number("q-lora-rank") if "q-lora-rank" in a else None,
        a.number("kv-lora-rank", 512),
        a.number("qk-head-dim", 128),
        a.number("qk-pos-emb-head-dim", 64),
        a.number("v-head-dim", 128),
    )


def _recomputed(a: _Arguments) -> frozenset[str]:
    kind = a.text("recompute-granularity")
    if kind == "full":
        return frozenset({"layer"})
    return a.words("recompute-modules", "[core_attn]") if kind == "selective" else frozenset()


def _pattern(a: _Arguments) -> list[str]:
    """Symbols of a hybrid model's layers by stage; what follows a slash predicts words further ahead."""
    text = a.text("hybrid-layer-pattern") or a.text("hybrid-override-pattern")
    return text.replace("\\", "").split("/")[0].split("|")


def _layout(a: _Arguments) -> tuple[int, ...]:
    """Layers up to each virtual stage: `Et*3|(tt|)*6mL` has 3 layers, then six times 2, then none."""
    text = a.text("pipeline-model-parallel-layout").replace("\\", "")
    text = re.sub(r"\(([^)]*)\)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    text = re.sub(r"(\w)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    return tuple(accumulate(part.count("t") for part in text.split("|"))) if text else ()


def _ends(
    a: _Arguments,
    config: MegatronConfig,
    layout: tuple[int, ...],
    encoder_stages: int,
    pp: int,
    stages: int,
) -> tuple[int, ...]:
    """Layers up to each virtual stage, of an encoder and a decoder together."""
    layers = config.layers + config.decoder_layers
    if encoder_stages:
        first = [config.layers * (stage + 1) // encoder_stages for stage in range(encoder_stages)]
        decoder_stages = pp - encoder_stages
        own = [config.decoder_layers * (stage + 1) // decoder_stages for stage in range(decoder_stages)]
        return (*first, *(config.layers + end for end in own))
    if layout:
        return layout
    pattern = _pattern(a)
    if len(pattern) > 1:
        return tuple(accumulate(map(len, pattern)))
    # Embedding and loss may count as a layer each.
    first_extra = int(a.flag("account-for-embedding-in-pipeline-split"))
    each = (layers + first_extra + int(a.flag("account-for-loss-in-pipeline-split"))) // stages
    return (*(each * (stage + 1) - first_extra for stage in range(stages - 1)), layers)


def _library_bytes(run: GoldenRun, a: _Arguments, config: MegatronConfig) -> dict[str, float]:
    """What lives throughout an iteration, by what holds it.

    cublas: torch keeps a workspace per thread that launches products, forward's and backward's; 8.125 MiB, or
    32 MiB on Hopper and where CUBLAS_WORKSPACE_CONFIG says `:4096:8` (aten's CublasHandlePool.cpp). engine:
    Transformer Engine's own, 4 MiB before Hopper and 32 MiB since; grouped products run on four more streams.
    scores: Megatron's local attention multiplies into a buffer that it keeps. mask: a byte per pair of tokens
    from the data loader. deferred: gradients of scores, and inputs of the head, whose weight gradient is put
    off.
    """
    hopper = run.device == "h100-sxm-80gb"
    configured = ":4096:8" in run.environment.get("CUBLAS_WORKSPACE_CONFIG", "")
    found = {"cublas": 2 * (32.0 if hopper or configured else 8.125) * MIB}
    length = config.sequence // config.cp
    if config.engine:
        streams = 5 if config.experts and config.experts.grouped else 1
        found["engine"] = streams * (4.0 if run.device == "a100-sxm-80gb" else 32.0) * MIB
    if config.attention is AttentionKernel.LOCAL:
        found["scores"] = 2.0 * config.micro_batch * (config.heads // config.tp) * length * length
    if config.style in (Style.GPT, Style.HYBRID) and not a.flag("no-create-attention-mask-in-dataloader"):
        found["mask"] = float(config.micro_batch * length * config.sequence)
    if a.flag("defer-embedding-wgrad-compute"):
        kept = a.number("wgrad-deferral-limit") * config.tokens
        found["deferred"] = 2.0 * kept * (config.vocabulary // config.tp + config.hidden)
    return found
