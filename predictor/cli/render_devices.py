"""Devices and clusters as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from predictor.cli import text as txt
from predictor.cli.fitted_table import FittedTable
from predictor.hardware.spec import ClusterSpec, DeviceSpec, LinkSpec
from predictor.units import format_quantity


def device_table(devices: Sequence[DeviceSpec]) -> RenderableType:
    """One line per device."""
    table = FittedTable(
        "<id", "name????", "kind??", ">memory", ">bandwidth", ">FP32?", ">matrix??", ">power", ">year???"
    )
    for device in devices:
        compute, peak = _best_matrix(device)
        table.add_row(
            Text(device.id, "bold"),
            device.name,
            str(device.kind),
            txt.size(device.memory_bytes),
            format_quantity(device.memory_bytes_per_s, "B/s"),
            format_quantity(device.vector_flops_per_s, "FLOP/s"),
            Text.assemble(format_quantity(peak, "FLOP/s"), (f" {compute}", "dim")) if peak else "",
            txt.watts(device.tdp_w),
            str(device.year or ""),
        )
    return Group(table, Text(), Text(f"{len(devices)} devices; details: perfcast devices show ID", "dim"))


def cluster_table(clusters: Sequence[ClusterSpec]) -> RenderableType:
    """One line per cluster."""
    table = FittedTable("<id", "devices", ">nodes", ">inside a node", ">between nodes")
    for cluster in clusters:
        table.add_row(
            Text(cluster.id, "bold"),
            f"{cluster.devices_per_node} x {cluster.device_id}",
            str(cluster.node_count),
            _link(cluster.intra_node),
            _link(cluster.inter_node),
        )
    hint = (
        "a device's share, per direction; more nodes: --cluster NAME:N; yours: docs/how-to/add-a-cluster.md"
    )
    return Group(table, Text(), Text(hint, "dim"))


def _link(link: LinkSpec) -> Text:
    return Text.assemble((f"{link.kind} ", "dim"), format_quantity(link.bytes_per_s, "B/s"))


def device_view(device: DeviceSpec) -> RenderableType:
    """All fields of one device."""
    table = FittedTable("<", "")

    def line(label: str, value: str) -> None:
        if value:
            table.add_row(Text(label, "bold"), value)

    line("id", device.id)
    line("also called", ", ".join(device.aliases))
    line("kind", f"{device.kind}, {device.vendor} {device.architecture} {device.form_factor}".rstrip())
    line("year", str(device.year or ""))
    line("memory", f"{txt.size(device.memory_bytes)} at {format_quantity(device.memory_bytes_per_s, 'B/s')}")
    line("last-level cache", txt.size(device.l2_bytes) if device.l2_bytes else "")
    line("vector peak", format_quantity(device.vector_flops_per_s, "FLOP/s"))
    for compute, peak in device.matrix_flops_per_s.items():
        line(f"{compute} peak", format_quantity(peak, "FLOP/s"))
    line("cores", f"{device.core_count} at {format_quantity(device.clock_hz, 'Hz')}")
    idle = f", idle {txt.watts(device.idle_w)}" if device.idle_w is not None else ""
    line("power", f"{txt.watts(device.tdp_w)}{idle}")
    link = (
        format_quantity(device.link_bytes_per_s, "B/s") + " per direction" if device.link_bytes_per_s else ""
    )
    line("link", f"{device.link_kind} {link}".rstrip())
    line("estimated", ", ".join(device.estimated_fields))
    line("notes", device.notes)
    sources = [Text(f"  {group}: {source}", "dim") for group, source in device.sources.items()]
    heading = [Text(), Text("sources", "bold")] if sources else []
    return Group(Text(device.name, "bold cyan"), Text(), table, *heading, *sources)


def _best_matrix(device: DeviceSpec) -> tuple[str, float]:
    peaks = {
        name: peak
        for name, peak in device.matrix_flops_per_s.items()
        if name in ("fp16", "bf16", "tf32", "fp32")
    }
    return max(peaks.items(), key=lambda item: item[1], default=("", 0.0))
