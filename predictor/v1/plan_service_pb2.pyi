from predictor.v1 import candidate_pb2 as _candidate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Objective(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECTIVE_UNSPECIFIED: _ClassVar[Objective]
    OBJECTIVE_TIME: _ClassVar[Objective]
    OBJECTIVE_COST: _ClassVar[Objective]
    OBJECTIVE_ENERGY: _ClassVar[Objective]
    OBJECTIVE_CARBON: _ClassVar[Objective]
OBJECTIVE_UNSPECIFIED: Objective
OBJECTIVE_TIME: Objective
OBJECTIVE_COST: Objective
OBJECTIVE_ENERGY: Objective
OBJECTIVE_CARBON: Objective

class Goal(_message.Message):
    __slots__ = ("objective", "price_per_hour", "carbon_g_per_kwh", "pue", "deadline_s", "top")
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    CARBON_G_PER_KWH_FIELD_NUMBER: _ClassVar[int]
    PUE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    objective: Objective
    price_per_hour: float
    carbon_g_per_kwh: float
    pue: float
    deadline_s: float
    top: int
    def __init__(self, objective: _Optional[_Union[Objective, str]] = ..., price_per_hour: _Optional[float] = ..., carbon_g_per_kwh: _Optional[float] = ..., pue: _Optional[float] = ..., deadline_s: _Optional[float] = ..., top: _Optional[int] = ...) -> None: ...

class SearchPlansRequest(_message.Message):
    __slots__ = ("candidate", "goal", "max_devices", "cp", "request_id")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    MAX_DEVICES_FIELD_NUMBER: _ClassVar[int]
    CP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    candidate: _candidate_pb2.Candidate
    goal: Goal
    max_devices: int
    cp: _containers.RepeatedScalarFieldContainer[int]
    request_id: str
    def __init__(self, candidate: _Optional[_Union[_candidate_pb2.Candidate, _Mapping]] = ..., goal: _Optional[_Union[Goal, _Mapping]] = ..., max_devices: _Optional[int] = ..., cp: _Optional[_Iterable[int]] = ..., request_id: _Optional[str] = ...) -> None: ...

class FoundPlan(_message.Message):
    __slots__ = ("plan", "value", "iteration_time_s", "energy_j", "device_peak_bytes", "part_names", "part_s")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_TIME_S_FIELD_NUMBER: _ClassVar[int]
    ENERGY_J_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_NAMES_FIELD_NUMBER: _ClassVar[int]
    PART_S_FIELD_NUMBER: _ClassVar[int]
    plan: _candidate_pb2.Plan
    value: float
    iteration_time_s: float
    energy_j: float
    device_peak_bytes: float
    part_names: _containers.RepeatedScalarFieldContainer[str]
    part_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, plan: _Optional[_Union[_candidate_pb2.Plan, _Mapping]] = ..., value: _Optional[float] = ..., iteration_time_s: _Optional[float] = ..., energy_j: _Optional[float] = ..., device_peak_bytes: _Optional[float] = ..., part_names: _Optional[_Iterable[str]] = ..., part_s: _Optional[_Iterable[float]] = ...) -> None: ...

class FrontPlan(_message.Message):
    __slots__ = ("plan", "iteration_time_s")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ITERATION_TIME_S_FIELD_NUMBER: _ClassVar[int]
    plan: _candidate_pb2.Plan
    iteration_time_s: float
    def __init__(self, plan: _Optional[_Union[_candidate_pb2.Plan, _Mapping]] = ..., iteration_time_s: _Optional[float] = ...) -> None: ...

class SearchPlansResponse(_message.Message):
    __slots__ = ("best", "front", "considered", "too_large", "priced", "request_id")
    BEST_FIELD_NUMBER: _ClassVar[int]
    FRONT_FIELD_NUMBER: _ClassVar[int]
    CONSIDERED_FIELD_NUMBER: _ClassVar[int]
    TOO_LARGE_FIELD_NUMBER: _ClassVar[int]
    PRICED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    best: _containers.RepeatedCompositeFieldContainer[FoundPlan]
    front: _containers.RepeatedCompositeFieldContainer[FrontPlan]
    considered: int
    too_large: int
    priced: int
    request_id: str
    def __init__(self, best: _Optional[_Iterable[_Union[FoundPlan, _Mapping]]] = ..., front: _Optional[_Iterable[_Union[FrontPlan, _Mapping]]] = ..., considered: _Optional[int] = ..., too_large: _Optional[int] = ..., priced: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class ThroughputTableRequest(_message.Message):
    __slots__ = ("candidate", "device_ids", "device_counts", "request_id")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    candidate: _candidate_pb2.Candidate
    device_ids: _containers.RepeatedScalarFieldContainer[str]
    device_counts: _containers.RepeatedScalarFieldContainer[int]
    request_id: str
    def __init__(self, candidate: _Optional[_Union[_candidate_pb2.Candidate, _Mapping]] = ..., device_ids: _Optional[_Iterable[str]] = ..., device_counts: _Optional[_Iterable[int]] = ..., request_id: _Optional[str] = ...) -> None: ...

class ThroughputRow(_message.Message):
    __slots__ = ("device_id", "device_count", "plan", "iteration_time_s", "throughput_samples_per_s")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ITERATION_TIME_S_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    device_count: int
    plan: _candidate_pb2.Plan
    iteration_time_s: float
    throughput_samples_per_s: float
    def __init__(self, device_id: _Optional[str] = ..., device_count: _Optional[int] = ..., plan: _Optional[_Union[_candidate_pb2.Plan, _Mapping]] = ..., iteration_time_s: _Optional[float] = ..., throughput_samples_per_s: _Optional[float] = ...) -> None: ...

class ThroughputTableResponse(_message.Message):
    __slots__ = ("rows", "request_id")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[ThroughputRow]
    request_id: str
    def __init__(self, rows: _Optional[_Iterable[_Union[ThroughputRow, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class ScalingCurveRequest(_message.Message):
    __slots__ = ("candidate", "replicas", "weak", "request_id")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    WEAK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    candidate: _candidate_pb2.Candidate
    replicas: _containers.RepeatedScalarFieldContainer[int]
    weak: bool
    request_id: str
    def __init__(self, candidate: _Optional[_Union[_candidate_pb2.Candidate, _Mapping]] = ..., replicas: _Optional[_Iterable[int]] = ..., weak: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class ScalingPoint(_message.Message):
    __slots__ = ("replicas", "device_count", "batch", "iteration_time_s", "iteration_time_low_s", "iteration_time_high_s", "throughput_samples_per_s", "efficiency_fraction", "fits")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ITERATION_TIME_S_FIELD_NUMBER: _ClassVar[int]
    ITERATION_TIME_LOW_S_FIELD_NUMBER: _ClassVar[int]
    ITERATION_TIME_HIGH_S_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    EFFICIENCY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    replicas: int
    device_count: int
    batch: int
    iteration_time_s: float
    iteration_time_low_s: float
    iteration_time_high_s: float
    throughput_samples_per_s: float
    efficiency_fraction: float
    fits: bool
    def __init__(self, replicas: _Optional[int] = ..., device_count: _Optional[int] = ..., batch: _Optional[int] = ..., iteration_time_s: _Optional[float] = ..., iteration_time_low_s: _Optional[float] = ..., iteration_time_high_s: _Optional[float] = ..., throughput_samples_per_s: _Optional[float] = ..., efficiency_fraction: _Optional[float] = ..., fits: bool = ...) -> None: ...

class ScalingCurveResponse(_message.Message):
    __slots__ = ("points", "request_id")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[ScalingPoint]
    request_id: str
    def __init__(self, points: _Optional[_Iterable[_Union[ScalingPoint, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...
