"""DeviceSpec and ClusterSpec <-> predictor.v1. Values pass unchanged, so both sides compute the same bits."""

from __future__ import annotations

from typing import Any

from predictor.errors import InvalidRequest
from predictor.hardware.spec import ClusterSpec, DeviceKind, DeviceSpec, LinkSpec
from predictor.v1 import hardware_pb2 as pb

_KIND_PREFIX = "DEVICE_KIND_"
_OPTIONAL = ("l2_bytes", "idle_w", "year", "pcie_generation", "link_bytes_per_s", "reported_memory_bytes")
_POSITIVE = ("memory_bytes", "memory_bytes_per_s", "vector_flops_per_s", "core_count", "clock_hz", "tdp_w")
_COUNTS = ("ports_per_node", "devices_per_island", "nodes_per_rack")
_PLAIN = ("id", "name", "vendor", "architecture", "form_factor", "link_kind", "notes", *_POSITIVE)


def device_to_proto(device: DeviceSpec) -> pb.DeviceSpec:
    """The message of a device."""
    message = pb.DeviceSpec(kind=_KIND_PREFIX + device.kind.name)
    for name in _PLAIN:
        setattr(message, name, getattr(device, name))
    for name in _OPTIONAL:
        if (value := getattr(device, name)) is not None:
            setattr(message, name, value)
    message.matrix_flops_per_s.update(device.matrix_flops_per_s)
    message.sources.update(device.sources)
    message.aliases.extend(device.aliases)
    message.estimated_fields.extend(device.estimated_fields)
    return message


def device_from_proto(message: pb.DeviceSpec) -> DeviceSpec:
    """The device of a message. Raises InvalidRequest when a number that answers need is not positive."""
    for name in _POSITIVE:
        if not getattr(message, name) > 0:
            raise InvalidRequest(
                f"device_spec {message.id!r}: {name} is {getattr(message, name)}; expected above 0",
                field=f"device.{name}",
            )
    if message.kind not in pb.DeviceKind.values() or message.kind == pb.DEVICE_KIND_UNSPECIFIED:
        raise InvalidRequest(f"device_spec {message.id!r}: kind is not stated", field="device.kind")
    plain: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN}
    optional: dict[str, Any] = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    return DeviceSpec(
        kind=DeviceKind[pb.DeviceKind.Name(message.kind).removeprefix(_KIND_PREFIX)],
        # Sorted: protobuf maps have no order, and equal devices must have equal representations.
        matrix_flops_per_s=dict(sorted(message.matrix_flops_per_s.items())),
        sources=dict(sorted(message.sources.items())),
        aliases=tuple(message.aliases),
        estimated_fields=tuple(message.estimated_fields),
        **plain,
        **optional,
    )


def cluster_to_proto(cluster: ClusterSpec) -> pb.ClusterSpec:
    """The message of a cluster."""
    return pb.ClusterSpec(
        id=cluster.id,
        device_id=cluster.device_id,
        devices_per_node=cluster.devices_per_node,
        node_count=cluster.node_count,
        intra_node=_link_to_proto(cluster.intra_node),
        inter_node=_link_to_proto(cluster.inter_node),
        name=cluster.name,
        sources=dict(cluster.sources),
        ports_per_node=cluster.ports_per_node,
        rails=cluster.rails,
        devices_per_island=cluster.devices_per_island,
        island=None if cluster.island is None else _link_to_proto(cluster.island),
        nodes_per_rack=cluster.nodes_per_rack,
        inter_rack=None if cluster.inter_rack is None else _link_to_proto(cluster.inter_rack),
    )


def cluster_from_proto(message: pb.ClusterSpec) -> ClusterSpec:
    """The cluster of a message. Raises InvalidRequest on sizes or links that are not positive."""
    for name in ("devices_per_node", "node_count"):
        if getattr(message, name) < 1:
            raise InvalidRequest(
                f"cluster_spec {message.id!r}: {name} is {getattr(message, name)}; expected at least 1",
                field=f"cluster.{name}",
            )
    counts: dict[str, Any] = {name: getattr(message, name) for name in _COUNTS if message.HasField(name)}
    return ClusterSpec(
        id=message.id,
        device_id=message.device_id,
        devices_per_node=message.devices_per_node,
        node_count=message.node_count,
        intra_node=_link_from_proto(message.intra_node, message.id),
        inter_node=_link_from_proto(message.inter_node, message.id),
        name=message.name,
        sources=dict(sorted(message.sources.items())),
        rails=message.rails,
        island=_optional_link(message, "island"),
        inter_rack=_optional_link(message, "inter_rack"),
        **counts,
    )


def _optional_link(message: pb.ClusterSpec, name: str) -> LinkSpec | None:
    return _link_from_proto(getattr(message, name), message.id) if message.HasField(name) else None


def _link_to_proto(link: LinkSpec) -> pb.LinkSpec:
    return pb.LinkSpec(
        kind=link.kind,
        latency_s=link.latency_s,
        bytes_per_s=link.bytes_per_s,
        log_spread=link.log_spread,
        in_switch=link.in_switch,
    )


def _link_from_proto(message: pb.LinkSpec, cluster: str) -> LinkSpec:
    if not message.bytes_per_s > 0 or message.latency_s < 0:
        raise InvalidRequest(
            f"cluster_spec {cluster!r}: a link of {message.bytes_per_s} bytes/s and {message.latency_s} s; "
            "expected bandwidth above 0 and latency of at least 0",
            field="cluster",
        )
    spread = message.log_spread if message.HasField("log_spread") else None
    return LinkSpec(message.kind, message.latency_s, message.bytes_per_s, spread, message.in_switch)
