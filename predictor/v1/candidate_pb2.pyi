from predictor.v1 import graph_pb2 as _graph_pb2
from predictor.v1 import hardware_pb2 as _hardware_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Layout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAYOUT_UNSPECIFIED: _ClassVar[Layout]
    LAYOUT_NCHW: _ClassVar[Layout]
    LAYOUT_NHWC: _ClassVar[Layout]

class Trainer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAINER_UNSPECIFIED: _ClassVar[Trainer]
    TRAINER_AUTO: _ClassVar[Trainer]
    TRAINER_TORCH: _ClassVar[Trainer]
    TRAINER_MEGATRON: _ClassVar[Trainer]

class Weights(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHTS_UNSPECIFIED: _ClassVar[Weights]
    WEIGHTS_FULL: _ClassVar[Weights]
    WEIGHTS_INT8: _ClassVar[Weights]
    WEIGHTS_INT4: _ClassVar[Weights]
    WEIGHTS_FP8: _ClassVar[Weights]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_INFER: _ClassVar[Mode]
    MODE_TRAIN: _ClassVar[Mode]

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_FP32: _ClassVar[Precision]
    PRECISION_TF32: _ClassVar[Precision]
    PRECISION_FP16: _ClassVar[Precision]
    PRECISION_BF16: _ClassVar[Precision]
    PRECISION_AMP: _ClassVar[Precision]
    PRECISION_FP64: _ClassVar[Precision]

class Optimizer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPTIMIZER_UNSPECIFIED: _ClassVar[Optimizer]
    OPTIMIZER_NONE: _ClassVar[Optimizer]
    OPTIMIZER_SGD: _ClassVar[Optimizer]
    OPTIMIZER_MOMENTUM: _ClassVar[Optimizer]
    OPTIMIZER_ADAM: _ClassVar[Optimizer]
    OPTIMIZER_ADAMW: _ClassVar[Optimizer]

class Runtime(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUNTIME_UNSPECIFIED: _ClassVar[Runtime]
    RUNTIME_EAGER: _ClassVar[Runtime]
    RUNTIME_COMPILED: _ClassVar[Runtime]
    RUNTIME_ONNXRUNTIME: _ClassVar[Runtime]
    RUNTIME_TENSORRT: _ClassVar[Runtime]

class Schedule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULE_UNSPECIFIED: _ClassVar[Schedule]
    SCHEDULE_GPIPE: _ClassVar[Schedule]
    SCHEDULE_ONE_F_ONE_B: _ClassVar[Schedule]
    SCHEDULE_INTERLEAVED: _ClassVar[Schedule]
    SCHEDULE_ZERO_BUBBLE: _ClassVar[Schedule]

class Recompute(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECOMPUTE_UNSPECIFIED: _ClassVar[Recompute]
    RECOMPUTE_NONE: _ClassVar[Recompute]
    RECOMPUTE_SELECTIVE: _ClassVar[Recompute]
    RECOMPUTE_FULL: _ClassVar[Recompute]

class Offload(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OFFLOAD_UNSPECIFIED: _ClassVar[Offload]
    OFFLOAD_OPTIMIZER: _ClassVar[Offload]
    OFFLOAD_PARAMETERS: _ClassVar[Offload]
    OFFLOAD_ACTIVATIONS: _ClassVar[Offload]

class OffloadTarget(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OFFLOAD_TARGET_UNSPECIFIED: _ClassVar[OffloadTarget]
    OFFLOAD_TARGET_CPU: _ClassVar[OffloadTarget]
    OFFLOAD_TARGET_NVME: _ClassVar[OffloadTarget]

class CpKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CP_KIND_UNSPECIFIED: _ClassVar[CpKind]
    CP_KIND_RING: _ClassVar[CpKind]
    CP_KIND_ALL_TO_ALL: _ClassVar[CpKind]
LAYOUT_UNSPECIFIED: Layout
LAYOUT_NCHW: Layout
LAYOUT_NHWC: Layout
TRAINER_UNSPECIFIED: Trainer
TRAINER_AUTO: Trainer
TRAINER_TORCH: Trainer
TRAINER_MEGATRON: Trainer
WEIGHTS_UNSPECIFIED: Weights
WEIGHTS_FULL: Weights
WEIGHTS_INT8: Weights
WEIGHTS_INT4: Weights
WEIGHTS_FP8: Weights
MODE_UNSPECIFIED: Mode
MODE_INFER: Mode
MODE_TRAIN: Mode
PRECISION_UNSPECIFIED: Precision
PRECISION_FP32: Precision
PRECISION_TF32: Precision
PRECISION_FP16: Precision
PRECISION_BF16: Precision
PRECISION_AMP: Precision
PRECISION_FP64: Precision
OPTIMIZER_UNSPECIFIED: Optimizer
OPTIMIZER_NONE: Optimizer
OPTIMIZER_SGD: Optimizer
OPTIMIZER_MOMENTUM: Optimizer
OPTIMIZER_ADAM: Optimizer
OPTIMIZER_ADAMW: Optimizer
RUNTIME_UNSPECIFIED: Runtime
RUNTIME_EAGER: Runtime
RUNTIME_COMPILED: Runtime
RUNTIME_ONNXRUNTIME: Runtime
RUNTIME_TENSORRT: Runtime
SCHEDULE_UNSPECIFIED: Schedule
SCHEDULE_GPIPE: Schedule
SCHEDULE_ONE_F_ONE_B: Schedule
SCHEDULE_INTERLEAVED: Schedule
SCHEDULE_ZERO_BUBBLE: Schedule
RECOMPUTE_UNSPECIFIED: Recompute
RECOMPUTE_NONE: Recompute
RECOMPUTE_SELECTIVE: Recompute
RECOMPUTE_FULL: Recompute
OFFLOAD_UNSPECIFIED: Offload
OFFLOAD_OPTIMIZER: Offload
OFFLOAD_PARAMETERS: Offload
OFFLOAD_ACTIVATIONS: Offload
OFFLOAD_TARGET_UNSPECIFIED: OffloadTarget
OFFLOAD_TARGET_CPU: OffloadTarget
OFFLOAD_TARGET_NVME: OffloadTarget
CP_KIND_UNSPECIFIED: CpKind
CP_KIND_RING: CpKind
CP_KIND_ALL_TO_ALL: CpKind

class Plan(_message.Message):
    __slots__ = ("dp", "bucket_bytes", "overlap", "tp", "pp", "cp", "ep", "sequence_parallel", "zero", "shard_group", "microbatches", "schedule", "virtual_stages", "recompute", "recompute_layers", "offload", "offload_to", "cp_kind", "load_imbalance", "placement", "tp_overlap", "ep_copies")
    DP_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    TP_FIELD_NUMBER: _ClassVar[int]
    PP_FIELD_NUMBER: _ClassVar[int]
    CP_FIELD_NUMBER: _ClassVar[int]
    EP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    ZERO_FIELD_NUMBER: _ClassVar[int]
    SHARD_GROUP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_STAGES_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    OFFLOAD_FIELD_NUMBER: _ClassVar[int]
    OFFLOAD_TO_FIELD_NUMBER: _ClassVar[int]
    CP_KIND_FIELD_NUMBER: _ClassVar[int]
    LOAD_IMBALANCE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    TP_OVERLAP_FIELD_NUMBER: _ClassVar[int]
    EP_COPIES_FIELD_NUMBER: _ClassVar[int]
    dp: int
    bucket_bytes: int
    overlap: bool
    tp: int
    pp: int
    cp: int
    ep: int
    sequence_parallel: bool
    zero: int
    shard_group: int
    microbatches: int
    schedule: Schedule
    virtual_stages: int
    recompute: Recompute
    recompute_layers: int
    offload: _containers.RepeatedScalarFieldContainer[Offload]
    offload_to: OffloadTarget
    cp_kind: CpKind
    load_imbalance: float
    placement: _containers.RepeatedScalarFieldContainer[str]
    tp_overlap: bool
    ep_copies: int
    def __init__(self, dp: _Optional[int] = ..., bucket_bytes: _Optional[int] = ..., overlap: bool = ..., tp: _Optional[int] = ..., pp: _Optional[int] = ..., cp: _Optional[int] = ..., ep: _Optional[int] = ..., sequence_parallel: bool = ..., zero: _Optional[int] = ..., shard_group: _Optional[int] = ..., microbatches: _Optional[int] = ..., schedule: _Optional[_Union[Schedule, str]] = ..., virtual_stages: _Optional[int] = ..., recompute: _Optional[_Union[Recompute, str]] = ..., recompute_layers: _Optional[int] = ..., offload: _Optional[_Iterable[_Union[Offload, str]]] = ..., offload_to: _Optional[_Union[OffloadTarget, str]] = ..., cp_kind: _Optional[_Union[CpKind, str]] = ..., load_imbalance: _Optional[float] = ..., placement: _Optional[_Iterable[str]] = ..., tp_overlap: bool = ..., ep_copies: _Optional[int] = ...) -> None: ...

class Site(_message.Message):
    __slots__ = ("id", "name", "readings", "pue", "usd_per_kwh", "trace_g_per_kwh", "trace_source")
    class Reading(_message.Message):
        __slots__ = ("g_per_kwh", "year", "source", "kind")
        G_PER_KWH_FIELD_NUMBER: _ClassVar[int]
        YEAR_FIELD_NUMBER: _ClassVar[int]
        SOURCE_FIELD_NUMBER: _ClassVar[int]
        KIND_FIELD_NUMBER: _ClassVar[int]
        g_per_kwh: float
        year: int
        source: str
        kind: str
        def __init__(self, g_per_kwh: _Optional[float] = ..., year: _Optional[int] = ..., source: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    PUE_FIELD_NUMBER: _ClassVar[int]
    USD_PER_KWH_FIELD_NUMBER: _ClassVar[int]
    TRACE_G_PER_KWH_FIELD_NUMBER: _ClassVar[int]
    TRACE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    readings: _containers.RepeatedCompositeFieldContainer[Site.Reading]
    pue: float
    usd_per_kwh: float
    trace_g_per_kwh: _containers.RepeatedScalarFieldContainer[float]
    trace_source: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., readings: _Optional[_Iterable[_Union[Site.Reading, _Mapping]]] = ..., pue: _Optional[float] = ..., usd_per_kwh: _Optional[float] = ..., trace_g_per_kwh: _Optional[_Iterable[float]] = ..., trace_source: _Optional[str] = ...) -> None: ...

class Accounting(_message.Message):
    __slots__ = ("site_id", "site", "year", "kind", "start_hour", "hours", "pue", "usd_per_device_hour", "instance", "spot", "embodied_kg_per_device", "lifetime_years", "boards_only")
    SITE_ID_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    YEAR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    START_HOUR_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    PUE_FIELD_NUMBER: _ClassVar[int]
    USD_PER_DEVICE_HOUR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SPOT_FIELD_NUMBER: _ClassVar[int]
    EMBODIED_KG_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_YEARS_FIELD_NUMBER: _ClassVar[int]
    BOARDS_ONLY_FIELD_NUMBER: _ClassVar[int]
    site_id: str
    site: Site
    year: int
    kind: str
    start_hour: float
    hours: float
    pue: float
    usd_per_device_hour: float
    instance: str
    spot: bool
    embodied_kg_per_device: float
    lifetime_years: float
    boards_only: bool
    def __init__(self, site_id: _Optional[str] = ..., site: _Optional[_Union[Site, _Mapping]] = ..., year: _Optional[int] = ..., kind: _Optional[str] = ..., start_hour: _Optional[float] = ..., hours: _Optional[float] = ..., pue: _Optional[float] = ..., usd_per_device_hour: _Optional[float] = ..., instance: _Optional[str] = ..., spot: bool = ..., embodied_kg_per_device: _Optional[float] = ..., lifetime_years: _Optional[float] = ..., boards_only: bool = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("graph", "device_id", "device_spec", "batch", "mode", "precision", "optimizer", "runtime", "dims", "input_shapes", "plan", "cluster_id", "cluster_spec", "power_limit_w", "strict", "layout", "framework_version", "accounting", "rank_jitter", "weights", "trainer")
    class DimsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class InputShapesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _graph_pb2.TensorShape
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_graph_pb2.TensorShape, _Mapping]] = ...) -> None: ...
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SPEC_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    INPUT_SHAPES_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_SPEC_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_W_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTING_FIELD_NUMBER: _ClassVar[int]
    RANK_JITTER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    graph: _graph_pb2.GraphRef
    device_id: str
    device_spec: _hardware_pb2.DeviceSpec
    batch: int
    mode: Mode
    precision: Precision
    optimizer: Optimizer
    runtime: Runtime
    dims: _containers.ScalarMap[str, int]
    input_shapes: _containers.MessageMap[str, _graph_pb2.TensorShape]
    plan: Plan
    cluster_id: str
    cluster_spec: _hardware_pb2.ClusterSpec
    power_limit_w: float
    strict: bool
    layout: Layout
    framework_version: str
    accounting: Accounting
    rank_jitter: float
    weights: Weights
    trainer: Trainer
    def __init__(self, graph: _Optional[_Union[_graph_pb2.GraphRef, _Mapping]] = ..., device_id: _Optional[str] = ..., device_spec: _Optional[_Union[_hardware_pb2.DeviceSpec, _Mapping]] = ..., batch: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., precision: _Optional[_Union[Precision, str]] = ..., optimizer: _Optional[_Union[Optimizer, str]] = ..., runtime: _Optional[_Union[Runtime, str]] = ..., dims: _Optional[_Mapping[str, int]] = ..., input_shapes: _Optional[_Mapping[str, _graph_pb2.TensorShape]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., cluster_id: _Optional[str] = ..., cluster_spec: _Optional[_Union[_hardware_pb2.ClusterSpec, _Mapping]] = ..., power_limit_w: _Optional[float] = ..., strict: bool = ..., layout: _Optional[_Union[Layout, str]] = ..., framework_version: _Optional[str] = ..., accounting: _Optional[_Union[Accounting, _Mapping]] = ..., rank_jitter: _Optional[float] = ..., weights: _Optional[_Union[Weights, str]] = ..., trainer: _Optional[_Union[Trainer, str]] = ...) -> None: ...
