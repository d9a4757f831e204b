"""The catalogue: names to devices and clusters. Shipped TOML files first read when asked; users' files win.

Users add devices with files in the directories or files of PERFCAST_DEVICES (separated as PATH is) or in
`~/.config/perfcast/devices` ($XDG_CONFIG_HOME honoured); clusters likewise with PERFCAST_CLUSTERS and
`~/.config/perfcast/clusters`.

A name matches an id, a table name or an alias as a whole, whatever its case, spaces, underscores and hyphens,
with or without the vendor in front. Nothing is guessed: `a100` means the device whose file lists that alias
(A100 SXM4 80GB), and a name that no file lists is an error with the nearest ids.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from predictor.errors import InvalidInput, UnknownDevice, UnknownName
from predictor.hardware.cluster_file import NamedCluster, load_cluster_file, parse_cluster_file
from predictor.hardware.device_file import load_device_file, parse_device_file
from predictor.hardware.links import default_port, own_link
from predictor.hardware.spec import ClusterSpec, DeviceKind, DeviceSpec

__all__ = [
    "default_cluster",
    "find_cluster",
    "find_device",
    "list_clusters",
    "list_devices",
    "load_cluster_file",
    "load_device_file",
    "normalize_name",
]

_DATA = Path(__file__).parent / "data"
_ADD = "Add a device with one TOML file: docs/how-to/add-a-device.md."
# The lines of a shipped file that carry names; each stands on one line (a test keeps it so).
_NAME_LINE = re.compile(r"^(id|name|vendor|aliases) = (.*)$", re.MULTILINE)
_SEPARATORS = re.compile("[\\s_\\-\u2010-\u2015]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
DEFAULT_DEVICES_PER_NODE = 8


def normalize_name(name: str) -> str:
    """Lower case, with every run of spaces, underscores and hyphens as one hyphen."""
    return _SEPARATORS.sub("-", name.strip().lower()).strip("-")


def find_device(name: str) -> DeviceSpec:
    """The device of that id, name or alias. Raises UnknownDevice with the nearest ids."""
    key = normalize_name(name)
    users = _user_devices(*_user_files("devices"))
    if key in users:
        return users[key]
    shipped = _shipped_names().get(key)
    if shipped is not None:
        return _shipped_devices(shipped)[key]
    raise UnknownDevice.among("device", name, (spec.id for spec in list_devices()), hint=_ADD)


def list_devices(kind: DeviceKind | str | None = None, vendor: str | None = None) -> tuple[DeviceSpec, ...]:
    """All devices sorted by id, users' files included; only one kind or one vendor on request."""
    devices = {spec.id: spec for path in _shipped_files() for spec in _shipped_devices(path).values()}
    devices |= {spec.id: spec for spec in _user_devices(*_user_files("devices")).values()}
    return tuple(
        spec
        for _, spec in sorted(devices.items())
        if (kind is None or spec.kind == kind) and (vendor is None or spec.vendor.lower() == vendor.lower())
    )


def find_cluster(name: str) -> ClusterSpec:
    """The cluster of that id or alias; `NAME:N` sets the number of nodes, e.g. `dgx-a100-80gb:4`.

    `NAME:NxK` uses only K devices of each node: they share its network ports (ClusterSpec.using). Raises
    UnknownName with the nearest ids, InvalidInput for counts that are no positive numbers or exceed a node.
    """
    base, colon, counts = name.partition(":")
    nodes, times, used = counts.partition("x")
    clusters = _clusters(_user_files("clusters"))
    found = clusters.get(normalize_name(base))
    if found is None:
        raise UnknownName.among("cluster", name, (named.spec.id for named in clusters.values()))
    if not colon:
        return found.spec
    if not nodes.isdecimal() or int(nodes) < 1:
        raise InvalidInput(f"cluster {name!r}: {nodes!r} nodes; expected a positive number, e.g. {base}:4")
    cluster = replace(found.spec, node_count=int(nodes))
    if not times:
        return cluster
    if not used.isdecimal() or not 1 <= int(used) <= cluster.devices_per_node:
        raise InvalidInput(
            f"cluster {name!r}: {used!r} devices of each node; expected a number from 1 to "
            f"{cluster.devices_per_node}, e.g. {base}:{nodes}x1"
        )
    return cluster.using(int(used))


def list_clusters() -> tuple[ClusterSpec, ...]:
    """All clusters sorted by id, users' files included."""
    unique = {named.spec.id: named.spec for named in _clusters(_user_files("clusters")).values()}
    return tuple(spec for _, spec in sorted(unique.items()))


def default_cluster(device: DeviceSpec, device_count: int) -> ClusterSpec:
    """Nodes for `device_count` devices when no cluster is named: an assumption, and worth a warning.

    Eight devices a node on the device's own link (PCIe where its file states none), nodes on one InfiniBand
    port per device; see predictor.hardware.links.default_port.
    """
    if device_count < 1:
        raise InvalidInput(f"cluster of {device_count} devices; expected at least 1", field="device_count")
    per_node = min(device_count, DEFAULT_DEVICES_PER_NODE)
    intra, inter = own_link(device), default_port(device)
    return ClusterSpec(
        id=f"default-{device.id}",
        device_id=device.id,
        devices_per_node=per_node,
        node_count=-(-device_count // per_node),
        intra_node=intra,
        inter_node=inter,
        name=f"assumed nodes of {per_node} x {device.name}",
        sources={
            "intra_node": device.sources.get("link", f"PCIe x16, generation {device.pcie_generation or 3}"),
            "inter_node": f"assumed: one {inter.bytes_per_s * 8 / 1e9:.0f} Gb/s InfiniBand port per device",
        },
    )


@lru_cache(maxsize=1)
def _shipped_files() -> tuple[Path, ...]:
    return tuple(sorted((_DATA / "devices").glob("*.toml")))


@lru_cache(maxsize=1)
def _shipped_names() -> Mapping[str, Path]:
    """Which shipped file holds a name: read from its text, as parsing all of them takes ten times as long."""
    return {key: path for path in _shipped_files() for key in _names_in(path.read_text(encoding="utf-8"))}


def _names_in(content: str) -> Iterable[str]:
    shared, *tables = content.split("[[device]]")
    default = dict(_NAME_LINE.findall(shared)).get("vendor", "")
    for table in tables:
        lines = {key: _QUOTED.findall(value) for key, value in _NAME_LINE.findall(table)}
        vendor = lines.pop("vendor", _QUOTED.findall(default))
        yield from _keys("".join(vendor), (name for names in lines.values() for name in names))


def _keys(vendor: str, names: Iterable[str]) -> set[str]:
    plain = {normalize_name(name) for name in names}
    return plain | {normalize_name(f"{vendor} {name}") for name in plain}


def _by_key(devices: Iterable[DeviceSpec]) -> dict[str, DeviceSpec]:
    return {key: spec for spec in devices for key in _keys(spec.vendor, (spec.id, spec.name, *spec.aliases))}


@cache
def _shipped_devices(path: Path) -> Mapping[str, DeviceSpec]:
    return _by_key(parse_device_file(path))


def _user_files(what: str) -> tuple[tuple[Path, int], ...]:
    """(file, modification time) of every TOML file of the user; the time makes caches notice edits."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "perfcast" / what
    named = [Path(part) for part in os.environ.get(f"PERFCAST_{what.upper()}", "").split(os.pathsep) if part]
    files: list[Path] = []
    for place in (config, *named):
        if place.is_dir():
            files += sorted(place.glob("*.toml"))
        elif place in named:
            files.append(place)
    return tuple((path, _modified(path, what)) for path in files)


def _modified(path: Path, what: str) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read ({error.strerror}); expected a TOML file or a directory of them; "
            f"correct PERFCAST_{what.upper()}",
            file=path,
        ) from None


@lru_cache(maxsize=4)
def _user_devices(*files: tuple[Path, int]) -> Mapping[str, DeviceSpec]:
    found: dict[str, Path] = {}
    devices: list[DeviceSpec] = []
    for path, _ in files:
        for spec in parse_device_file(path):
            if spec.id in found:
                raise InvalidInput(
                    f"{path}: device {spec.id} stands in {found[spec.id]} too; expected one file a device; "
                    "remove one",
                    file=path,
                    key="id",
                )
            found[spec.id] = path
            devices.append(spec)
    return _by_key(devices)


@lru_cache(maxsize=4)
def _clusters(files: tuple[tuple[Path, int], ...]) -> Mapping[str, NamedCluster]:
    paths = (_DATA / "clusters.toml", *(path for path, _ in files))
    return {
        normalize_name(key): named
        for path in paths
        for named in parse_cluster_file(path)
        for key in (named.spec.id, *named.aliases)
    }
