"""NeuSight (ASPLOS'25): latencies of single FP32 operators, TF32 off, forward, one call timed alone.

Every value still contains the host's dispatch of one call (25 to 60 µs); training takes it off, not this
reader. In the linear and bmm files N is the *reduction* dimension: B x (M x N) @ (N x K), and linear maps N
to K features with a bias. Two sets: `random` shapes that the authors trained on, mostly unaligned, and
`transformer` shapes (their test files: aligned, sizes of real models, larger).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.features.dtype import Compute
from predictor.features.programs.work import (
    Contraction,
    Convolution,
    Elements,
    Family,
    OpWork,
    Phase,
    Rows,
    WorkShape,
)
from predictor.features.programs.work_json import work_to_json
from predictor.models.corpus.schema import canonical

if TYPE_CHECKING:
    import polars as pl

DEVICES: Mapping[str, str] = {
    "Tesla P4": "p4-pcie-8gb",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "Tesla T4": "t4-pcie-16gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA L4": "l4-pcie-24gb",
    "AMD Instinct MI100": "mi100-pcie-32gb",
    "AMD Instinct MI210": "mi210-pcie-64gb",
}
"""The publisher's names -> catalogue ids."""

_ELEMENT_BYTES = 4
_BINARY = frozenset({"add", "mul", "div", "pow"})
_KINDS: Mapping[str, str] = {"ln": "layer_norm"}
_FLOPS_PER_ELEMENT: Mapping[str, int] = {"ln": 8, "softmax": 5, "gelu": 5}
_FILES = ("bmm", "conv", "linear", "ln", "softmax", "vec")


def read(folder: Path) -> pl.DataFrame:
    """One `latency` row (kernel_and_dispatch, s) per measured operator call."""
    import polars as pl

    frames = [
        pl.read_parquet(folder / f"op_train_{name}.parquet").with_columns(set=pl.lit("random"))
        for name in _FILES
    ]
    author = pl.read_parquet(folder / "op_author_split_sets.parquet")
    # The train files of that table repeat op_train_*; its test files are the transformer shapes.
    test = author.filter(pl.col("src").str.contains("/test/")).with_columns(set=pl.lit("transformer"))
    records = [record for frame in [*frames, test] for record in _records(frame)]
    return pl.DataFrame(records, schema_overrides={"value": pl.Float64}).unique(maintain_order=True)


def _records(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    works: dict[tuple[Any, ...], tuple[str, str]] = {}
    names = [name for name in _COLUMNS if name in frame.columns]
    for row in frame.select("OPName", "Device", "Latency", "set", *names).iter_rows(named=True):
        key = (row["OPName"], row["set"], *(row[name] for name in names))
        if key not in works:
            work = _RULES.get(row["OPName"], _vector)(row)
            facts = {"work": work_to_json(work), "set": row["set"]}
            works[key] = canonical(facts), work.family.value
        configuration, family = works[key]
        yield {
            "subject": row["OPName"],
            "subject_kind": "op",
            "device": DEVICES[row["Device"]],
            "configuration": configuration,
            "quantity": "latency",
            "value": row["Latency"] * 1e-3,
            "unit": "s",
            "scope": "kernel_and_dispatch",
            "source": "neusight",
            "device_group": row["Device"],
            "model_group": family,
        }


_COLUMNS = (
    "B", "M", "N", "K", "H", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size",
    "Stride", "Padding",
)  # fmt: skip


def _work(
    family: Family, kind: str, shape: WorkShape, read_elements: int, write_elements: int,
    weight_elements: int = 0, *, matrix_flops: int = 0, vector_flops: int = 0,
) -> OpWork:  # fmt: skip
    return OpWork(
        family=family,
        kind=kind,
        phase=Phase.FORWARD,
        compute=Compute.FP32,
        shape=shape,
        element_bits=8 * _ELEMENT_BYTES,
        matrix_flops=matrix_flops,
        vector_flops=vector_flops,
        read_bytes=_ELEMENT_BYTES * read_elements,
        write_bytes=_ELEMENT_BYTES * write_elements,
        parameter_bytes=_ELEMENT_BYTES * weight_elements,
    )


def _linear(row: Mapping[str, Any]) -> OpWork:
    m, k, n = int(row["B"]) * int(row["M"]), int(row["N"]), int(row["K"])
    weights = k * n + n
    return _work(
        Family.MATMUL, "linear", Contraction(1, m, n, k), m * k + weights, m * n, weights,
        matrix_flops=2 * m * n * k, vector_flops=m * n,
    )  # fmt: skip


def _bmm(row: Mapping[str, Any]) -> OpWork:
    b, m, k, n = (int(row[name]) for name in ("B", "M", "N", "K"))
    shape = Contraction(b, m, n, k)
    return _work(
        Family.BATCHED_MATMUL, "bmm", shape, b * (m * k + k * n), b * m * n, matrix_flops=2 * b * m * n * k
    )


def _conv(row: Mapping[str, Any]) -> OpWork:
    samples, near, far, taps, size, stride, padding = (
        int(row[name])
        for name in ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding")
    )
    out = (size + 2 * padding - taps) // stride + 1
    shape = Convolution(
        samples=samples, in_channels=near, out_channels=far, groups=1, in_spatial=(size, size),
        out_spatial=(out, out), kernel=(taps, taps), strides=(stride, stride), dilations=(1, 1),
    )  # fmt: skip
    weights = near * far * taps * taps
    points = samples * out * out
    return _work(
        Family.CONVOLUTION, "conv", shape, samples * near * size * size + weights, points * far, weights,
        matrix_flops=2 * points * weights,
    )  # fmt: skip


def _rows(row: Mapping[str, Any]) -> OpWork:
    rows, columns, op = int(row["B"]), int(row["H"]), row["OPName"]
    family = Family.NORMALIZATION if op == "ln" else Family.SOFTMAX
    weights = 2 * columns if op == "ln" else 0
    count = rows * columns
    flops = _FLOPS_PER_ELEMENT[op] * count
    return _work(
        family, _KINDS.get(op, op), Rows(rows, columns), count + weights, count, weights, vector_flops=flops
    )


def _vector(row: Mapping[str, Any]) -> OpWork:
    op = row["OPName"]
    count = int(row["B"]) * int(row["H"])
    # A trailing u marks tensor-with-scalar.
    kind = op.removesuffix("u") if op.removesuffix("u") in _BINARY else op
    flops = _FLOPS_PER_ELEMENT.get(op, 1) * count
    return _work(
        Family.ELEMENTWISE,
        kind,
        Elements(count),
        count * (2 if op in _BINARY else 1),
        count,
        vector_flops=flops,
    )


_RULES: Mapping[str, Callable[[Mapping[str, Any]], OpWork]] = {
    "linear": _linear,
    "bmm": _bmm,
    "conv": _conv,
    "ln": _rows,
    "softmax": _rows,
}
