"""vidur's layer profiles: kernels of transformer layers in FP16, read from a profiler while the layer runs.

Each operand is cold, as in a network: the layer's other ops run between two calls. Products of attention and
MLP and the residual addition are read; norms, rotations and activations are vLLM's own fused kernels. Times
are printed in whole microseconds, so those below 10 are left out. The A100 is Azure's PCIe board with
pairwise NVLink (the repository's network profiles; its reads reach 85 % of that board's bandwidth and 80 % of
an SXM board's), the H100 an SXM board (733 TFLOP/s and 3.0 TB/s, which no other H100 reaches).

Frontier's rows of the same file stay out: most are timed through the host, or of quantised weights whose
kernels the file does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.features.dtype import Compute
from predictor.features.programs.work import Contraction, Elements, Family, OpWork, Phase
from predictor.features.programs.work_json import work_to_json
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import Counted, canonical

if TYPE_CHECKING:
    import polars as pl

SOURCE = "vidur_frontier"
DEVICES: Mapping[str, str] = {"a100": "a100-pcie-80gb", "a40": "a40-pcie-48gb", "h100": "h100-sxm-80gb"}
"""The publisher's names -> catalogue ids."""

_FILE = "mlp_linear.parquet"
_LEAST_S = 10e-6
_BYTES = 2
# One token count in three is kept, the same for every model and device.
_KEPT_TOKENS = 3
_SKIPPED = "another token count of the sweep stands for it"

Row = Mapping[str, Any]


def read(folder: Path) -> Counted:
    """One `latency` row (kernel, s) per kept product or addition."""
    import polars as pl

    frame = pl.read_parquet(folder / _FILE).with_columns(pl.col(pl.Categorical).cast(pl.String))
    counts = {"available": frame.height * len(_OPS)}
    own = frame.filter(pl.col("src") == "vidur")
    counts["another publisher: timed through the host, or quantised"] = (frame.height - own.height) * len(
        _OPS
    )
    kept = own.filter((pl.col("num_tokens") // 8) % _KEPT_TOKENS == 0)
    counts[_SKIPPED] = (own.height - kept.height) * len(_OPS)
    # A model of the same widths as another was profiled twice.
    records = list(_records(kept))
    found = pl.DataFrame(records, schema_overrides={"value": pl.Float64})
    counts["absent, or too short for whole microseconds"] = kept.height * len(_OPS) - found.height
    merged = found.group_by([name for name in found.columns if name != "value"], maintain_order=True).agg(
        pl.col("value").median()
    )
    counts["measured again: median taken"] = found.height - merged.height
    counts["used"] = merged.height
    return Counted(merged, counts)


def _records(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    works: dict[OpWork, str] = {}
    for row in frame.iter_rows(named=True):
        for name, work_of in _OPS.items():
            milliseconds = row[f"t_ms.{name}.median"]
            if milliseconds is None or not milliseconds * 1e-3 >= _LEAST_S:
                continue
            work = work_of(row)
            if work not in works:
                facts = {
                    "work": work_to_json(work), "set": "layer", "stack": "vllm", "kernel": "cublas",
                    "copies": 0, "stores": False,
                }  # fmt: skip
                works[work] = canonical(facts)
            yield {
                "subject": name,
                "subject_kind": "op",
                "device": DEVICES[row["device"]],
                "configuration": works[work],
                "quantity": "latency",
                "value": milliseconds * 1e-3,
                "unit": "s",
                "scope": "kernel",
                "source": SOURCE,
                "device_group": chip_of(DEVICES[row["device"]]),
                "model_group": work.family.value,
            }


def _product(m: int, n: int, k: int) -> OpWork:
    weights = _BYTES * n * k
    return OpWork(
        family=Family.MATMUL,
        kind="linear",
        phase=Phase.FORWARD,
        compute=Compute.FP16,
        shape=Contraction(1, m, n, k),
        element_bits=8 * _BYTES,
        matrix_flops=2 * m * n * k,
        vector_flops=0,
        read_bytes=_BYTES * m * k + weights,
        write_bytes=_BYTES * m * n,
        parameter_bytes=weights,
    )


def _width(row: Row) -> int:
    return int(row["n_embd"])


def _share(row: Row, size: str) -> int:
    """A rank's part of a size that tensor parallelism divides, at least one."""
    return max(1, int(row[size]) // int(row["num_tensor_parallel_workers"]))


def _head(row: Row) -> int:
    return _width(row) // int(row["n_head"])


def _pre_projection(row: Row) -> OpWork:
    heads = _share(row, "n_head") + 2 * _share(row, "n_kv_head")
    return _product(int(row["num_tokens"]), heads * _head(row), _width(row))


def _post_projection(row: Row) -> OpWork:
    return _product(int(row["num_tokens"]), _width(row), _share(row, "n_head") * _head(row))


def _up(row: Row) -> OpWork:
    gates = 2 if row["use_gated_mlp"] else 1
    return _product(int(row["num_tokens"]), gates * _share(row, "n_expanded_embd"), _width(row))


def _down(row: Row) -> OpWork:
    return _product(int(row["num_tokens"]), _width(row), _share(row, "n_expanded_embd"))


def _addition(row: Row) -> OpWork:
    count = int(row["num_tokens"]) * _width(row)
    return OpWork(
        family=Family.ELEMENTWISE,
        kind="add",
        phase=Phase.FORWARD,
        compute=Compute.FP16,
        shape=Elements(count),
        element_bits=8 * _BYTES,
        matrix_flops=0,
        vector_flops=count,
        read_bytes=2 * _BYTES * count,
        write_bytes=_BYTES * count,
    )


_OPS: Mapping[str, Callable[[Row], OpWork]] = {
    "attn_pre_proj": _pre_projection,
    "attn_post_proj": _post_projection,
    "mlp_up_proj": _up,
    "mlp_down_proj": _down,
    "add": _addition,
}
