"""Graphs as tables for people, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from predictor.cli import text as txt
from predictor.cli.fitted_table import FittedTable
from predictor.cli.render import indented
from predictor.features.graph import Graph, Value
from predictor.features.programs.work import Program
from predictor.units import format_quantity

GRAPH_SCHEMA = "perfcast.graph/1"


def graph_view(graph: Graph, program: Program, model: str) -> RenderableType:
    """Inputs, outputs, size, and the work of a forward pass by op family."""
    facts = FittedTable("<", "", "")
    for title, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            facts.add_row(Text(title, "bold"), name, _type(graph.values[name]))
    weights_bytes = sum(graph.values[name].size_bytes for name in graph.parameters)
    count = format_quantity(graph.parameter_count, "")
    facts.add_row(
        Text("parameters", "bold"), f"{graph.parameter_count:,}", f"{count}, {txt.size(weights_bytes)}"
    )
    flops = sum(op.work.flops for op in program.ops)
    facts.add_row(Text("forward", "bold"), format_quantity(flops, "FLOP"), f"for batch {graph.batch}")
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(graph.opsets.items()))
    facts.add_row(Text("nodes", "bold"), str(len(graph.nodes)), f"opset {opsets}")
    table = FittedTable("op family", ">ops", ">FLOP", "<share??", "<", ">bytes moved?")
    for family, ops, family_flops, moved in family_work(program):
        share = family_flops / flops if flops else 0.0
        table.add_row(
            txt.words(family),
            str(ops),
            format_quantity(family_flops, "") if family_flops else "0",
            Text(txt.bar(share, 18), "cyan"),
            txt.percent(share),
            txt.size(moved),
        )
    return Group(
        Text(model, "bold"),
        Text(),
        indented(facts),
        Text(),
        indented(table),
        Text(),
        Text(f"graph {txt.short_id(graph.fingerprint)}", "dim"),
    )


def coverage_view(known: Mapping[str, int], unknown: Mapping[str, int], model: str) -> RenderableType:
    """Ops with a rule and ops without."""
    count = sum(unknown.values())
    verdict = (
        Text(
            f"{count} {'op has' if count == 1 else 'ops have'} no rule: priced by the bytes moved, see "
            "docs/how-to/add-an-op.md",
            "bold yellow",
        )
        if unknown
        else Text("every op has a rule", "bold green")
    )
    table = FittedTable("op", ">count", "rule")
    for op_type, count in sorted(unknown.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(Text(op_type, "yellow"), str(count), Text("none: bytes moved", "yellow"))
    for op_type, count in sorted(known.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(op_type, str(count), "yes")
    return Group(Text.assemble((model, "bold"), "   ", verdict), Text(), indented(table))


def _type(value: Value) -> str:
    shape = " x ".join(map(str, value.shape)) or "scalar"
    return f"{value.dtype.value[0]} {shape}"


def graph_to_json(graph: Graph, program: Program) -> dict[str, Any]:
    """Plain fields; work of a forward pass by op family."""

    def values(names: tuple[str, ...]) -> list[dict[str, Any]]:
        found = (graph.values[name] for name in names)
        return [{"name": v.name, "shape": list(v.shape), "dtype": v.dtype.value[0]} for v in found]

    return {
        "schema": GRAPH_SCHEMA,
        "graph": graph.fingerprint,
        "name": graph.name,
        "batch": graph.batch,
        "inputs": values(graph.inputs),
        "outputs": values(graph.outputs),
        "parameter_count": graph.parameter_count,
        "node_count": len(graph.nodes),
        "opsets": dict(graph.opsets),
        "forward_flops": sum(op.work.flops for op in program.ops),
        "families": [
            {"family": family, "ops": count, "flops": flops, "moved_bytes": moved}
            for family, count, flops, moved in family_work(program)
        ],
    }


def family_work(program: Program) -> list[tuple[str, int, int, int]]:
    """(family, ops, FLOPs, bytes moved) of a program, most FLOPs first."""
    counts: dict[str, list[int]] = {}
    for op in program.ops:
        row = counts.setdefault(op.work.family.value, [0, 0, 0])
        for index, amount in enumerate((1, op.work.flops, op.work.moved_bytes)):
            row[index] += amount
    rows = [(family, count, flops, moved) for family, (count, flops, moved) in counts.items()]
    return sorted(rows, key=lambda row: (-row[2], -row[3], row[0]))
