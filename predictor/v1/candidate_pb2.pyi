from predictor.v1 import graph_pb2 as _graph_pb2
from predictor.v1 import hardware_pb2 as _hardware_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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

class Plan(_message.Message):
    __slots__ = ("dp", "bucket_bytes", "overlap")
    DP_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    dp: int
    bucket_bytes: int
    overlap: bool
    def __init__(self, dp: _Optional[int] = ..., bucket_bytes: _Optional[int] = ..., overlap: bool = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("graph", "device_id", "device_spec", "batch", "mode", "precision", "optimizer", "runtime", "dims", "input_shapes", "plan", "cluster_id", "cluster_spec", "power_limit_w", "strict")
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
    def __init__(self, graph: _Optional[_Union[_graph_pb2.GraphRef, _Mapping]] = ..., device_id: _Optional[str] = ..., device_spec: _Optional[_Union[_hardware_pb2.DeviceSpec, _Mapping]] = ..., batch: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., precision: _Optional[_Union[Precision, str]] = ..., optimizer: _Optional[_Union[Optimizer, str]] = ..., runtime: _Optional[_Union[Runtime, str]] = ..., dims: _Optional[_Mapping[str, int]] = ..., input_shapes: _Optional[_Mapping[str, _graph_pb2.TensorShape]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., cluster_id: _Optional[str] = ..., cluster_spec: _Optional[_Union[_hardware_pb2.ClusterSpec, _Mapping]] = ..., power_limit_w: _Optional[float] = ..., strict: bool = ...) -> None: ...
