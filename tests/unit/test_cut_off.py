"""Which reads are sent again, and what is error_for_caller where that was in vain."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from keyhole import errors
from keyhole.client.wire.cut_off import error_for_caller, is_cut_off
from keyhole.errors import KeyholeError
from keyhole.rpc import status

AGAIN = {errors.ServerLost, errors.Draining}


class _Status(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str, sent: KeyholeError | None = None) -> None:
        self._code, self._details, self._sent = code, details, sent

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return [(status.METADATA_KEY, status.to_proto(self._sent).SerializeToString())] if self._sent else ()


@pytest.mark.parametrize("kind", errors.by_reason().values(), ids=lambda kind: kind.__name__)
def test_only_who_is_gone_or_goes_is_asked_again_and_everything_else_is_an_answer(kind: type[KeyholeError]) -> None:
    sent = _Status(grpc.StatusCode[kind.code], "said", kind("said"))
    assert is_cut_off(status.from_rpc_error(sent)) == (kind in AGAIN)
    assert status.was_sent(sent)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_of_what_grpc_says_itself_lost_and_ended_connections_are_sent_again(code: grpc.StatusCode) -> None:
    error = _Status(code, "said")
    assert is_cut_off(status.from_rpc_error(error)) == (code.name in {"UNAVAILABLE", "CANCELLED"})
    assert not status.was_sent(error)


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
@pytest.mark.parametrize(
    "details", ["Internal error from Core", "Stream removed", "Received RST_STREAM with error code 2"]
)
def test_a_broken_stream_is_a_lost_server_whatever_its_status(code: grpc.StatusCode, details: str) -> None:
    assert is_cut_off(status.from_rpc_error(_Status(code, details)))


@pytest.mark.parametrize(
    ("details", "passes"),
    [
        ("connections to all backends failing; connect: Connection refused", True),
        ("Socket closed", True),
        ("Ssl handshake failed", True),
        ("certificate has expired", False),
        ("Hostname Verification Check failed", False),
        ("WRONG_VERSION_NUMBER", False),
        ("CERTIFICATE_VERIFY_FAILED", False),
        ("Trying to connect an http1.x server", False),
        ("Cannot check peer: missing selected ALPN property.", False),
        ("Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got frame type 82)", False),
    ],
)
def test_only_what_a_moment_may_mend_is_waited_for(details: str, passes: bool) -> None:
    error = status.from_rpc_error(_Status(grpc.StatusCode.UNAVAILABLE, details))
    assert (is_cut_off(error), status.may_pass(error)) == (True, passes)


def test_who_asks_in_vain_is_told_which_port_is_meant() -> None:
    """Of a name with two addresses gRPC names the last one's cause, which may hide that the other speaks HTTP."""
    refused = _Status(grpc.StatusCode.UNAVAILABLE, "last error: ipv4:127.0.0.1:7402: Connection refused")
    assert "its port for gRPC, not for HTTP" in status.from_rpc_error(refused, "localhost:7402").message


def test_the_last_cause_is_told_with_the_number_of_attempts_by_an_object_of_its_own() -> None:
    lost = errors.ServerLost("server a:1 can't be reached", address="a:1")
    copy = error_for_caller(lost, 3, None)
    assert (type(copy), copy.message) == (errors.ServerLost, "server a:1 can't be reached; sent 3 times")
    assert copy.facts == {"address": "a:1", "attempts": "3"}
    assert lost.facts == {"address": "a:1"}
    assert error_for_caller(lost, 1, None).message.endswith("; sent once")
    assert error_for_caller(lost, 0, None).message == lost.message


def test_a_deadline_after_something_was_cut_off_tells_both_and_a_refusal_only_itself() -> None:
    lost = errors.ServerLost("server a:1 is gone")
    late = errors.DeadlineExceeded("b:1 did not answer")
    both = error_for_caller(late, 2, lost)
    assert both.message == "b:1 did not answer; sent 2 times, and cut off before because server a:1 is gone"
    assert both.facts == {"attempts": "2", "cause": "SERVER_LOST"}
    assert error_for_caller(late, 1, None) is late
    refused = errors.UnknownState("no state x")
    assert error_for_caller(refused, 2, lost) is refused
