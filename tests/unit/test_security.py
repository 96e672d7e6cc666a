"""Tokens, the audit log, files that change, keys from a URL: each by itself."""

from __future__ import annotations

import contextlib
import http.server
import json
import stat
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from keyhole.cli.main import main
from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration, PermissionDenied, Unauthenticated
from keyhole.rpc.authorization import AccessInterceptor
from keyhole.security import policy as policies
from keyhole.security import tokens
from keyhole.security.audit import Audit
from keyhole.security.authentication import Access, AccessSettings, Presented
from keyhole.security.reloading import Reloading
from keyhole.security.tokens import InvalidToken
from keyhole.security.web_tokens import WebTokens, keys_of
from tests.support.waiting import PATIENCE_SECONDS

POLICY = """
[[allow]]
who = ["jwt:alice"]
verbs = ["read"]
states = ["*/*"]
"""


def test_a_token_is_found_by_its_hash_and_the_file_never_holds_it(tmp_path: Path) -> None:
    token, entry = tokens.new("dashboard", datetime.now(UTC) + timedelta(days=1))
    other, more = tokens.new("other", None)
    path = tmp_path / "tokens.toml"
    path.write_text(entry + more)
    known = tokens.load(str(path))
    found = known.find(token)
    assert found is not None
    assert found.name == "dashboard"
    assert known.find(token + "x") is None
    assert known.find("") is None
    assert len({token, other}) == 2
    assert len(token) > 43
    assert token not in entry


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[tokens]]\nname='a'\nsha256='x'", r"entry 1 \(a\): sha256 is not 64"),
        ("[[tokens]]\nname='a b'\nsha256='" + "0" * 64 + "'", "its name can't be one"),
        (("[[tokens]]\nname='a'\nsha256='" + "0" * 64 + "'\n") * 2, "a is there twice"),
        ("[[tokens]]\nname='a'\nsha256='" + "0" * 64 + "'\nexpires=2027-01-01T00:00:00", "has no time zone"),
        ("[[tokens]]\nname='a'", "is not one"),
        ("token = 'secret-in-the-wrong-place'", "is not one"),
    ],
)
def test_a_wrong_file_of_tokens_is_refused_without_showing_what_it_holds(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfiguration, match=says) as caught:
        tokens.load(str(path))
    assert "secret-in" not in str(caught.value)


def test_the_command_writes_a_token_for_its_owner_only_and_prints_only_its_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    assert main(["token", "dashboard", "--to", str(path), "--days", "30"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "tokens.toml").write_text(printed)
    token = path.read_text().strip()
    found = tokens.load(str(tmp_path / "tokens.toml")).find(token)
    assert found is not None
    assert found.name == "dashboard"
    assert token not in printed
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert main(["token", "dashboard", "--to", str(path)]) == 1
    assert path.read_text().strip() == token


def test_refusals_are_all_counted_and_written_down_up_to_a_rate(caplog: pytest.LogCaptureFixture) -> None:
    now, written = 0.0, []
    audit = Audit(written.append, lambda: now)
    for _ in range(10_000):
        audit.refusal("UNAUTHENTICATED", peer="x" * 1000)
    assert audit.refused["UNAUTHENTICATED"] == len(written) == 10_000
    assert len(caplog.records) == 50
    now = 1.0
    audit.refusal("PERMISSION_DENIED", peer="a")
    assert caplog.records[-1].__dict__["unwritten"] == 9_950
    assert max(len(record.__dict__["peer"]) for record in caplog.records) == 100


def test_a_value_changes_with_its_file_and_not_for_one_that_went_wrong(tmp_path: Path) -> None:
    path = tmp_path / "number"

    def load() -> int:
        try:
            return int(path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidConfiguration("no number") from error

    with pytest.raises(InvalidConfiguration):
        Reloading("number", load, (str(path),))
    path.write_text("1")
    value = Reloading("number", load, (str(path),), every_seconds=0)
    assert value.versioned() == (1, 0)
    path.write_text("22")
    assert value.versioned() == (22, 1)
    path.write_text("x")
    assert value.versioned() == (22, 1)
    path.unlink()
    assert value.get() == 22
    path.write_text("333")
    assert value.versioned() == (333, 2)
    # As Kubernetes swaps a Secret: through a link to another directory.
    for version in ("a", "b"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "number").write_text(str(ord(version)))
    (tmp_path / "data").symlink_to("a")
    path.unlink()
    path.symlink_to("data/number")
    assert value.get() == ord("a")
    (tmp_path / "new").symlink_to("b")
    (tmp_path / "new").rename(tmp_path / "data")
    assert value.get() == ord("b")


@contextlib.contextmanager
def _issuer(answers: list[tuple[int, str]]) -> Iterator[str]:
    """Serves one answer after the other, the last one for ever; of status 0 without a head."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers.pop(0) if len(answers) > 1 else answers[0]
            if not status:
                self.wfile.write(text.encode())
                return
            self.send_response(status)
            if status == 302:
                self.send_header("Location", text)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/keys"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _keys(signer: ec.EllipticCurvePrivateKey, kid: str) -> str:
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(signer.public_key()))
    return json.dumps({"keys": [{**public, "kid": kid, "alg": "ES256"}]})


def _signed(signer: ec.EllipticCurvePrivateKey, kid: str) -> str:
    claims = {"sub": "alice", "iss": "i", "aud": "a", "exp": int(time.time()) + 60}
    return jwt.encode(claims, signer, "ES256", headers={"kid": kid})


def test_keys_come_from_a_url_and_newer_ones_are_fetched_when_a_token_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keyhole.security.web_tokens._RETRY_SECONDS", 0.05)
    old, new = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    with _issuer([(200, _keys(old, "old")), (200, _keys(new, "new"))]) as url:
        checker = WebTokens(keys_of(url), "i", "a")
        assert checker.check(_signed(old, "old"))[0] == "alice"
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                assert checker.check(_signed(new, "new"))[0] == "alice"
                break
            except InvalidToken:
                assert time.monotonic() < until
                time.sleep(0.02)
        checker.close()


def test_an_answer_that_is_none_does_not_end_the_fetching_of_keys(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("keyhole.security.web_tokens._RETRY_SECONDS", 0.05)
    signer = ec.generate_private_key(ec.SECP256R1())
    with _issuer([(0, "nonsense\r\n\r\n"), (200, _keys(signer, "k"))]) as url:
        checker = WebTokens(keys_of(url), "i", "a")
        until = time.monotonic() + PATIENCE_SECONDS
        while checker.version == 0:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert checker.check(_signed(signer, "k"))[0] == "alice"
        checker.close()
    assert [of.message for of in caplog.records if "can't be fetched" in of.message] != []


def test_a_token_is_not_taken_any_more_once_its_key_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reloading.__init__, "__defaults__", (0.0,))
    old, new = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    policy, keys = tmp_path / "policy.toml", tmp_path / "keys.json"
    policy.write_text(POLICY)
    keys.write_text(_keys(old, "old"))
    access = Access(AccessSettings(str(policy), jwks=str(keys), issuer="i", audience="a"))
    shown = Presented(f"Bearer {_signed(old, 'old')}")
    caller = access.caller(shown)
    assert caller.still_known()
    keys.write_text(_keys(new, "newer"))
    with pytest.raises(Unauthenticated):
        access.caller(shown)
    assert not caller.still_known()
    assert access.caller(Presented(f"Bearer {_signed(new, 'newer')}")).names == ("jwt:alice",)


def test_a_file_that_is_no_text_is_told_and_what_was_read_before_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    policy = Reloading("policy", lambda: policies.load(str(path)), (str(path),), every_seconds=0)
    path.write_bytes(b"# f\xc3")
    assert policy.versioned()[1] == 0
    assert "it is not UTF-8" in str(caplog.records[-1].__dict__["reason"])
    for load in (policies.load, tokens.load):
        with pytest.raises(InvalidConfiguration, match="it is not UTF-8"):
            load(str(path))


def test_keys_are_not_taken_from_wherever_a_url_points_to(caplog: pytest.LogCaptureFixture) -> None:
    signer = ec.generate_private_key(ec.SECP256R1())
    with _issuer([(200, _keys(signer, "k"))]) as elsewhere, _issuer([(302, elsewhere)]) as url:
        checker = WebTokens(keys_of(url), "i", "a")
        with pytest.raises(InvalidToken, match="InvalidKeyError"):
            checker.check(_signed(signer, "k"))
        checker.close()
    assert any("can't be fetched" in record.message for record in caplog.records)


def test_a_jobs_settings_name_files_and_hold_no_secret() -> None:
    config = JobConfig("app", ("a:1",), "k:1", tls="on", tls_key="/tls/key", token_file="/secrets/token")
    assert config.credentials.token_file == "/secrets/token"
    assert "/tls/key" in repr(config.credentials)


class _Call:
    """The context of one call."""

    def __init__(self, token: str) -> None:
        self._token = token

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),)

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def peer(self) -> str:
        return "somewhere"


@pytest.mark.parametrize(("verbs", "let_in"), [("read", False), ("admin", True), ("platform", True)])
async def test_a_method_that_nobody_has_thought_about_is_for_administrators_and_the_platform(
    tmp_path: Path, verbs: str, let_in: bool
) -> None:
    token, entry = tokens.new("a", None)
    states = "" if verbs == "platform" else 'states = ["*/*"]\n'
    (tmp_path / "policy.toml").write_text(f'[[allow]]\nwho = ["token:a"]\nverbs = ["{verbs}"]\n{states}')
    (tmp_path / "tokens.toml").write_text(entry)
    interceptor = AccessInterceptor(
        Access(AccessSettings(str(tmp_path / "policy.toml"), str(tmp_path / "tokens.toml")))
    )

    async def answer(request: object, context: object) -> str:
        return "answered"

    async def continuation(_: object) -> Any:
        return grpc.unary_unary_rpc_method_handler(answer)

    details = cast(grpc.HandlerCallDetails, SimpleNamespace(method="/keyhole.v1.Query/Later", invocation_metadata=()))
    handler: Any = await interceptor.intercept_service(continuation, details)
    with contextlib.nullcontext() if let_in else pytest.raises(PermissionDenied):
        assert await handler.unary_unary(None, _Call(token)) == "answered"


@pytest.mark.parametrize("shown", ["Bearer \udcf0\udcff", "Bearer \u00e9", "Bearer \x00", "Bearer", "\udcf0"])
def test_a_token_that_is_no_text_is_refused_like_any_that_is_not_known(tmp_path: Path, shown: str) -> None:
    (tmp_path / "policy.toml").write_text('[[allow]]\nwho = ["token:a"]\nverbs = ["read"]\nstates = ["*/*"]\n')
    (tmp_path / "tokens.toml").write_text(tokens.new("a", None)[1])
    access = Access(AccessSettings(str(tmp_path / "policy.toml"), str(tmp_path / "tokens.toml")))
    with pytest.raises(Unauthenticated):
        access.caller(Presented(shown, peer="somewhere"))


def test_a_token_that_has_expired_is_refused_also_where_it_was_known_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires = datetime.now(UTC) + timedelta(days=1)
    token, entry = tokens.new("a", expires)
    (tmp_path / "policy.toml").write_text('[[allow]]\nwho = ["token:a"]\nverbs = ["read"]\nstates = ["*/*"]\n')
    (tmp_path / "tokens.toml").write_text(entry)
    access = Access(AccessSettings(str(tmp_path / "policy.toml"), str(tmp_path / "tokens.toml")))
    caller = access.caller(Presented(f"Bearer {token}"))
    assert caller.names == ("token:a",)
    assert caller.still_known()
    # What is written of it has no fractions of a second.
    monkeypatch.setattr("keyhole.security.authentication.time.time", lambda: float(int(expires.timestamp())))
    assert not caller.still_known()
    with pytest.raises(Unauthenticated):
        access.caller(Presented(f"Bearer {token}"))
