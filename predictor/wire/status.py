"""Errors <-> google.rpc.Status with ErrorInfo: one table, read in both directions.

A client gets back class, message and metadata as the server raised them. Anything that is not a PerfcastError
is a bug: its text stays on the server and the caller gets the request id to look it up.
"""

from __future__ import annotations

from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2
from google.rpc.status_pb2 import Status

from predictor import errors

DOMAIN = "perfcast"

_CODES: dict[type[errors.PerfcastError], int] = {
    errors.UnknownName: code_pb2.NOT_FOUND,
    errors.InvalidInput: code_pb2.INVALID_ARGUMENT,
    errors.DoesNotFit: code_pb2.FAILED_PRECONDITION,
    errors.CoverageMissing: code_pb2.FAILED_PRECONDITION,
    errors.InvalidBundle: code_pb2.FAILED_PRECONDITION,
    errors.InvalidData: code_pb2.FAILED_PRECONDITION,
    errors.OutputNotWritable: code_pb2.FAILED_PRECONDITION,
    errors.AccuracyGateFailed: code_pb2.FAILED_PRECONDITION,
    errors.Unauthenticated: code_pb2.UNAUTHENTICATED,
    errors.Overloaded: code_pb2.RESOURCE_EXHAUSTED,
    errors.Unavailable: code_pb2.UNAVAILABLE,
}

# Status travels in trailing metadata, which peers limit to 8 KiB, base64 and the plain message included.
_MESSAGE_LIMIT = 1500
_METADATA_LIMIT = 500


def _by_reason(root: type[errors.PerfcastError]) -> dict[str, type[errors.PerfcastError]]:
    found = {root.reason: root}
    for child in root.__subclasses__():
        found.update(_by_reason(child))
    return found


def code_of(error: BaseException) -> int:
    """The google.rpc.Code of an error: of its nearest class in the table; INTERNAL for all others."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), code_pb2.INTERNAL)


def error_to_status(error: BaseException, request_id: str = "") -> Status:
    """The status of an error, details included."""
    if not isinstance(error, errors.PerfcastError) or code_of(error) == code_pb2.INTERNAL:
        metadata = {"request_id": request_id}
        info = error_details_pb2.ErrorInfo(reason="INTERNAL", domain=DOMAIN, metadata=metadata)
        message = f"internal error; the server's log has it under request id {request_id}"
        return Status(code=code_pb2.INTERNAL, message=message, details=[_pack(info)])
    message = _cut(error.message, _MESSAGE_LIMIT)
    metadata = {key: _cut(value, _METADATA_LIMIT) for key, value in error.metadata.items()}
    details = [_pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata))]
    if field := metadata.get("field"):
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=message)
        details.append(_pack(error_details_pb2.BadRequest(field_violations=[violation])))
    return Status(code=code_of(error), message=message, details=details)


def status_to_error(status: Status) -> errors.PerfcastError:
    """The error that the server raised; a plain PerfcastError if the status holds no ErrorInfo of ours."""
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
    if info.domain == DOMAIN:
        kind = _by_reason(errors.PerfcastError).get(info.reason, errors.PerfcastError)
        return kind(status.message, **dict(info.metadata))
    return errors.PerfcastError(f"server answered {code_pb2.Code.Name(status.code)}: {status.message}")


def _pack(message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
