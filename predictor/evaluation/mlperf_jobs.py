"""The MLPerf Training jobs whose nodes were metered, as graphs: networks, sizes per device, plans.

What the logs leave open is fixed here: RetinaNet on ResNet-50 for the benchmark's ResNeXt-50; LoRA trained as
the whole model, whose kernels run at like utilisations; DLRM's tables by their 26 cardinalities and look-ups.
Submissions fuse and capture what eager frameworks launch one by one, so the runtime is `compiled`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from predictor.features.architectures import architecture
from predictor.features.architectures.from_config import from_config
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType
from predictor.parallel.plan import Plan

_LLAMA2_70B: Mapping[str, object] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
# Rows (capped at 40 M) and look-ups per sample of the Criteo tables of DLRM-DCNv2 (MLPerf reference).
_TABLES: tuple[tuple[int, int], ...] = (
    (40_000_000, 3), (39_060, 2), (17_295, 1), (7_424, 2), (20_265, 6), (3, 1), (7_122, 1), (1_543, 1),
    (63, 1), (40_000_000, 7), (3_067_956, 3), (405_282, 8), (10, 1), (2_209, 6), (11_938, 9), (155, 5),
    (4, 1), (976, 1), (14, 1), (40_000_000, 12), (40_000_000, 100), (40_000_000, 27), (590_152, 10),
    (12_973, 3), (108, 1), (36, 1),
)  # fmt: skip
_WIDTH, _RANK = 128, 512


@dataclass(frozen=True, slots=True)
class MlperfJob:
    """One benchmark on some nodes: the graph for one replica's batch, optimizer and plan."""

    graph: Callable[[int], bytes]
    replica_batch: int
    optimizer: str
    plan: Plan


def mlperf_job(benchmark: str, nodes: int, batch: int) -> MlperfJob:
    """The job of a benchmark whose global batch is `batch` on `nodes` nodes of eight devices."""
    devices = 8 * nodes
    if benchmark == "llama2_70b_lora":
        parts = 2 if nodes > 1 else 1
        return MlperfJob(_llama, 1, "adamw", Plan(dp=devices // (4 * parts), tp=4, cp=parts))
    if benchmark == "dlrm_dcnv2":
        # Tables lie on one rank each; ranks exchange pooled vectors, not gradients of tables.
        return MlperfJob(dlrm_dcnv2, batch // devices, "sgd", Plan())
    graph, optimizer = _GRAPHS[benchmark]
    return MlperfJob(graph, max(1, batch // devices), optimizer, Plan(dp=devices))


def _bert(batch: int) -> bytes:
    return architecture("bert_large_pretraining", batch=batch, sequence=512)


def _resnet(batch: int) -> bytes:
    return architecture("resnet50", batch=batch)


def _retinanet(batch: int) -> bytes:
    return architecture("retinanet_r50_fpn", batch=batch)


def _llama(batch: int) -> bytes:
    return from_config(_LLAMA2_70B, batch=batch, sequence=8192)


def unet3d(batch: int) -> bytes:
    """nnU-Net on 128^3 voxels as MLPerf trains it: five halvings, 32 to 320 channels, instance norms."""
    b = GraphBuilder("unet3d")
    x = b.input("volume", (batch, 1, 128, 128, 128))
    channels = (32, 64, 128, 256, 320, 320)
    skips: list[Tensor] = []
    for level, width in enumerate(channels):
        x = _convolutions(b, x, width, 1 if level == 0 else 2)
        skips.append(x)
    for level in range(len(channels) - 2, -1, -1):
        up = b.parameter((x.size(1), channels[level], 2, 2, 2), "up")
        x = b.op("ConvTranspose", [x, up], strides=[2, 2, 2], kernel_shape=[2, 2, 2])
        x = _convolutions(b, b.concat([x, skips[level]], axis=1), channels[level], 1)
    logits = b.conv(x, 3, kernel=(1, 1, 1), stride=(1, 1, 1), padding=(0, 0, 0), bias=True)
    return b.build([logits])


def _convolutions(b: GraphBuilder, x: Tensor, width: int, stride: int) -> Tensor:
    for step in (stride, 1):
        x = b.conv(x, width, kernel=(3, 3, 3), stride=(step,) * 3, padding=(1, 1, 1), bias=False)
        scale, shift = b.parameter((width,), "scale"), b.parameter((width,), "shift")
        x = b.relu(b.op("InstanceNormalization", [x, scale, shift]))
    return x


def dlrm_dcnv2(batch: int) -> bytes:
    """DLRM with a low-rank cross network: 26 bags of embeddings, three crosses of rank 512, two MLPs."""
    b = GraphBuilder("dlrm_dcnv2")
    dense = b.input("dense", (batch, 13))
    for width in (512, 256, _WIDTH):
        dense = b.relu(b.linear(dense, width))
    bags = []
    for index, (rows, hot) in enumerate(_TABLES):
        ids = b.input(f"ids{index}", (batch, hot), DType.INT64)
        # Rows that a step does not look up are neither updated nor exchanged, and no rank holds all tables.
        found = b.embedding(ids, min(rows, batch * hot), _WIDTH)
        bags.append(b.op("ReduceSum", [found, b.constant([1])], keepdims=0))
    first = x = b.concat([dense, *bags], axis=1)
    for _ in range(3):
        x = b.add(b.mul(first, b.linear(b.linear(x, _RANK, bias=False), first.size(1))), x)
    for width in (1024, 1024, 512, 256):
        x = b.relu(b.linear(x, width))
    return b.build([b.linear(x, 1)])


_GRAPHS: Mapping[str, tuple[Callable[[int], bytes], str]] = {
    "bert": (_bert, "adamw"),
    "resnet": (_resnet, "momentum"),
    "ssd": (_retinanet, "adamw"),
    "unet3d": (unet3d, "momentum"),
}
