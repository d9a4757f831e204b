from google.rpc import status_pb2 as _status_pb2
from predictor.v1 import candidate_pb2 as _candidate_pb2
from predictor.v1 import prediction_pb2 as _prediction_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PredictRequest(_message.Message):
    __slots__ = ("candidate", "validate_only", "request_id")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    candidate: _candidate_pb2.Candidate
    validate_only: bool
    request_id: str
    def __init__(self, candidate: _Optional[_Union[_candidate_pb2.Candidate, _Mapping]] = ..., validate_only: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("prediction", "request_id")
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    prediction: _prediction_pb2.Prediction
    request_id: str
    def __init__(self, prediction: _Optional[_Union[_prediction_pb2.Prediction, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class BatchPredictRequest(_message.Message):
    __slots__ = ("candidates", "request_id")
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedCompositeFieldContainer[_candidate_pb2.Candidate]
    request_id: str
    def __init__(self, candidates: _Optional[_Iterable[_Union[_candidate_pb2.Candidate, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class CandidateResult(_message.Message):
    __slots__ = ("prediction", "error")
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    prediction: _prediction_pb2.Prediction
    error: _status_pb2.Status
    def __init__(self, prediction: _Optional[_Union[_prediction_pb2.Prediction, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class BatchPredictResponse(_message.Message):
    __slots__ = ("results", "request_id")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CandidateResult]
    request_id: str
    def __init__(self, results: _Optional[_Iterable[_Union[CandidateResult, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class StreamPredictRequest(_message.Message):
    __slots__ = ("candidate", "request_id")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    candidate: _candidate_pb2.Candidate
    request_id: str
    def __init__(self, candidate: _Optional[_Union[_candidate_pb2.Candidate, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class StreamPredictResponse(_message.Message):
    __slots__ = ("result", "request_id")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    result: CandidateResult
    request_id: str
    def __init__(self, result: _Optional[_Union[CandidateResult, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("candidate", "request_id")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    candidate: _candidate_pb2.Candidate
    request_id: str
    def __init__(self, candidate: _Optional[_Union[_candidate_pb2.Candidate, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("prediction", "rows", "request_id", "exchanges")
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    prediction: _prediction_pb2.Prediction
    rows: _containers.RepeatedCompositeFieldContainer[_prediction_pb2.OpCostRow]
    request_id: str
    exchanges: _containers.RepeatedCompositeFieldContainer[_prediction_pb2.ExchangeRow]
    def __init__(self, prediction: _Optional[_Union[_prediction_pb2.Prediction, _Mapping]] = ..., rows: _Optional[_Iterable[_Union[_prediction_pb2.OpCostRow, _Mapping]]] = ..., request_id: _Optional[str] = ..., exchanges: _Optional[_Iterable[_Union[_prediction_pb2.ExchangeRow, _Mapping]]] = ...) -> None: ...
