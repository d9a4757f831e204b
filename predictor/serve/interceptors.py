"""What happens around every call, written once: request id, error mapping, access log; and the token check.

Servicers raise errors of predictor.errors and know no status codes. Health checks and reflection pass by.
"""

from __future__ import annotations

import hmac
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from predictor.errors import InvalidRequest, PerfcastError, Unauthenticated
from predictor.serve.logs import ACCESS, EVENTS
from predictor.wire.status import error_to_status

REQUEST_ID_KEY = "x-request-id"
_REQUEST_ID_LIMIT = 128
_OURS = "/predictor.v1."
_MALFORMED = object()
_SERIAL = itertools.count()
_PREFIX = os.urandom(4).hex()

Behaviour: TypeAlias = Callable[[Any, grpc.ServicerContext], Any]
Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], "grpc.RpcMethodHandler[Any, Any] | None"]


@dataclass(slots=True)
class _Call:
    """One call as the access log will show it."""

    method: str
    request_id: str
    started_s: float
    candidate_count: int = 0
    code: int = 0
    reason: str = ""
    fields: dict[str, object] = field(default_factory=dict)


class CallInterceptor(grpc.ServerInterceptor):
    """Turns errors into statuses, gives every call an id and writes the access log."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        """The method's handler, wrapped."""
        handler = continuation(details)
        if handler is None or not details.method.startswith(_OURS):
            return handler
        method = details.method.rpartition("/")[2]
        wrap = self._stream if handler.response_streaming else self._single
        return _rewrap(handler, lambda behaviour: wrap(method, behaviour))

    def _single(self, method: str, behaviour: Behaviour) -> Behaviour:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            record = self._open(method, request, context)
            try:
                answer = behaviour(self._checked(request, record), context)
            except Exception as error:
                status = self._failed(record, error, context)
            else:
                self._close(record, context)
                return answer
            self._close(record, context)
            return context.abort_with_status(rpc_status.to_status(status))

        return call

    def _stream(self, method: str, behaviour: Behaviour) -> Behaviour:
        def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            record = self._open(method, request, context)
            status = None
            try:
                yield from behaviour(self._checked(request, record), context)
            except Exception as error:
                status = self._failed(record, error, context)
            except GeneratorExit:
                # The caller left between two answers.
                record.code = code_pb2.CANCELLED
                raise
            finally:
                self._close(record, context)
            if status is not None:
                context.abort_with_status(rpc_status.to_status(status))

        return call

    def _open(self, method: str, request: Any, context: grpc.ServicerContext) -> _Call:
        request_id = getattr(request, "request_id", "")
        if not request_id:
            metadata = dict(context.invocation_metadata())
            request_id = str(metadata.get(REQUEST_ID_KEY, ""))[:_REQUEST_ID_LIMIT]
        return _Call(method, request_id or f"{_PREFIX}-{next(_SERIAL):x}", self._clock())

    def _checked(self, request: Any, record: _Call) -> Any:
        if isinstance(request, Iterator):
            return self._counted(request, record)
        _check(request)
        record.candidate_count = _candidate_count(request)
        return request

    @staticmethod
    def _counted(requests: Iterator[Any], record: _Call) -> Iterator[Any]:
        for request in requests:
            _check(request)
            record.candidate_count += _candidate_count(request)
            yield request

    @staticmethod
    def _failed(record: _Call, error: Exception, context: grpc.ServicerContext) -> Any:
        if isinstance(error, grpc.RpcError) and not context.is_active():
            # The caller is gone: its stream of requests ends with this error, and nobody hears a status.
            record.code = code_pb2.CANCELLED
            return Status(code=record.code, message="the caller has left")
        status = error_to_status(error, record.request_id)
        record.code = status.code
        record.reason = error.reason if isinstance(error, PerfcastError) else type(error).__name__
        if status.code == code_pb2.INTERNAL:
            fields = {"request_id": record.request_id, "method": record.method}
            EVENTS.error("internal error", exc_info=error, extra={"fields": fields})
        return status

    def _close(self, record: _Call, context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata(((REQUEST_ID_KEY, record.request_id),))
        if not ACCESS.isEnabledFor(20):
            return
        fields: dict[str, object] = {
            "method": record.method,
            "code": code_pb2.Code.Name(record.code),
            "duration_s": round(self._clock() - record.started_s, 6),
            "request_id": record.request_id,
            "candidates": record.candidate_count,
            "peer": context.peer(),
        }
        if record.reason:
            fields["reason"] = record.reason
        ACCESS.info("call", extra={"fields": fields})


class TokenInterceptor(grpc.ServerInterceptor):
    """Refuses calls without the right bearer token. Stands inside CallInterceptor, which maps its error."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        """The method's handler, or one that refuses."""
        handler = continuation(details)
        if handler is None or not details.method.startswith(_OURS):
            return handler
        given = next((value for key, value in details.invocation_metadata if key == "authorization"), "")
        if hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._expected):
            return handler
        problem = "another token is expected" if given else "this server wants a bearer token"
        return _rewrap(handler, lambda _: _refusal(problem, handler.response_streaming))


def _refusal(problem: str, streaming: bool) -> Behaviour:
    def refuse(request: Any, context: grpc.ServicerContext) -> Any:
        raise Unauthenticated(f"{problem}: pass it with --token or PERFCAST_TOKEN")

    def refuse_stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield refuse(request, context)

    return refuse_stream if streaming else refuse


def _check(request: Any) -> None:
    if request is _MALFORMED:
        raise InvalidRequest("the message cannot be decoded; expected one of predictor.v1")
    if len(getattr(request, "request_id", "")) > _REQUEST_ID_LIMIT:
        raise InvalidRequest(
            f"request_id is longer than {_REQUEST_ID_LIMIT} characters",
            field="request_id",
            limit=_REQUEST_ID_LIMIT,
        )


def _candidate_count(request: Any) -> int:
    candidates = getattr(request, "candidates", None)
    return len(candidates) if candidates is not None else int(hasattr(request, "candidate"))


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"


def _rewrap(handler: Any, wrap: Callable[[Behaviour], Behaviour]) -> Any:
    """The handler with its behaviour wrapped, and with undecodable bytes passed on as a marker."""
    kind = f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}"
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    decode = handler.request_deserializer

    def decode_or_mark(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            # grpc itself would answer INTERNAL and log a traceback.
            return _MALFORMED

    return make(wrap(getattr(handler, kind)), decode_or_mark, handler.response_serializer)
