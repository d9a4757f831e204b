from __future__ import annotations

import pytest
from google.rpc import code_pb2, error_details_pb2

from predictor import errors
from predictor.wire.status import error_to_status, status_to_error


def _tree(root: type[errors.PerfcastError]) -> list[type[errors.PerfcastError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _tree(child))]


_RAISED = [kind for kind in _tree(errors.PerfcastError) if kind.__module__ == "predictor.errors"][1:]


@pytest.mark.parametrize("kind", _RAISED, ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_it_was(kind: type[errors.PerfcastError]) -> None:
    error = kind("the device 'µ' is wrong: try another one", field="device", near="a,b", count=3)
    back = status_to_error(error_to_status(error))
    assert type(back) is kind
    assert (back.message, back.metadata) == (error.message, error.metadata)


def test_reasons_are_unique() -> None:
    reasons = [kind.reason for kind in _tree(errors.PerfcastError)]
    assert len(set(reasons)) == len(reasons)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidGraph("x"), code_pb2.INVALID_ARGUMENT),
        (errors.UnboundSymbol("x"), code_pb2.INVALID_ARGUMENT),
        (errors.UnknownDevice("x"), code_pb2.NOT_FOUND),
        (errors.UnknownGraph("x"), code_pb2.NOT_FOUND),
        (errors.UnsupportedOp("x"), code_pb2.FAILED_PRECONDITION),
        (errors.CoverageMissing("x"), code_pb2.FAILED_PRECONDITION),
        (errors.Overloaded("x"), code_pb2.RESOURCE_EXHAUSTED),
        (errors.Unavailable("x"), code_pb2.UNAVAILABLE),
        (errors.Unauthenticated("x"), code_pb2.UNAUTHENTICATED),
        (ZeroDivisionError("secret"), code_pb2.INTERNAL),
    ],
)
def test_codes(error: Exception, code: int) -> None:
    assert error_to_status(error).code == code


def test_a_bug_shows_the_request_id_and_nothing_else() -> None:
    status = error_to_status(KeyError("secret path /etc"), "id-7")
    assert "secret" not in str(status)
    assert "id-7" in status.message
    assert isinstance(status_to_error(status), errors.PerfcastError)


def test_fields_become_violations() -> None:
    status = error_to_status(errors.InvalidRequest("batch is 0", field="batch"))
    bad = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad)
    assert [(item.field, item.description) for item in bad.field_violations] == [("batch", "batch is 0")]


def test_a_status_never_outgrows_a_trailer() -> None:
    error = errors.UnsupportedOp("x" * 100_000, ops="y" * 100_000)
    assert error_to_status(error).ByteSize() < 4096


def test_a_foreign_status_is_an_error_all_the_same() -> None:
    status = error_to_status(errors.InvalidGraph("x"))
    del status.details[:]
    assert "INVALID_ARGUMENT" in status_to_error(status).message
