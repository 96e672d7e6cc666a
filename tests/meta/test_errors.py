"""The error tree and the proto's reasons are one and the same list. Over a real call: test_rpc_server.py."""

from __future__ import annotations

import pickle
import runpy
from pathlib import Path
from typing import Any

import grpc
import pytest

from keyhole import errors
from keyhole.errors import KeyholeError
from keyhole.rpc import status
from keyhole.rpc.http import problems
from keyhole.v1 import error_pb2
from tests.support.of_all import of_all


def _classes(kind: type[KeyholeError] = KeyholeError) -> list[type[KeyholeError]]:
    below = [leaf for child in kind.__subclasses__() for leaf in _classes(child)]
    return below or [kind]


CLASSES = of_all(_classes(), lambda kind: kind.__name__)


def test_every_reason_is_one_class_and_every_class_one_reason() -> None:
    reasons = {name.removeprefix("REASON_") for name in error_pb2.Reason.keys()} - {"UNSPECIFIED"}  # noqa: SIM118
    classes = _classes()
    assert {kind.reason for kind in classes} == reasons
    assert len(classes) == len(reasons)


@CLASSES
def test_every_error_survives_the_wire_with_its_class_message_and_facts(kind: type[KeyholeError]) -> None:
    sent = status.to_proto(kind("what is wrong; what to do", epoch=7, address="a:1"))
    back = status.from_proto(error_pb2.Error.FromString(sent.SerializeToString()))
    assert type(back) is kind
    assert (back.message, back.facts) == ("what is wrong; what to do", {"epoch": "7", "address": "a:1"})
    assert sent.retryable == kind.retryable


@CLASSES
def test_every_error_has_a_grpc_code_that_is_not_ok(kind: type[KeyholeError]) -> None:
    assert grpc.StatusCode[kind.code] is not grpc.StatusCode.OK


@CLASSES
def test_every_error_has_an_http_status_and_a_problem_with_the_facts_that_grpc_sends(kind: type[KeyholeError]) -> None:
    error = kind("what is wrong; what to do", epoch=7)
    over_grpc = status.to_proto(error)
    assert problems.http_status(error) >= 400
    assert (problems.http_status(error) < 500) <= (not error.retryable or isinstance(error, errors.Overloaded))
    problem = problems.problem(error)
    assert problem["status"] == problems.http_status(error)
    assert error_pb2.Reason.Value(f"REASON_{problem['reason']}") == over_grpc.reason
    assert (problem["detail"], problem["retryable"], problem["facts"]) == (
        over_grpc.message,
        over_grpc.retryable,
        dict(over_grpc.facts),
    )


@of_all(code for code in grpc.StatusCode if code is not grpc.StatusCode.OK)
def test_every_grpc_code_has_an_http_status(code: grpc.StatusCode) -> None:
    assert 400 <= problems.STATUS[code] < 600


@CLASSES
def test_every_error_survives_being_pickled(kind: type[KeyholeError]) -> None:
    back = pickle.loads(pickle.dumps(kind("wrong", epoch=7)))
    assert (type(back), back.message, back.facts) == (kind, "wrong", {"epoch": "7"})


@CLASSES
def test_every_error_stands_in_the_tree_drawn_at_the_top_of_the_package(kind: type[KeyholeError]) -> None:
    assert kind.__name__ in str(errors.__doc__)
    assert kind.__doc__


@CLASSES
def test_every_error_is_imported_and_shown_as_one_of_keyhole_errors_whichever_file_it_is_in(
    kind: type[KeyholeError],
) -> None:
    assert kind.__name__ in errors.__all__
    assert f"{kind.__module__}.{kind.__qualname__}" == f"keyhole.errors.{kind.__name__}"


def test_the_page_of_the_errors_is_current_and_says_what_to_do_about_each() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    generator = runpy.run_path(str(docs / "errors_page.py"))
    assert set(generator["TO_DO"]) == set(_classes())
    assert (docs / "errors.md").read_text() == generator["page"](), "run `uv run python docs/generate.py`"


def test_a_reason_of_a_newer_version_keeps_whether_to_try_again() -> None:
    later = [status.from_proto(error_pb2.Error(reason=9999, message="m", retryable=flag)) for flag in (True, False)]  # type: ignore[arg-type]
    assert [error.retryable for error in later] == [True, False]
    assert all(error.message == "m" for error in later)


def test_a_fact_named_like_a_parameter_does_no_harm() -> None:
    message = error_pb2.Error(reason=error_pb2.REASON_INTERNAL, message="m", facts={"message": "x", "self": "y"})
    assert status.from_proto(message).facts == {"message": "x", "self": "y"}


class _Status(grpc.RpcError):
    """A status as some other software would send it."""

    def __init__(self, code: grpc.StatusCode, metadata: Any = (), details: str = "details of it") -> None:
        super().__init__()
        self._code, self._metadata, self._details = code, metadata, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._metadata


def test_a_stream_whose_connection_was_just_closed_is_a_lost_server() -> None:
    """What gRPC's asyncio API makes of that, every now and then."""
    error = status.from_rpc_error(_Status(grpc.StatusCode.INTERNAL, details="Internal error from Core"), "host:1")
    assert isinstance(error, errors.ServerLost)


@of_all(code for code in grpc.StatusCode if code is not grpc.StatusCode.OK)
def test_every_status_that_others_send_becomes_an_error_that_names_server_and_details(code: grpc.StatusCode) -> None:
    error = status.from_rpc_error(_Status(code), "host:1")
    assert "host:1" in error.message
    assert "details of it" in error.message
    assert error.facts["status"] == code.name


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.ServerLost),
        (grpc.StatusCode.CANCELLED, errors.ServerLost),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Unsupported),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.MalformedRequest),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.INTERNAL, errors.InternalError),
        (grpc.StatusCode.UNKNOWN, errors.InternalError),
    ],
)
def test_what_others_mean(code: grpc.StatusCode, kind: type[KeyholeError]) -> None:
    assert type(status.from_rpc_error(_Status(code))) is kind


def test_garbage_in_the_metadata_is_ignored() -> None:
    garbage = ((status.METADATA_KEY, b"\xff\xff\xff"),)
    assert isinstance(status.from_rpc_error(_Status(grpc.StatusCode.UNAVAILABLE, garbage)), errors.ServerLost)
