"""Keys, tokens and passwords stand in files, and nowhere else: not in logs, figures, answers, plans or process lists.

All processes of a job, over TLS, with tokens, and a Kafka that wants a password. They log all that they can.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from jobs.golden_signals.config import GoldenSignalsConfig
from jobs.golden_signals.description import JOB as GOLDEN_SIGNALS
from keyhole import Client, Credentials
from keyhole.config import JobConfig, load
from keyhole.errors import KeyholeError, Unauthenticated
from keyhole.local.java import Java
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import spawn_client_proxy, spawn_metrics_exporter, spawn_state_server
from keyhole.security.certificates import TlsFiles
from tests.support.certificates import Authority, tls_environ
from tests.support.embedded import KEYHOLE, ran
from tests.support.secured_kafka import secured_kafka
from tests.support.tokens import make_tokens
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, until

_PATIENCE = 600.0
_POLICY = """
[[allow]]
who = ["token:job"]
verbs = ["read", "write", "scan"]
states = ["golden-signals/*"]

[[allow]]
who = ["token:proxy", "token:operator"]
verbs = ["platform"]

[[allow]]
who = ["token:operator"]
verbs = ["read", "scan", "admin"]
states = ["*/*"]
"""


@dataclass(frozen=True)
class Platform:
    """What runs, and what nobody may see: by what it is."""

    directory: Path
    proxy: str
    metrics: Mapping[str, str]
    children: Mapping[str, Child]
    environ: Mapping[str, str]
    credentials: Credentials
    secrets: Mapping[str, str]

    def seen_in(self, text: str) -> list[str]:
        """Which secrets stand in a text."""
        return [name for name, secret in self.secrets.items() if secret in text]

    def cli(self, *arguments: str) -> str:
        """What `keyhole` prints, wherever."""
        done = ran([*KEYHOLE, *arguments, "--timeout", str(LONG_SECONDS)], self.environ, _PATIENCE)
        return done.stdout + done.stderr


def _security(prefix: str, files: TlsFiles, directory: Path, token: str) -> dict[str, str]:
    return {
        **tls_environ(prefix, files),
        f"{prefix}TLS_CLIENT_CERTIFICATES": "off",
        f"{prefix}POLICY": str(directory / "policy.toml"),
        f"{prefix}TOKENS": str(directory / "tokens.toml"),
        f"{prefix}TOKEN_FILE": str(directory / f"{token}.token"),
    }


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, jars: list[Path], spark_jars: list[Path], java: Java
) -> Iterator[Platform]:
    directory = tmp_path_factory.mktemp("platform")
    password = f"pw-{uuid.uuid4().hex}"
    secrets = {"Kafka's password": password}
    authority = Authority(directory)
    files = authority.issue("all", "127.0.0.1")
    secrets["key"] = Path(files.key).read_text().splitlines()[1]
    (directory / "tokens.toml").write_text(make_tokens(directory, "job", "proxy", "operator"))
    make_tokens(directory, "unknown")  # to the servers
    for name in ("job", "proxy", "operator", "unknown"):
        secrets[f"token of {name}"] = (directory / f"{name}.token").read_text().strip()
    (directory / "policy.toml").write_text(_POLICY)

    server, proxy, exporter, stats, *pages = free_ports(7)
    local = {name: f"127.0.0.1:{port}" for name, port in zip(("server", "proxy", "job"), pages, strict=True)}
    credentials = Credentials(tls_ca=files.authority, token_file=str(directory / "operator.token"))
    environ = dict(os.environ) | _security("KEYHOLE_JOB_", files, directory, "job")
    for prefix in ("KEYHOLE_STATE_SERVER_", "KEYHOLE_CLIENT_PROXY_", "KEYHOLE_METRICS_EXPORTER_"):
        environ |= _security(prefix, files, directory, "proxy") | {f"{prefix}LOG_LEVEL": "DEBUG"}
    environ |= {
        "KEYHOLE_CLI_TLS": "on",
        "KEYHOLE_CLI_TLS_CA": files.authority,
        "KEYHOLE_CLI_TOKEN_FILE": credentials.token_file,
        "KEYHOLE_STATE_SERVER_METRICS": local["server"],
        "KEYHOLE_CLIENT_PROXY_METRICS": local["proxy"],
        "KEYHOLE_JOB_METRICS": local["job"],
        "KEYHOLE_JOB_STATS": f"127.0.0.1:{stats}",
        "JAVA_HOME": str(java.home),
    }
    with ExitStack() as stack:
        kafka = stack.enter_context(secured_kafka(directory / "kafka", jars, java, password)).address
        spec = GOLDEN_SIGNALS.spec(directory, directory / "checkpoint", ",".join(map(str, spark_jars)), {})
        to_job = {"KEYHOLE_JOB_SERVERS": f"127.0.0.1:{server}", "KEYHOLE_JOB_BOOTSTRAP_SERVERS": kafka}
        debug = {f"{GOLDEN_SIGNALS.prefix}LOG_LEVEL": "DEBUG", f"{spec.source_prefix}LOG_LEVEL": "DEBUG"}
        environ |= {**spec.job_environ, **spec.source_environ, **to_job, **debug}
        environ[f"{spec.source_prefix}BOOTSTRAP_SERVERS"] = kafka

        def started(child: Child) -> Child:
            stack.callback(child.kill)
            return child

        def module(name: str, of: str) -> Child:
            return started(Child(name, [sys.executable, "-m", of], directory / f"{name}.log", environ))

        children = {
            "server": started(
                spawn_state_server("server", server, bootstrap_servers=kafka, directory=directory, environ=environ)
            ),
            "proxy": started(
                spawn_client_proxy(
                    "proxy", proxy, servers=[f"127.0.0.1:{server}"], directory=directory, environ=environ
                )
            ),
            "exporter": started(
                spawn_metrics_exporter(
                    "exporter",
                    exporter,
                    servers=[f"127.0.0.1:{server}"],
                    proxies=[f"127.0.0.1:{proxy}"],
                    coordinators=[f"127.0.0.1:{stats}"],
                    bootstrap_servers=kafka,
                    directory=directory,
                    environ=environ,
                )
            ),
            "source": module("source", spec.source),
            "job": module("job", spec.job),
        }
        pages_of = {**local, "exporter": f"127.0.0.1:{exporter}"}
        platform = Platform(directory, f"127.0.0.1:{proxy}", pages_of, children, environ, credentials, secrets)
        _await_epochs(platform)
        # There is nothing more to commit: what comes is read, and takes processors, all the time.
        os.kill(children["source"].pid, signal.SIGSTOP)
        yield platform


def _await_epochs(platform: Platform) -> None:
    """Until the job has committed some, so that all that starts has started."""
    latest = time.monotonic() + _PATIENCE
    application, (state, key) = GOLDEN_SIGNALS.application, GOLDEN_SIGNALS.probe
    with Client(platform.proxy, timeout=PATIENCE_SECONDS, credentials=platform.credentials) as client:
        while True:
            try:
                if client.get(application, state, key).source.epoch > 2:
                    return
            except KeyholeError as error:
                why = error.message
            else:
                why = "no third epoch"
            ended = [child.output()[-2000:] for child in platform.children.values() if child.exit_code is not None]
            assert not ended, ended
            assert time.monotonic() < latest, why
            time.sleep(0.5)


def test_who_is_refused_finds_no_token_in_the_log(platform: Platform) -> None:
    unknown = Credentials(
        tls_ca=platform.credentials.tls_ca, token_file=platform.credentials.token_file.replace("operator", "unknown")
    )
    with (
        Client(platform.proxy, timeout=LONG_SECONDS, credentials=unknown) as client,
        pytest.raises(Unauthenticated) as caught,
    ):
        client.get("golden-signals", "golden_signals", GOLDEN_SIGNALS.probe[1])
    assert platform.seen_in(str(caught.value) + repr(caught.value)) == []
    proxy = platform.children["proxy"]
    until(lambda: "refused" in proxy.output(), LONG_SECONDS, 0.1, proxy.output)
    assert platform.seen_in(proxy.output()) == []


def test_no_log_has_a_secret(platform: Platform) -> None:
    for name, child in platform.children.items():
        output = child.output()
        assert output, name
        assert platform.seen_in(output) == [], name


def test_no_command_line_and_no_environment_has_a_secret(platform: Platform) -> None:
    for name, child in platform.children.items():
        process = psutil.Process(child.pid)
        assert platform.seen_in(_seen_of(process)) == [], name
        for one in process.children(recursive=True):
            # Spark's workers come and go.
            with contextlib.suppress(psutil.NoSuchProcess):
                assert platform.seen_in(_seen_of(one)) == [], (name, one.pid)


def _seen_of(process: psutil.Process) -> str:
    return " ".join(process.cmdline()) + json.dumps(process.environ())


def test_no_page_of_figures_has_a_secret(platform: Platform) -> None:
    context = ssl.create_default_context(cafile=platform.credentials.tls_ca)
    for name, address in platform.metrics.items():
        request = urllib.request.Request(
            f"https://{address}/metrics", headers={"Authorization": f"Bearer {platform.secrets['token of operator']}"}
        )
        with urllib.request.urlopen(request, timeout=LONG_SECONDS, context=context) as answer:
            page = answer.read().decode()
        assert "keyhole_" in page, name
        assert platform.seen_in(page) == [], name


@pytest.mark.parametrize(
    "command", [("status",), ("states",), ("describe", "golden-signals/golden_signals")], ids=lambda command: command[0]
)
def test_what_a_person_is_shown_has_no_secret(platform: Platform, command: tuple[str, ...]) -> None:
    printed = platform.cli(*command, "--proxy", platform.proxy)
    assert "golden" in printed
    assert platform.seen_in(printed) == []


def test_what_spark_writes_beside_the_job_has_no_secret(platform: Platform) -> None:
    """The checkpoint above all, which is kept elsewhere, and read by others."""
    found: dict[Path, str] = {}

    def read_all() -> bool:
        """Not where Spark has renamed one of them meanwhile, as it does with what it has written."""
        files = [path for path in (platform.directory / "checkpoint").rglob("*") if path.is_file()]
        with contextlib.suppress(FileNotFoundError):
            found.update({path: path.read_bytes().decode("utf-8", "replace") for path in files})
            return bool(files)
        return False

    until(read_all, LONG_SECONDS, 0.1)
    for path, content in found.items():
        assert platform.seen_in(content) == [], path


@pytest.mark.parametrize("kind", [JobConfig, GoldenSignalsConfig])
def test_a_configuration_shows_none(platform: Platform, kind: type[JobConfig | GoldenSignalsConfig]) -> None:
    assert platform.seen_in(repr(load(kind, platform.environ))) == []
    assert platform.seen_in(repr(platform.credentials)) == []
