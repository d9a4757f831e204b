from predictor.v1 import candidate_pb2 as _candidate_pb2
from predictor.v1 import hardware_pb2 as _hardware_pb2
from predictor.v1 import prediction_pb2 as _prediction_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListDevicesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDevicesResponse(_message.Message):
    __slots__ = ("devices", "next_page_token")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[_hardware_pb2.DeviceSpec]
    next_page_token: str
    def __init__(self, devices: _Optional[_Iterable[_Union[_hardware_pb2.DeviceSpec, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListBundlesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class Bundle(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListBundlesResponse(_message.Message):
    __slots__ = ("bundles", "next_page_token")
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    bundles: _containers.RepeatedCompositeFieldContainer[Bundle]
    next_page_token: str
    def __init__(self, bundles: _Optional[_Iterable[_Union[Bundle, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetCoverageRequest(_message.Message):
    __slots__ = ("candidate",)
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    candidate: _candidate_pb2.Candidate
    def __init__(self, candidate: _Optional[_Union[_candidate_pb2.Candidate, _Mapping]] = ...) -> None: ...

class OpCoverage(_message.Message):
    __slots__ = ("op_type", "source", "count", "share_fraction")
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FRACTION_FIELD_NUMBER: _ClassVar[int]
    op_type: str
    source: str
    count: int
    share_fraction: float
    def __init__(self, op_type: _Optional[str] = ..., source: _Optional[str] = ..., count: _Optional[int] = ..., share_fraction: _Optional[float] = ...) -> None: ...

class GetCoverageResponse(_message.Message):
    __slots__ = ("coverage", "ops", "out_of_range")
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_RANGE_FIELD_NUMBER: _ClassVar[int]
    coverage: _prediction_pb2.Coverage
    ops: _containers.RepeatedCompositeFieldContainer[OpCoverage]
    out_of_range: bool
    def __init__(self, coverage: _Optional[_Union[_prediction_pb2.Coverage, _Mapping]] = ..., ops: _Optional[_Iterable[_Union[OpCoverage, _Mapping]]] = ..., out_of_range: bool = ...) -> None: ...
