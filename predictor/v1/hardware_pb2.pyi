from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_KIND_UNSPECIFIED: _ClassVar[DeviceKind]
    DEVICE_KIND_GPU: _ClassVar[DeviceKind]
    DEVICE_KIND_CPU: _ClassVar[DeviceKind]
    DEVICE_KIND_TPU: _ClassVar[DeviceKind]
    DEVICE_KIND_NPU: _ClassVar[DeviceKind]
    DEVICE_KIND_EDGE: _ClassVar[DeviceKind]
    DEVICE_KIND_PHONE: _ClassVar[DeviceKind]
DEVICE_KIND_UNSPECIFIED: DeviceKind
DEVICE_KIND_GPU: DeviceKind
DEVICE_KIND_CPU: DeviceKind
DEVICE_KIND_TPU: DeviceKind
DEVICE_KIND_NPU: DeviceKind
DEVICE_KIND_EDGE: DeviceKind
DEVICE_KIND_PHONE: DeviceKind

class DeviceSpec(_message.Message):
    __slots__ = ("id", "name", "vendor", "kind", "architecture", "memory_bytes", "memory_bytes_per_s", "vector_flops_per_s", "matrix_flops_per_s", "core_count", "clock_hz", "tdp_w", "l2_bytes", "idle_w", "year", "form_factor", "pcie_generation", "link_kind", "link_bytes_per_s", "aliases", "sources", "notes", "estimated_fields", "reported_memory_bytes")
    class MatrixFlopsPerSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FLOPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FLOPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    CORE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    TDP_W_FIELD_NUMBER: _ClassVar[int]
    L2_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDLE_W_FIELD_NUMBER: _ClassVar[int]
    YEAR_FIELD_NUMBER: _ClassVar[int]
    FORM_FACTOR_FIELD_NUMBER: _ClassVar[int]
    PCIE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    LINK_KIND_FIELD_NUMBER: _ClassVar[int]
    LINK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    vendor: str
    kind: DeviceKind
    architecture: str
    memory_bytes: float
    memory_bytes_per_s: float
    vector_flops_per_s: float
    matrix_flops_per_s: _containers.ScalarMap[str, float]
    core_count: int
    clock_hz: float
    tdp_w: float
    l2_bytes: float
    idle_w: float
    year: int
    form_factor: str
    pcie_generation: float
    link_kind: str
    link_bytes_per_s: float
    aliases: _containers.RepeatedScalarFieldContainer[str]
    sources: _containers.ScalarMap[str, str]
    notes: str
    estimated_fields: _containers.RepeatedScalarFieldContainer[str]
    reported_memory_bytes: float
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., vendor: _Optional[str] = ..., kind: _Optional[_Union[DeviceKind, str]] = ..., architecture: _Optional[str] = ..., memory_bytes: _Optional[float] = ..., memory_bytes_per_s: _Optional[float] = ..., vector_flops_per_s: _Optional[float] = ..., matrix_flops_per_s: _Optional[_Mapping[str, float]] = ..., core_count: _Optional[int] = ..., clock_hz: _Optional[float] = ..., tdp_w: _Optional[float] = ..., l2_bytes: _Optional[float] = ..., idle_w: _Optional[float] = ..., year: _Optional[int] = ..., form_factor: _Optional[str] = ..., pcie_generation: _Optional[float] = ..., link_kind: _Optional[str] = ..., link_bytes_per_s: _Optional[float] = ..., aliases: _Optional[_Iterable[str]] = ..., sources: _Optional[_Mapping[str, str]] = ..., notes: _Optional[str] = ..., estimated_fields: _Optional[_Iterable[str]] = ..., reported_memory_bytes: _Optional[float] = ...) -> None: ...

class LinkSpec(_message.Message):
    __slots__ = ("kind", "latency_s", "bytes_per_s", "log_spread", "in_switch")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LOG_SPREAD_FIELD_NUMBER: _ClassVar[int]
    IN_SWITCH_FIELD_NUMBER: _ClassVar[int]
    kind: str
    latency_s: float
    bytes_per_s: float
    log_spread: float
    in_switch: bool
    def __init__(self, kind: _Optional[str] = ..., latency_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., log_spread: _Optional[float] = ..., in_switch: bool = ...) -> None: ...

class ClusterSpec(_message.Message):
    __slots__ = ("id", "device_id", "devices_per_node", "node_count", "intra_node", "inter_node", "name", "sources", "ports_per_node", "rails", "devices_per_island", "island", "nodes_per_rack", "inter_rack")
    class SourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICES_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    INTRA_NODE_FIELD_NUMBER: _ClassVar[int]
    INTER_NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    PORTS_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    RAILS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_PER_ISLAND_FIELD_NUMBER: _ClassVar[int]
    ISLAND_FIELD_NUMBER: _ClassVar[int]
    NODES_PER_RACK_FIELD_NUMBER: _ClassVar[int]
    INTER_RACK_FIELD_NUMBER: _ClassVar[int]
    id: str
    device_id: str
    devices_per_node: int
    node_count: int
    intra_node: LinkSpec
    inter_node: LinkSpec
    name: str
    sources: _containers.ScalarMap[str, str]
    ports_per_node: int
    rails: bool
    devices_per_island: int
    island: LinkSpec
    nodes_per_rack: int
    inter_rack: LinkSpec
    def __init__(self, id: _Optional[str] = ..., device_id: _Optional[str] = ..., devices_per_node: _Optional[int] = ..., node_count: _Optional[int] = ..., intra_node: _Optional[_Union[LinkSpec, _Mapping]] = ..., inter_node: _Optional[_Union[LinkSpec, _Mapping]] = ..., name: _Optional[str] = ..., sources: _Optional[_Mapping[str, str]] = ..., ports_per_node: _Optional[int] = ..., rails: bool = ..., devices_per_island: _Optional[int] = ..., island: _Optional[_Union[LinkSpec, _Mapping]] = ..., nodes_per_rack: _Optional[int] = ..., inter_rack: _Optional[_Union[LinkSpec, _Mapping]] = ...) -> None: ...
