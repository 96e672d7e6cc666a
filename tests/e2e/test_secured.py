"""A release whose every port speaks TLS, with a policy, tokens, and certificates that are replaced while it runs.

Components have certificates of their own, so that the policy tells them apart; readers have a token.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from keyhole import Credentials
from keyhole.security import tokens
from tests.e2e.conftest import installed
from tests.e2e.kube import Namespace, await_
from tests.e2e.release import APPLICATION, PATIENCE, RELEASE, Platform
from tests.e2e.steps import disturbed, replaced
from tests.support.certificates import Authority

pytestmark = pytest.mark.timeout(1800)

_READER = "reader-secrets"
_POLICY = f"""
[[allow]]
who = ["token:reader"]
verbs = ["read"]
states = ["{APPLICATION}/*"]

[[allow]]
who = ["certificate:job"]
verbs = ["write"]
states = ["{APPLICATION}/*"]

[[allow]]
who = ["token:job"]
verbs = ["read", "scan"]
states = ["{APPLICATION}/*"]

[[allow]]
who = ["certificate:proxy", "certificate:all"]
verbs = ["platform"]
"""


class Issuer:
    """Makes the Secrets of a namespace, and makes them anew."""

    def __init__(self) -> None:
        self._authority = Authority(Path(tempfile.mkdtemp(prefix="keyhole-e2e-tls-")))
        made = {name: tokens.new(name, None) for name in ("reader", "job")}
        self._tokens = {name: token for name, (token, _) in made.items()}
        self._entries = "\n".join(entry for _, entry in made.values())

    def prepare(self, space: Namespace) -> None:
        """All that the values name."""
        self.renew(space)
        ca = self._authority.path.read_text()
        space.apply(
            _secret(
                _READER, {"ca.crt": ca, "token": self._tokens["reader"], "other-token": tokens.new("other", None)[0]}
            ),
            _secret("job-token", {"token": self._tokens["job"]}),
            _secret("tokens", {"tokens.toml": self._entries}),
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "policy"}, "data": {"policy.toml": _POLICY}},
        )

    def renew(self, space: Namespace) -> None:
        """A new certificate for each component, which is also one for the proxies' Service."""
        host = f"{RELEASE}-client-proxy.{space.name}.svc"
        for name in ("all", "server", "proxy", "job"):
            made = self._authority.issue(name, name, host, f"{host}.cluster.local")
            files = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": made.authority}
            space.apply(_secret(name, {file: Path(path).read_text() for file, path in files.items()}))


def _secret(name: str, texts: Mapping[str, str]) -> dict[str, object]:
    data = {file: base64.b64encode(text.encode()).decode() for file, text in texts.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def secured(tag: str, issuer: Issuer) -> Iterator[Platform]:
    settings = {
        "security.tls.enabled": "true",
        "security.tls.secretName": "all",
        "security.tls.secrets.stateServer": "server",
        "security.tls.secrets.clientProxy": "proxy",
        "security.tls.readersNeedCertificates": "false",
        "security.access.policyConfigMap": "policy",
        "security.access.tokensSecret": "tokens",
        "jobs[0].tlsSecretName": "job",
        "jobs[0].tokenSecretName": "job-token",
        "test.tokenSecretName": "job-token",
    }
    with installed(tag, "secured", settings, issuer.prepare, _READER) as made:
        await_(lambda: len(made.space.ready("spark-executor")) == 2, PATIENCE, "two executors")
        await_(lambda: len(made.space.ready("replica")) == 1, PATIENCE, "the replica")
        yield made


def asked(platform: Platform, program: str) -> str:
    """What a program prints in a pod that has the authority's certificate and the tokens."""
    return platform.in_tools("python", "-c", program, platform.proxy, APPLICATION).strip()


def with_token(name: str) -> Credentials:
    """As it is written in a program; no name: no token."""
    return Credentials(tls_ca="/secrets/ca.crt", token_file=name and f"/secrets/{name}")


def test_a_reader_with_a_token_is_answered_and_what_it_is_told_is_right(secured: Platform) -> None:
    secured.await_epochs()
    gaps = secured.gaps(0)
    assert gaps.wrong == ()
    assert asked(secured, _GRPC.format(how=with_token("token"))) == "True"


@pytest.mark.parametrize(("token", "reason"), [("other-token", "UNAUTHENTICATED"), ("", "UNAUTHENTICATED")])
def test_who_has_no_token_or_another_one_is_refused(secured: Platform, token: str, reason: str) -> None:
    assert asked(secured, _GRPC.format(how=with_token(token))) == reason


def test_who_speaks_plaintext_is_not_answered(secured: Platform) -> None:
    assert asked(secured, _GRPC.format(how=Credentials(tls=False))) == "SERVER_LOST"


def test_reads_over_http_want_tls_and_the_token_too(secured: Platform) -> None:
    assert asked(secured, _HTTP.format(token="token")) == "200"
    assert asked(secured, _HTTP.format(token="other-token")) == "401"


def test_helms_own_test_is_let_in_by_its_token(secured: Platform) -> None:
    assert "Succeeded" in secured.helm_test()


def test_an_executor_pod_is_deleted(secured: Platform) -> None:
    disturbed(secured, "executor pod deleted, TLS and a policy", *replaced(secured, "spark-executor", 2))


def test_new_certificates_count_without_a_restart(secured: Platform, issuer: Issuer) -> None:
    pods = secured.space.ready("client-proxy"), secured.space.ready("spark-driver")
    before = asked(secured, _SERIAL)

    disturbed(
        secured, "certificates renewed", lambda: issuer.renew(secured.space), lambda: asked(secured, _SERIAL) != before
    )
    assert pods == (secured.space.ready("client-proxy"), secured.space.ready("spark-driver"))


_GRPC = """
import sys
from keyhole import Client, Credentials
from keyhole.errors import KeyholeError
with Client(sys.argv[1], credentials={how}) as client:
    try:
        print(client.get(sys.argv[2], "sensors", "seattle").found)
    except KeyholeError as error:
        print(error.reason)
"""
_HTTP = """
import ssl, sys, urllib.error, urllib.request
context = ssl.create_default_context(cafile="/secrets/ca.crt")
url = "https://" + sys.argv[1].replace(":7400", ":7402") + "/v1/" + sys.argv[2] + "/sensors/seattle"
request = urllib.request.Request(url, headers={{"Authorization": "Bearer " + open("/secrets/{token}").read()}})
try:
    print(urllib.request.urlopen(request, timeout=30, context=context).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
_SERIAL = """
import ssl, sys
from cryptography import x509
host, port = sys.argv[1].rsplit(":", 1)
print(x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port))).encode()).serial_number)
"""
