from predictor.v1 import candidate_pb2 as _candidate_pb2
from predictor.v1 import prediction_pb2 as _prediction_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FindFitRequest(_message.Message):
    __slots__ = ("candidate", "axis", "probability", "request_id")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    candidate: _candidate_pb2.Candidate
    axis: str
    probability: float
    request_id: str
    def __init__(self, candidate: _Optional[_Union[_candidate_pb2.Candidate, _Mapping]] = ..., axis: _Optional[str] = ..., probability: _Optional[float] = ..., request_id: _Optional[str] = ...) -> None: ...

class FitPoint(_message.Message):
    __slots__ = ("value", "device_peak_bytes", "fit_probability")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIT_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    value: int
    device_peak_bytes: _prediction_pb2.Interval
    fit_probability: float
    def __init__(self, value: _Optional[int] = ..., device_peak_bytes: _Optional[_Union[_prediction_pb2.Interval, _Mapping]] = ..., fit_probability: _Optional[float] = ...) -> None: ...

class FindFitResponse(_message.Message):
    __slots__ = ("axis", "step", "probability", "largest", "beyond", "smallest", "asked", "capacity_bytes", "device_id", "stopped", "request_id")
    AXIS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    SMALLEST_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    axis: str
    step: int
    probability: float
    largest: FitPoint
    beyond: FitPoint
    smallest: FitPoint
    asked: FitPoint
    capacity_bytes: float
    device_id: str
    stopped: str
    request_id: str
    def __init__(self, axis: _Optional[str] = ..., step: _Optional[int] = ..., probability: _Optional[float] = ..., largest: _Optional[_Union[FitPoint, _Mapping]] = ..., beyond: _Optional[_Union[FitPoint, _Mapping]] = ..., smallest: _Optional[_Union[FitPoint, _Mapping]] = ..., asked: _Optional[_Union[FitPoint, _Mapping]] = ..., capacity_bytes: _Optional[float] = ..., device_id: _Optional[str] = ..., stopped: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class FindChangesRequest(_message.Message):
    __slots__ = ("candidate", "probability", "request_id")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    candidate: _candidate_pb2.Candidate
    probability: float
    request_id: str
    def __init__(self, candidate: _Optional[_Union[_candidate_pb2.Candidate, _Mapping]] = ..., probability: _Optional[float] = ..., request_id: _Optional[str] = ...) -> None: ...

class ChangedJob(_message.Message):
    __slots__ = ("plan", "precision", "batch", "weights")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    plan: _candidate_pb2.Plan
    precision: _candidate_pb2.Precision
    batch: int
    weights: _candidate_pb2.Weights
    def __init__(self, plan: _Optional[_Union[_candidate_pb2.Plan, _Mapping]] = ..., precision: _Optional[_Union[_candidate_pb2.Precision, str]] = ..., batch: _Optional[int] = ..., weights: _Optional[_Union[_candidate_pb2.Weights, str]] = ...) -> None: ...

class FitChange(_message.Message):
    __slots__ = ("what", "job", "device_peak_bytes", "fit_probability", "slowdown", "fits")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIT_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    what: str
    job: ChangedJob
    device_peak_bytes: _prediction_pb2.Interval
    fit_probability: float
    slowdown: float
    fits: bool
    def __init__(self, what: _Optional[str] = ..., job: _Optional[_Union[ChangedJob, _Mapping]] = ..., device_peak_bytes: _Optional[_Union[_prediction_pb2.Interval, _Mapping]] = ..., fit_probability: _Optional[float] = ..., slowdown: _Optional[float] = ..., fits: bool = ...) -> None: ...

class FindChangesResponse(_message.Message):
    __slots__ = ("changes", "request_id")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[FitChange]
    request_id: str
    def __init__(self, changes: _Optional[_Iterable[_Union[FitChange, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...
