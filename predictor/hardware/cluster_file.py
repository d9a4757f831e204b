"""Cluster files: TOML (GB/s per direction and device, µs per message) to ClusterSpec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from predictor.errors import InvalidInput, InvalidRequest
from predictor.hardware import toml_fields as check
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.hardware.toml_fields import Field, check_table, read_toml, tables_of
from predictor.units import GIGA

_LINK_FIELDS = (
    Field("kind", check.text, required=True),
    Field("gb_per_s", check.number("GB/s per direction and device", 1e-4, 1e5), required=True),
    Field("latency_us", check.number("µs per message", 1e-3, 1e6), required=True),
    Field("in_switch", check.truth),
)


def _table(value: Any) -> str | None:
    return (
        None
        if isinstance(value, dict)
        else "a table such as { kind = 'nvlink', gb_per_s = 300, latency_us = 2 }"
    )


_FIELDS = (
    Field("id", check.text, required=True),
    Field("device", check.text, required=True),
    Field("devices_per_node", check.count("devices", 1024), required=True),
    Field("intra_node", _table, required=True),
    Field("inter_node", _table, required=True),
    Field("node_count", check.count("nodes", 10**6)),
    Field("ports_per_node", check.count("ports", 1024)),
    Field("rails", check.truth),
    Field("devices_per_island", check.count("devices", 1024)),
    Field("island", _table),
    Field("nodes_per_rack", check.count("nodes", 10**6)),
    Field("inter_rack", _table),
    Field("oversubscription", check.number("times what leaves a rack exceeds its uplinks", 1, 1000)),
    Field("name", check.text),
    Field("aliases", check.texts),
    Field("sources", check.text_table),
)


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """A cluster with the other names it answers to."""

    spec: ClusterSpec
    aliases: tuple[str, ...]


def load_cluster_file(path: str | Path) -> ClusterSpec:
    """The one cluster of a user's TOML file. Raises InvalidInput naming file, key and what was expected."""
    clusters = parse_cluster_file(Path(path))
    if len(clusters) != 1:
        raise InvalidInput(
            f"{path}: holds {len(clusters)} clusters; expected one; write one file a cluster",
            file=path,
            key="cluster",
        )
    return clusters[0].spec


def parse_cluster_file(path: Path) -> tuple[NamedCluster, ...]:
    """All clusters of a file: one at the top level, or several as `[[cluster]]`. Raises InvalidInput."""
    content = read_toml(path)
    tables = tables_of(content, "cluster", path) if "cluster" in content else (content,)
    return tuple(_cluster(table, path) for table in tables)


def _cluster(table: Mapping[str, Any], path: Path) -> NamedCluster:
    where = f"cluster {table.get('id', '(no id)')}"
    check_table(table, _FIELDS, where, path)
    try:
        spec = ClusterSpec(
            id=table["id"],
            device_id=table["device"],
            devices_per_node=table["devices_per_node"],
            node_count=table.get("node_count", 1),
            intra_node=_link(table["intra_node"], f"{where}: intra_node", path),
            inter_node=(inter := _link(table["inter_node"], f"{where}: inter_node", path)),
            name=table.get("name", table["id"]),
            sources=dict(table.get("sources", {})),
            ports_per_node=table.get("ports_per_node"),
            rails=table.get("rails", False),
            devices_per_island=table.get("devices_per_island"),
            island=_link(table["island"], f"{where}: island", path) if "island" in table else None,
            nodes_per_rack=table.get("nodes_per_rack"),
            inter_rack=_between_racks(table, inter, where, path),
        )
    except InvalidRequest as error:
        raise InvalidInput(f"{path}: {error.message}", file=path) from None
    return NamedCluster(spec, tuple(table.get("aliases", ())))


def _between_racks(table: Mapping[str, Any], inter: LinkSpec, where: str, path: Path) -> LinkSpec | None:
    """The stated link, or the one between nodes, its bandwidth divided by the oversubscription."""
    if "inter_rack" in table:
        return _link(table["inter_rack"], f"{where}: inter_rack", path)
    if "oversubscription" in table:
        return replace(inter, bytes_per_s=inter.bytes_per_s / table["oversubscription"])
    return None


def _link(table: Mapping[str, Any], where: str, path: Path) -> LinkSpec:
    check_table(table, _LINK_FIELDS, where, path)
    return LinkSpec(
        kind=table["kind"],
        latency_s=table["latency_us"] * 1e-6,
        bytes_per_s=table["gb_per_s"] * GIGA,
        in_switch=table.get("in_switch", False),
    )
