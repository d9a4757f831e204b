from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Interval(_message.Message):
    __slots__ = ("value", "low", "high", "coverage")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    value: float
    low: float
    high: float
    coverage: float
    def __init__(self, value: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., coverage: _Optional[float] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Coverage(_message.Message):
    __slots__ = ("measured", "learned", "analytic", "fallback")
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    ANALYTIC_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    measured: float
    learned: float
    analytic: float
    fallback: float
    def __init__(self, measured: _Optional[float] = ..., learned: _Optional[float] = ..., analytic: _Optional[float] = ..., fallback: _Optional[float] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Footprint(_message.Message):
    __slots__ = ("scope", "energy_j", "parts_j", "site", "node_count", "pue", "intensity_g_per_kwh", "carbon_g", "carbon_note", "embodied_g", "cost_usd", "cost_note")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    ENERGY_J_FIELD_NUMBER: _ClassVar[int]
    PARTS_J_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PUE_FIELD_NUMBER: _ClassVar[int]
    INTENSITY_G_PER_KWH_FIELD_NUMBER: _ClassVar[int]
    CARBON_G_FIELD_NUMBER: _ClassVar[int]
    CARBON_NOTE_FIELD_NUMBER: _ClassVar[int]
    EMBODIED_G_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    COST_NOTE_FIELD_NUMBER: _ClassVar[int]
    scope: str
    energy_j: Interval
    parts_j: _containers.RepeatedCompositeFieldContainer[Part]
    site: str
    node_count: float
    pue: float
    intensity_g_per_kwh: Interval
    carbon_g: Interval
    carbon_note: str
    embodied_g: float
    cost_usd: Interval
    cost_note: str
    def __init__(self, scope: _Optional[str] = ..., energy_j: _Optional[_Union[Interval, _Mapping]] = ..., parts_j: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., site: _Optional[str] = ..., node_count: _Optional[float] = ..., pue: _Optional[float] = ..., intensity_g_per_kwh: _Optional[_Union[Interval, _Mapping]] = ..., carbon_g: _Optional[_Union[Interval, _Mapping]] = ..., carbon_note: _Optional[str] = ..., embodied_g: _Optional[float] = ..., cost_usd: _Optional[_Union[Interval, _Mapping]] = ..., cost_note: _Optional[str] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("iteration_time_s", "throughput_samples_per_s", "device_peak_bytes", "allocator_peak_bytes", "fits", "energy_j", "average_power_w", "time_breakdown_s", "memory_breakdown_bytes", "energy_breakdown_j", "coverage", "warnings", "bundle", "graph", "device", "device_count", "capacity_bytes", "out_of_range", "schema", "footprint", "energy_scope", "fit_probability")
    ITERATION_TIME_S_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALLOCATOR_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    ENERGY_J_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_POWER_W_FIELD_NUMBER: _ClassVar[int]
    TIME_BREAKDOWN_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BREAKDOWN_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENERGY_BREAKDOWN_J_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_RANGE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    FOOTPRINT_FIELD_NUMBER: _ClassVar[int]
    ENERGY_SCOPE_FIELD_NUMBER: _ClassVar[int]
    FIT_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    iteration_time_s: Interval
    throughput_samples_per_s: Interval
    device_peak_bytes: Interval
    allocator_peak_bytes: Interval
    fits: bool
    energy_j: Interval
    average_power_w: Interval
    time_breakdown_s: _containers.RepeatedCompositeFieldContainer[Part]
    memory_breakdown_bytes: _containers.RepeatedCompositeFieldContainer[Part]
    energy_breakdown_j: _containers.RepeatedCompositeFieldContainer[Part]
    coverage: Coverage
    warnings: _containers.RepeatedCompositeFieldContainer[Notice]
    bundle: str
    graph: str
    device: str
    device_count: int
    capacity_bytes: float
    out_of_range: bool
    schema: str
    footprint: Footprint
    energy_scope: str
    fit_probability: float
    def __init__(self, iteration_time_s: _Optional[_Union[Interval, _Mapping]] = ..., throughput_samples_per_s: _Optional[_Union[Interval, _Mapping]] = ..., device_peak_bytes: _Optional[_Union[Interval, _Mapping]] = ..., allocator_peak_bytes: _Optional[_Union[Interval, _Mapping]] = ..., fits: bool = ..., energy_j: _Optional[_Union[Interval, _Mapping]] = ..., average_power_w: _Optional[_Union[Interval, _Mapping]] = ..., time_breakdown_s: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., memory_breakdown_bytes: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., energy_breakdown_j: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., coverage: _Optional[_Union[Coverage, _Mapping]] = ..., warnings: _Optional[_Iterable[_Union[Notice, _Mapping]]] = ..., bundle: _Optional[str] = ..., graph: _Optional[str] = ..., device: _Optional[str] = ..., device_count: _Optional[int] = ..., capacity_bytes: _Optional[float] = ..., out_of_range: bool = ..., schema: _Optional[str] = ..., footprint: _Optional[_Union[Footprint, _Mapping]] = ..., energy_scope: _Optional[str] = ..., fit_probability: _Optional[float] = ...) -> None: ...

class OpCostRow(_message.Message):
    __slots__ = ("op_type", "family", "kind", "phase", "count", "time_s", "share_fraction", "floor_s", "flops", "moved_bytes", "bound", "source", "example_node")
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    SHARE_FRACTION_FIELD_NUMBER: _ClassVar[int]
    FLOOR_S_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_NODE_FIELD_NUMBER: _ClassVar[int]
    op_type: str
    family: str
    kind: str
    phase: str
    count: int
    time_s: float
    share_fraction: float
    floor_s: float
    flops: int
    moved_bytes: int
    bound: str
    source: str
    example_node: str
    def __init__(self, op_type: _Optional[str] = ..., family: _Optional[str] = ..., kind: _Optional[str] = ..., phase: _Optional[str] = ..., count: _Optional[int] = ..., time_s: _Optional[float] = ..., share_fraction: _Optional[float] = ..., floor_s: _Optional[float] = ..., flops: _Optional[int] = ..., moved_bytes: _Optional[int] = ..., bound: _Optional[str] = ..., source: _Optional[str] = ..., example_node: _Optional[str] = ...) -> None: ...

class ExchangeRow(_message.Message):
    __slots__ = ("group", "collective", "ranks", "nodes", "link", "source", "systems", "log_spread")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SYSTEMS_FIELD_NUMBER: _ClassVar[int]
    LOG_SPREAD_FIELD_NUMBER: _ClassVar[int]
    group: str
    collective: str
    ranks: int
    nodes: int
    link: str
    source: str
    systems: _containers.RepeatedScalarFieldContainer[str]
    log_spread: float
    def __init__(self, group: _Optional[str] = ..., collective: _Optional[str] = ..., ranks: _Optional[int] = ..., nodes: _Optional[int] = ..., link: _Optional[str] = ..., source: _Optional[str] = ..., systems: _Optional[_Iterable[str]] = ..., log_spread: _Optional[float] = ...) -> None: ...
