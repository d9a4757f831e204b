from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GraphRef(_message.Message):
    __slots__ = ("model_id", "stripped_model")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    STRIPPED_MODEL_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    stripped_model: bytes
    def __init__(self, model_id: _Optional[str] = ..., stripped_model: _Optional[bytes] = ...) -> None: ...

class TensorShape(_message.Message):
    __slots__ = ("sizes",)
    SIZES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class StoredGraph(_message.Message):
    __slots__ = ("model_id", "size_bytes")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    size_bytes: int
    def __init__(self, model_id: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...
