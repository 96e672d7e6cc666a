"""TLS on real ports: what works, and what each thing that can be wrong is called, on both sides."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from keyhole import AsyncClient, Client, Credentials
from keyhole.clock import SystemClock
from keyhole.config import ClientProxyConfig, SecuritySettings
from keyhole.discovery import StaticDiscovery
from keyhole.errors import DeadlineExceeded, InvalidConfiguration, KeyholeError, ServerLost
from keyhole.rpc import health_check
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.server import RpcServer
from keyhole.rpc.status import from_rpc_error
from keyhole.security.certificates import TlsFiles
from keyhole.security.guard import PortGuard
from keyhole.testing.fake_server import FakeServer
from keyhole.v1 import query_pb2, query_pb2_grpc
from services.client_proxy.app import ClientProxy
from tests.support.certificates import DAY, Authority, tls_environ
from tests.support.refusals import longer_and_longer, raised_at_deadline
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually, until

LOOPBACK = ("127.0.0.1", "localhost")
_REFUSED_SECONDS = 2.0


class _Echo(query_pb2_grpc.QueryServicer):
    async def ListStates(self, request: Any, context: Any) -> query_pb2.ListStatesResponse:  # noqa: N802
        return query_pb2.ListStatesResponse()

    async def Lookup(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for request in request_iterator:
            yield query_pb2.LookupResponse(frame=request.frame)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings(files: TlsFiles, *, clients: bool = False, **more: Any) -> ClientProxyConfig:
    return ClientProxyConfig(
        servers=("a:1",),
        tls="on",
        tls_certificate=files.certificate,
        tls_key=files.key,
        tls_ca=files.authority if clients else "",
        **more,
    )


@asynccontextmanager
async def serving(security: SecuritySettings | None) -> AsyncIterator[str]:
    server = RpcServer("test", "127.0.0.1", 0, security)
    server.add(query_pb2_grpc.add_QueryServicer_to_server, _Echo(), "keyhole.v1.Query")
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop(0)


def brings(trusted: Authority, own: TlsFiles | None = None, name: str = "") -> Credentials:
    return Credentials(
        tls_ca=str(trusted.path),
        tls_certificate=own.certificate if own else "",
        tls_key=own.key if own else "",
        tls_server_name=name,
    )


async def asks(target: str, credentials: Credentials | None, timeout: float = PATIENCE_SECONDS) -> str:  # noqa: ASYNC109
    """Empty: it was answered. Else the message of the error, which must be ServerLost.

    Args:
        timeout: For as long a connection that is closed at once is tried again; longer on a machine that is so slow
            that none was closed by then.
    """
    of = {} if credentials is None else {"credentials": credentials}
    for seconds in longer_and_longer(timeout):
        async with AsyncClient(target, timeout=seconds, **of) as client:
            try:
                await client.list_states()
            except ServerLost as error:
                return error.message
            except DeadlineExceeded:
                continue
        return ""
    raise AssertionError("nobody has answered")


async def test_calls_go_over_tls_by_asyncio_and_by_threads(authority: Authority) -> None:
    async with serving(settings(authority.issue("server", *LOOPBACK))) as target:
        assert await asks(target, brings(authority)) == ""

        def from_a_thread() -> int:
            with Client(target, credentials=brings(authority), timeout=LONG_SECONDS) as client:
                client.list_states()
            with sync_channel(target, brings(authority)) as channel:
                stub = query_pb2_grpc.QueryStub(channel)
                answers = stub.Lookup(iter([query_pb2.LookupRequest(frame=7)]), timeout=PATIENCE_SECONDS)
                return next(iter(answers)).frame

        assert await asyncio.to_thread(from_a_thread) == 7


async def test_with_an_authority_only_clients_with_a_certificate_of_it_are_let_in(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    async with serving(settings(authority.issue("server", *LOOPBACK), clients=True)) as target:
        assert await asks(target, brings(authority, authority.issue("client"))) == ""
        late = brings(authority, authority.issue("late", lives=timedelta(seconds=4)))
        async with AsyncClient(target, timeout=PATIENCE_SECONDS, credentials=late) as client:
            await asyncio.sleep(4)
            says = r"a certificate \(tls_certificate\) of an authority"
            await raised_at_deadline(lambda seconds: client.list_states(timeout=seconds), 2.0, ServerLost, says)
        for refused in (brings(authority), brings(authority, other.issue("client2"))):
            message = await asks(target, refused, _REFUSED_SECONDS)
            assert "wants a certificate (tls_certificate) of an authority that it trusts" in message


async def test_client_certificates_can_be_left_to_other_ports(authority: Authority) -> None:
    files = authority.issue("server", *LOOPBACK)
    open_to_all = settings(files, clients=True, tls_client_certificates="off")
    async with serving(open_to_all) as target:
        assert await asks(target, brings(authority)) == ""


@pytest.mark.parametrize(
    ("names", "ends", "trusts_another", "says"),
    [
        (LOOPBACK, True, False, "showed a certificate that has expired; renew it there"),
        (
            ("elsewhere.example",),
            False,
            False,
            "showed a certificate for another name; connect to a name that is in it",
        ),
        (LOOPBACK, False, True, "of an authority that is not trusted here; name that authority's file in tls_ca"),
    ],
)
async def test_what_is_wrong_with_the_servers_certificate_is_told_to_the_client(
    authority: Authority, tmp_path: Path, names: tuple[str, ...], ends: bool, trusts_another: bool, says: str
) -> None:
    trusted = Authority(tmp_path, "other") if trusts_another else authority
    async with AsyncExitStack() as stack:
        for seconds in longer_and_longer(3.0):
            files = authority.issue("server", *names, lives=timedelta(seconds=seconds) if ends else DAY)
            with suppress(InvalidConfiguration):  # on a slow machine it has ended before the server began
                target = await stack.enter_async_context(serving(settings(files)))
                break
        await asyncio.sleep(seconds + 0.1 if ends else 0)
        message = await asks(target, brings(trusted))
        assert says in message
        assert target in message


async def test_a_server_that_is_found_by_its_address_is_known_by_the_name_that_is_asked_for(
    authority: Authority,
) -> None:
    async with serving(settings(authority.issue("server", "keyhole-state-server"))) as target:
        assert await asks(target, brings(authority, name="keyhole-state-server")) == ""
        assert "for another name" in await asks(target, brings(authority, name="another"))


async def test_tls_on_one_side_only_is_told_by_name(authority: Authority) -> None:
    async with serving(settings(authority.issue("server", *LOOPBACK))) as target:
        assert "it speaks TLS and this side doesn't" in await asks(target, None, _REFUSED_SECONDS)
    async with serving(None) as target:
        assert "does not speak TLS; turn TLS on there, or off here" in await asks(target, brings(authority))


async def test_a_server_and_a_client_begin_only_with_files_that_can_be_used(
    authority: Authority, tmp_path: Path
) -> None:
    good, other = authority.issue("good", *LOOPBACK), authority.issue("other")
    (tmp_path / "garbage").write_text("no PEM")
    garbage = str(tmp_path / "garbage")
    ended = authority.issue("ended", lives=timedelta(seconds=-5))
    early = authority.issue("early", begins=timedelta(hours=1))
    wrong = {
        "is not that of the certificate": TlsFiles(good.certificate, other.key, good.authority),
        r"key .*nowhere can't be read \(no such file": TlsFiles(good.certificate, str(tmp_path / "nowhere"), ""),
        "is not PEM, or is damaged": TlsFiles(garbage, good.key, good.authority),
        "expired at .*renew it": TlsFiles(ended.certificate, ended.key, good.authority),
        "is valid only from .*check this machine's clock": TlsFiles(early.certificate, early.key, good.authority),
        "garbage is not made of certificates in PEM": TlsFiles(good.certificate, good.key, garbage),
    }
    for says, files in wrong.items():
        with pytest.raises(InvalidConfiguration, match=says):
            RpcServer("test", "127.0.0.1", 0, settings(files, clients=bool(files.authority)))
        with pytest.raises(InvalidConfiguration, match=says):
            AsyncClient(
                "a:1",
                credentials=Credentials(tls_ca=files.authority, tls_certificate=files.certificate, tls_key=files.key),
            )


async def test_new_certificates_count_at_once_and_no_call_of_those_under_way_fails(
    authority: Authority, tmp_path: Path
) -> None:
    files, own = authority.issue("server", *LOOPBACK), authority.issue("client")
    async with serving(settings(files, clients=True)) as target:
        answered, failed, over = 0, [], asyncio.Event()

        async def read(client: AsyncClient) -> None:
            nonlocal answered
            while not over.is_set():
                try:
                    await client.list_states()
                    answered += 1
                except KeyholeError as error:
                    failed.append(error)

        async with AsyncClient(target, timeout=PATIENCE_SECONDS, credentials=brings(authority, own)) as client:
            reading = asyncio.create_task(read(client))
            for number in range(1, 5):
                await eventually(lambda number=number: answered > 6 * number, LONG_SECONDS)  # type: ignore[misc]
                if number < 4:
                    authority.issue("server", *LOOPBACK)
                    authority.issue("client")
                    await asyncio.to_thread(
                        until, lambda: _shown_by(target, own, authority) == _der(files), LONG_SECONDS
                    )
                    await asyncio.sleep(1.2)  # the client looks at its own each second, too
            over.set()
            await reading
        assert not failed


def _der(files: TlsFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(files.certificate).read_text())


def _shown_by(target: str, own: TlsFiles, authority: Authority) -> bytes:
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(own.certificate, own.key)
    host, _, port = target.rpartition(":")
    # Its certificate may be replaced just now.
    with (
        suppress(OSError),
        socket.create_connection((host, int(port))) as raw,
        context.wrap_socket(raw, server_hostname=host) as tls,
    ):
        return tls.getpeercert(binary_form=True) or b""
    return b""


def _break(files: TlsFiles) -> None:
    Path(files.key).write_text("half a k")


async def test_files_that_went_wrong_leave_the_last_good_ones_in_place_and_the_log_says_so(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.issue("server", *LOOPBACK)
    async with serving(settings(files)) as target:
        _break(files)
        logged: list[logging.LogRecord] = []
        async with asyncio.timeout(LONG_SECONDS):
            while not logged:
                assert await asks(target, brings(authority)) == ""
                logged = [record for record in caplog.records if "last good" in record.message]
        assert "server.key" in logged[0].__dict__["reason"]
        authority.issue("server", *LOOPBACK)
        await asyncio.sleep(1.1)
        assert await asks(target, brings(authority)) == ""


def _answered(stub: Any) -> bool:
    try:
        stub.ListStates(query_pb2.ListStatesRequest(), timeout=PATIENCE_SECONDS)
    except grpc.RpcError:
        return False
    return True


async def test_a_channel_of_threads_takes_new_certificates(authority: Authority) -> None:
    async with serving(settings(authority.issue("server", *LOOPBACK), clients=True)) as target:

        def brief_channel() -> tuple[grpc.Channel, float]:
            """Whose certificate ends after so many seconds."""
            for seconds in longer_and_longer(4.0):
                own = authority.issue("client", lives=timedelta(seconds=seconds))
                with suppress(InvalidConfiguration):  # on a slow machine it has ended by now
                    return sync_channel(target, brings(authority, own)), seconds
            raise AssertionError("it had ended before it was shown")

        def from_a_thread() -> None:
            made, lives = brief_channel()
            with made as channel:
                stub = query_pb2_grpc.QueryStub(channel)
                time.sleep(lives)
                with pytest.raises(grpc.RpcError) as caught:
                    stub.ListStates(query_pb2.ListStatesRequest(), timeout=PATIENCE_SECONDS)
                assert "certificate" in from_rpc_error(caught.value).message
                authority.issue("client")
                until(lambda: _answered(stub), LONG_SECONDS)

        await asyncio.to_thread(from_a_thread)


def test_plaintext_must_be_chosen_where_others_than_this_machine_can_connect() -> None:
    with pytest.raises(InvalidConfiguration, match=r"would listen on 0\.0\.0\.0 without TLS.*PROXY_PLAINTEXT=allow"):
        PortGuard("client-proxy", "0.0.0.0", ClientProxyConfig(servers=("a:1",)))
    PortGuard("client-proxy", "0.0.0.0", ClientProxyConfig(servers=("a:1",), plaintext="allow"))
    for host in ("127.0.0.1", "::1", "localhost", "[::1]", "127.8.8.8"):
        PortGuard("client-proxy", host, ClientProxyConfig(servers=("a:1",)))
    with pytest.raises(InvalidConfiguration, match=r"TLS_CA without .*TLS=on would do nothing"):
        PortGuard("client-proxy", "::1", ClientProxyConfig(servers=("a:1",), tls_ca="x"))
    with pytest.raises(InvalidConfiguration, match="TLS=on needs a certificate"):
        PortGuard("client-proxy", "::1", ClientProxyConfig(servers=("a:1",), tls="on"))


async def test_an_http_port_has_the_same_certificates_and_takes_new_ones_without_a_restart(
    authority: Authority,
) -> None:
    files, own = authority.issue("server", *LOOPBACK), authority.issue("client")
    context = PortGuard("test", "127.0.0.1", settings(files, clients=True)).http_context()
    server = await asyncio.start_server(_greet, "127.0.0.1", 0, ssl=context)
    target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    first = await asyncio.to_thread(_shown_by, target, own, authority)
    authority.issue("server", *LOOPBACK)
    await asyncio.to_thread(until, lambda: _shown_by(target, own, authority) != first)
    assert await asyncio.to_thread(_shown_by, target, own, authority) == _der(files)
    anonymous = ssl.create_default_context(cafile=str(authority.path))
    assert not await _greeting(target, anonymous)
    anonymous.load_cert_chain(own.certificate, own.key)
    assert await _greeting(target, anonymous) == b"hello"
    server.close()
    await server.wait_closed()


async def _greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


async def _greeting(target: str, context: ssl.SSLContext) -> bytes:
    """Empty: the connection was refused."""
    try:
        reader, writer = await asyncio.open_connection(*target.split(":"), ssl=context)
        greeting = await reader.read()
    except (ssl.SSLError, ConnectionError):
        return b""
    writer.close()
    return greeting


async def test_a_proxy_and_its_servers_speak_mutual_tls_with_one_certificate_each(authority: Authority) -> None:
    server = FakeServer(security=settings(authority.issue("server", *LOOPBACK), clients=True))
    await server.start()
    of_proxy = settings(authority.issue("proxy", *LOOPBACK), clients=True, port=0)
    proxy = ClientProxy(of_proxy, StaticDiscovery([server.address]), SystemClock())
    await proxy.start()
    async with AsyncClient(
        proxy.address, credentials=brings(authority, authority.issue("reader")), timeout=LONG_SECONDS
    ) as client:
        (status,) = await client.status()
        assert not status.unreachable
    await proxy.stop(0)
    await server.stop()


async def test_the_health_command_asks_over_tls_as_the_process_itself_is_configured(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    files = authority.issue("server", "keyhole-client-proxy")
    config = settings(files, clients=True, port=0)
    server = RpcServer("test", "127.0.0.1", 0, config)
    await server.start()
    await server.set_serving(True)
    environ = {
        "KEYHOLE_CLIENT_PROXY_SERVERS": "a:1",
        "KEYHOLE_CLIENT_PROXY_PORT": str(server.port),
        **tls_environ("KEYHOLE_CLIENT_PROXY_", files),
    }
    assert await asyncio.to_thread(health_check.main, ["client-proxy"], environ) == 0
    del environ["KEYHOLE_CLIENT_PROXY_TLS_CA"]
    assert await asyncio.to_thread(health_check.main, ["client-proxy"], environ) == 1
    assert "no answer" in capsys.readouterr().err
    await server.stop(0)
