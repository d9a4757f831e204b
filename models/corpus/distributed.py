"""Published iteration times of distributed training with their full configuration, as jobs with a plan.

Of `curated/distributed_training.csv.gz` these rows stay out: 154 of llm-foundry whose columns are shifted
(the same table stands right under another commit) and D00940 (sequence 0), the ten that were written from
memory (`verified` = 0), and Korthikanti et al., which is evaluated (D6) and never trained on. D01651 is
D01650 again under another device, and faster than that device's peak; D00965 states ten times and D00907 and
D00930 state twice the time that belongs to their own TFLOP/s. The 39 rows of a draft of Megatron-Bridge's
page of 25.11 all repeat token rates of 25.09, 13 of them under another device or model, beside new TFLOP/s.
What a row does not say and is assumed here: vTrain's vocabulary of 51,200 and full recomputation (its
repository's validation runs); no recomputation where NVIDIA's tables are silent, but in JAX's as much as
makes the activations fit; optimizer states sharded among replicas in NVIDIA's tables (their recipes'
distributed optimizer); attention written out in Paxml, where Transformer Engine's fused one had to be asked
for (its 126M runs take what scores in memory cost), and nothing dropped out there (the default of its
language models).
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from predictor.errors import InvalidData, InvalidPlan
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.models.corpus.distributed_graphs import UNBUILT, Recipe
from predictor.models.corpus.whole_model import counted
from predictor.parallel.plan import Plan
from predictor.types import Offload, Precision, Recompute, Runtime, Schedule
from predictor.units import GIGA, MIB

FILE = "distributed_training.csv.gz"
SHIFTED_COMMITS = frozenset({"53a30285e104", "669d1aa39047"})
SHIFTED_ROWS = frozenset({"D00940"})
DRAFT_COMMIT = "35b5ecb74025"
IMPOSSIBLE_ROWS = frozenset({"D01651", "D00965", "D00907", "D00930"})
EVALUATED_ONLY = "Korthikanti"

VTRAIN, FOUNDRY, BRIDGE, NEMO = "vtrain", "llm-foundry", "megatron-bridge", "nemo"
INTERN, JAX, MEGATRON = "internevo", "jax-toolbox", "megatron-lm"
BIGSCIENCE, BIGSCIENCE_V100 = "bigscience-a100", "bigscience-v100"
_SOURCES: Mapping[str, str] = {
    "VIA-Research/vTrain": VTRAIN,
    "mosaicml/llm-foundry": FOUNDRY,
    "NVIDIA-NeMo/Megatron-Bridge": BRIDGE,
    "NVIDIA/NeMo": NEMO,
    "InternLM/InternEvo": INTERN,
    "NVIDIA/JAX-Toolbox": JAX,
    "NVIDIA/Megatron-LM": MEGATRON,
    "bigscience-workshop/bigscience": BIGSCIENCE,
}
SOURCES = (*_SOURCES.values(), BIGSCIENCE_V100)
TUNED = frozenset({BRIDGE, NEMO, JAX, MEGATRON})
"""Tables of vendors: the best of many settings that were tried."""
NARROW = ("", "fp8", "fp4")
"""Arithmetic of products with weights where it is narrower than the job's 16 bits."""


@dataclass(frozen=True, slots=True)
class DistributedRow:
    """One published iteration.

    Attributes:
        model: what an evaluation holds out together. device: catalogue id.
        batch: samples of all replicas. narrow: see NARROW. framework: release family that ran it.
        tuned: from a vendor's table of best settings.
    """

    row_id: str
    source: str
    model: str
    recipe: Recipe
    device: str
    cluster: ClusterSpec
    batch: int
    precision: Precision
    narrow: str
    runtime: Runtime
    plan: Plan
    measured_s: float
    framework: str
    tuned: bool


@dataclass(frozen=True, slots=True)
class Published:
    """Rows, and how many of the full-configuration rows are left out by reason."""

    rows: tuple[DistributedRow, ...]
    dropped: Mapping[str, int]


def read_published(folder: Path) -> Published:
    """All usable rows of `folder`/distributed_training.csv.gz. Raises InvalidData."""
    rows: list[DistributedRow] = []
    dropped: list[str] = []
    for record in _records(folder / FILE):
        try:
            rows.append(_row(record))
        except InvalidPlan as error:
            dropped.append(f"plan: {error.message.split(';')[0][:60]}")
        except _LeftOut as reason:
            dropped.append(str(reason))
    return Published(tuple(rows), counted(dropped))


class _LeftOut(Exception):
    """Why a row is not used."""


def _records(path: Path) -> Iterable[Mapping[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
            return with_virtual_stages([row for row in csv.DictReader(lines) if is_usable(row)])
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise InvalidData(f"{path}: {error}; expected the curated table of distributed training") from None


def with_virtual_stages(records: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """`records`, virtual stages filled in that a table leaves out and another of its publisher prints.

    NeMo's tables of fine-tuning and an older page of its have no such column, for models and ranks of which
    others do (five rows are even the same runs).
    """
    printed = {_split(record): record["vpp"] for record in records if record["vpp"]}
    return [{**record, "vpp": record["vpp"] or printed.get(_split(record), "")} for record in records]


def _split(record: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(record[name] for name in ("source_repo", "model_key", "device", "tp", "pp"))


def is_usable(record: Mapping[str, str]) -> bool:
    """Full configuration, read from its publisher, columns in place, not kept for evaluation alone."""
    return (
        record["full_config"] == "1"
        and record["verified"] == "1"
        and record["source_commit"] not in SHIFTED_COMMITS | {DRAFT_COMMIT}
        and record["row_id"] not in SHIFTED_ROWS | IMPOSSIBLE_ROWS
        and EVALUATED_ONLY not in record["source_repo"]
    )


def _row(record: Mapping[str, str]) -> DistributedRow:
    source = _SOURCES[record["source_repo"]]
    if source == BIGSCIENCE and record["device"].startswith("V100"):
        source = BIGSCIENCE_V100
    if record["arch"] in UNBUILT:
        raise _LeftOut("no builder for its architecture")
    if "LoRA" in record["task"]:
        raise _LeftOut("adapters")
    if "MTP" in record["model"] and "w/o" not in record["model"]:
        raise _LeftOut("predicts several tokens")
    device, cluster = _machine(record, source)
    precision, narrow = _precision(record)
    plan, batch = _plan(record, source)
    return DistributedRow(
        row_id=record["row_id"],
        source=source,
        model=record["model_key"] or record["model"],
        recipe=_recipe(record, source),
        device=device,
        cluster=cluster,
        batch=batch,
        precision=precision,
        narrow=narrow,
        runtime=Runtime.COMPILED if source in TUNED else Runtime.EAGER,
        plan=plan,
        measured_s=float(record["step_time_s_final"]),
        framework=record["framework"],
        tuned=source in TUNED,
    )


def _whole(record: Mapping[str, str], name: str, default: int = 1) -> int:
    return int(float(record[name])) if record[name] else default


def _recipe(record: Mapping[str, str], source: str) -> Recipe:
    heads = _whole(record, "heads")
    width = _whole(record, "hidden")
    style = record["arch"]
    # T5's heads have a size of their own.
    if width % heads and style != "t5":
        raise _LeftOut("heads do not divide the width")
    return Recipe(
        style=style,
        layers=_whole(record, "layers"),
        width=width,
        hidden=_whole(record, "ffn_hidden", 4 * width),
        heads=heads,
        kv_heads=_whole(record, "kv_heads", heads),
        head_dim=_whole(record, "head_dim", 0),
        vocabulary=_whole(record, "vocab", 51200),
        sequence=_whole(record, "seq_len"),
        flash=_has_flash(record, source),
        experts=_whole(record, "n_experts", 0),
        chosen=_whole(record, "moe_topk", 0),
        expert_hidden=_whole(record, "moe_ffn_hidden", 0),
        # Paxml's language models drop nothing unless told to.
        drops=source != JAX,
    )


def _has_flash(record: Mapping[str, str], source: str) -> bool:
    """Attention in one kernel: of Transformer Engine, or named; not in Megatron-LM of 2021 and 2022."""
    if source == JAX:
        engine = record["precision"].startswith("TE") and "Paxml" not in record["framework"]
        return engine or "flash" in record["recompute"]
    return source not in (VTRAIN, BIGSCIENCE, BIGSCIENCE_V100)


def _precision(record: Mapping[str, str]) -> tuple[Precision, str]:
    text = record["precision"].lower()
    narrow = "fp4" if "fp4" in text else "fp8" if "fp8" in text else ""
    return (Precision.FP16 if text == "fp16" else Precision.BF16), narrow


# Who averages gradients when backward is over, and how much at once. DeepSpeed takes 5e8 numbers; scripts
# of T5X ask XLA for all-reduces of 130 MiB, and not for the scheduler that hides them.
_DEEPSPEED_BYTES = dict.fromkeys((VTRAIN, BIGSCIENCE, BIGSCIENCE_V100), 2 * 500_000_000)
_T5X_BYTES = 130 * MIB


def _plan(record: Mapping[str, str], source: str) -> tuple[Plan, int]:
    """The plan and the global batch."""
    devices = _whole(record, "n_devices")
    tp, pp, cp = (_whole(record, name) for name in ("tp", "pp", "cp"))
    ep = _whole(record, "ep")
    dp, left = divmod(devices, tp * pp * cp)
    if left or not dp:
        raise _LeftOut("ranks do not divide the devices")
    batch, micro = _whole(record, "global_batch"), _whole(record, "micro_batch")
    microbatches, left = divmod(batch, dp * micro)
    if left or not microbatches:
        raise _LeftOut("microbatches do not divide the batch")
    if dp % ep:
        raise _LeftOut("expert ranks span tensor or sequence ranks")
    zero, group = _sharding(record, source, dp)
    chunks = _whole(record, "vpp")
    interleaved = pp > 1 and chunks > 1 and microbatches % pp == 0
    modern = source in TUNED
    late_bytes = _T5X_BYTES if "T5X" in record["framework"] else _DEEPSPEED_BYTES.get(source)
    plan = Plan(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        zero=zero,
        shard_group=group,
        microbatches=microbatches,
        schedule=Schedule.INTERLEAVED if interleaved else Schedule.ONE_F_ONE_B,
        virtual_stages=chunks if interleaved else 1,
        sequence_parallel=modern and tp > 1 and source != JAX,
        # Their recipes turn Transformer Engine's userbuffers on for dense models.
        tp_overlap=modern and tp > 1 and source != JAX and not record["n_experts"],
        # Megatron-Bridge's recipes dispatch tokens with DeepEP and HybridEP.
        ep_copies=max(1, _whole(record, "moe_topk", 0)) if source == BRIDGE and ep > 1 else 1,
        recompute=_recompute(record, source),
        offload=_offload(record),
    )
    if late_bytes is not None:
        plan = replace(plan, overlap=False, bucket_bytes=late_bytes)
    return plan, batch


def _recompute(record: Mapping[str, str], source: str) -> Recompute:
    if source == VTRAIN or record["recompute"] == "full":
        return Recompute.FULL
    if source == JAX:
        return _least_recompute(record)
    return Recompute.SELECTIVE if "selective" in record["recompute"] else Recompute.NONE


def _least_recompute(record: Mapping[str, str]) -> Recompute:
    """As much as lets the activations of a microbatch fit on its device.

    A layer keeps 34 bytes by token and width, and 5 by pair of positions and head where scores are in memory
    (Korthikanti et al. 2022, arXiv:2205.05198, equation 1).
    """
    from predictor.hardware.catalog import find_device

    capacity = find_device(_DEVICES[record["device"]][0]).memory_bytes
    layers, ranks = _whole(record, "layers"), _whole(record, "tp") * _whole(record, "pp")
    sequence = _whole(record, "seq_len")
    tokens = sequence * _whole(record, "micro_batch")
    kept = 34.0 * tokens * _whole(record, "hidden") * layers / ranks
    scores = 5.0 * tokens * sequence * _whole(record, "heads") * layers / ranks
    if kept > capacity:
        return Recompute.FULL
    flash = _has_flash(record, JAX)
    return Recompute.NONE if flash or kept + scores <= capacity else Recompute.SELECTIVE


def _offload(record: Mapping[str, str]) -> frozenset[Offload]:
    if record["offload"]:
        raise _LeftOut("offload to the host")
    return frozenset()


def _sharding(record: Mapping[str, str], source: str, dp: int) -> tuple[int, int | None]:
    """(ZeRO stage, ranks that share a copy or None for all)."""
    text = record["sharding"]
    if source == JAX:
        size = _whole(record, "fsdp_size")
        return (3, size if size < dp and dp % size == 0 else None) if size > 1 else (0, None)
    if text.startswith("Megatron-FSDP"):
        main, _, other = text.removeprefix("Megatron-FSDP=").partition(" ")
        value = other if other and "parenthesised" in record["notes"] else main
        return (3, None) if value.strip("(){}") not in ("0", "") else (1, None)
    if text == "FSDP FULL_SHARD":
        return 3, None
    if text == "FSDP SHARD_GRAD_OP":
        return 2, None
    if text == "ZeRO-3":
        return 3, None
    if text.startswith("ZeRO"):
        group = re.search(r"group (\d+)", text)
        size = int(group.group(1)) if group else 0
        return 1, size if size and dp % size == 0 and size < dp else None
    return (1, None) if text == "distributed optimizer" else (0, None)


_DEVICES: Mapping[str, tuple[str, str, int]] = {
    "A100-SXM4-80GB (paper)": ("a100-sxm-80gb", "dgx-a100-80gb", 8),
    "A100-SXM4-80GB": ("a100-sxm-80gb", "dgx-a100-80gb", 8),
    "A100-SXM4-40GB": ("a100-sxm-40gb", "dgx-a100-40gb", 8),
    "H100-SXM5-80GB": ("h100-sxm-80gb", "dgx-h100-80gb", 8),
    "DGX-H100": ("h100-sxm-80gb", "dgx-h100-80gb", 8),
    "DGX-B200": ("b200-sxm-180gb", "dgx-b200-180gb", 8),
    "DGX-B300": ("b300-sxm-288gb", "dgx-b200-180gb", 8),
    "DGX-GB200": ("gb200-superchip-186gb", "gb200-nvl72", 64),
    "DGX-GB300": ("gb300-superchip-288gb", "gb200-nvl72", 64),
    "V100-SXM2-16GB": ("v100-sxm-16gb", "dgx-1-v100-16gb", 4),
    "V100-SXM2-32GB": ("v100-sxm-32gb", "dgx-1-v100-32gb", 4),
}
"""Device as the table names it -> catalogue device, cluster whose links it has, devices per node. Racks of 72
give 64 to a job (all counts of the tables are multiples)."""

_PORT_GB_PER_S: Mapping[str, float] = {
    "4 x 100 Gb RoCE": 6.25,
    "NVLink intra-node; 4x Omni-Path 100 Gb/s per node (Jean Zay)": 6.25,
    "NVLink intra-node; Omni-Path (Jean Zay)": 12.5,
}
"""Interconnect -> GB/s per device and direction; four ports of 100 Gb/s among 8 or 4 devices."""


def _machine(record: Mapping[str, str], source: str) -> tuple[str, ClusterSpec]:
    from predictor.hardware.catalog import find_cluster

    device, base, per_node = _DEVICES[record["device"]]
    spec = find_cluster(base)
    devices = _whole(record, "n_devices")
    inter = spec.inter_node
    if (port := _PORT_GB_PER_S.get(record["interconnect"])) is not None:
        inter = LinkSpec(inter.kind, inter.latency_s, port * GIGA)
    elif record["device"] in ("DGX-B300", "DGX-GB300"):
        # ConnectX-8: 800 Gb/s a device.
        inter = LinkSpec(inter.kind, inter.latency_s, 100 * GIGA)
    return device, replace(
        spec,
        id=f"{source}-{device}",
        device_id=device,
        devices_per_node=per_node,
        node_count=-(-devices // per_node),
        inter_node=inter,
        name="",
    )
