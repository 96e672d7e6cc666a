"""Finding servers by Kubernetes pods: the official client against a small real server, whose failures are scripted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from keyhole.discovery import FollowedServers
from keyhole.discovery.parse import Pods
from keyhole.errors import InvalidConfiguration
from tests.support.kubernetes_api import NAMESPACE, PORT, KubernetesApi, found_by, kubernetes_api, status_body
from tests.support.waiting import PATIENCE_SECONDS, until

FORBIDDEN = (
    'pods is forbidden: User "system:serviceaccount:data:proxy" cannot list resource "pods" in API group "" in the '
    'namespace "data"'
)


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    with kubernetes_api() as made:
        yield made


@pytest.fixture
def servers(api: KubernetesApi) -> Iterator[FollowedServers]:
    with found_by(api) as found:
        yield found


def shows(servers: FollowedServers, *hosts: str) -> None:
    """They become exactly these."""
    until(lambda: servers.known() == {f"{host}:{PORT}" for host in hosts})


def watched(api: KubernetesApi) -> None:
    until(lambda: api.watching > 0)


def test_pods_with_an_address_are_servers_as_they_come_and_go(api: KubernetesApi, servers: FollowedServers) -> None:
    api.put("exec-1", "10.0.0.1")
    shows(servers, "10.0.0.1")
    api.put("exec-2", None, "Pending")
    api.put("exec-3", "10.0.0.3")
    shows(servers, "10.0.0.1", "10.0.0.3")
    api.put("exec-2", "fd00::2")
    shows(servers, "10.0.0.1", "[fd00::2]", "10.0.0.3")
    api.delete("exec-1")
    shows(servers, "[fd00::2]", "10.0.0.3")
    assert [verb for verb, _ in api.asked] == ["list", "watch"]


def test_a_pod_whose_sidecar_runs_before_its_executor_is_a_server_already(
    api: KubernetesApi, servers: FollowedServers
) -> None:
    api.put("exec-1", "10.0.0.1", "Pending")
    shows(servers, "10.0.0.1")


def test_a_pod_that_is_being_deleted_stays_until_it_is_gone(api: KubernetesApi, servers: FollowedServers) -> None:
    api.put("exec-1", "10.0.0.1")
    shows(servers, "10.0.0.1")
    api.put("exec-1", "10.0.0.1", deleting=True)
    api.put("exec-2", "10.0.0.2")
    shows(servers, "10.0.0.1", "10.0.0.2")
    api.delete("exec-1")
    shows(servers, "10.0.0.2")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_no_server(api: KubernetesApi, servers: FollowedServers, phase: str) -> None:
    api.put("exec-1", "10.0.0.1")
    shows(servers, "10.0.0.1")
    api.put("exec-1", "10.0.0.1", phase)
    shows(servers)


def test_namespace_and_selector_are_those_of_the_setting_else_the_own_namespace_and_the_default(
    api: KubernetesApi,
) -> None:
    with found_by(api, Pods(PORT, "other", "app=x")) as servers:
        servers.wait(PATIENCE_SECONDS)
    with found_by(api) as servers:
        servers.wait(PATIENCE_SECONDS)
    asked = [(query["path"], query["labelSelector"]) for verb, query in api.asked if verb == "list"]
    assert asked == [
        ("/api/v1/namespaces/other/pods", "app=x"),
        (f"/api/v1/namespaces/{NAMESPACE}/pods", "keyhole.dev/state-server=true"),
    ]


def test_a_list_of_several_pages_is_one_list(api: KubernetesApi, servers: FollowedServers) -> None:
    api.page = 2
    for number in range(5):
        api.put(f"exec-{number}", f"10.0.0.{number}")
    shows(servers, *(f"10.0.0.{number}" for number in range(5)))


def test_a_watch_that_breaks_off_is_resumed_where_it_was(api: KubernetesApi, servers: FollowedServers) -> None:
    api.put("exec-1", "10.0.0.1")
    shows(servers, "10.0.0.1")
    watched(api)
    api.drop()
    api.put("exec-2", "10.0.0.2")
    shows(servers, "10.0.0.1", "10.0.0.2")
    assert [verb for verb, _ in api.asked].count("list") == 1


def test_a_bookmark_moves_the_version_from_which_a_watch_is_resumed(
    api: KubernetesApi, servers: FollowedServers
) -> None:
    api.put("exec-1", "10.0.0.1")
    shows(servers, "10.0.0.1")
    watched(api)
    api.bookmark()
    bookmarked = api.version
    api.put("exec-2", "10.0.0.2")
    shows(servers, "10.0.0.1", "10.0.0.2")
    api.forget()
    api.drop()
    api.bookmark()
    until(lambda: api.watching > 0 and int(api.asked[-1][1].get("resourceVersion", 0)) > bookmarked)
    assert [verb for verb, _ in api.asked].count("list") == 1


def test_a_version_that_is_gone_is_answered_by_a_new_list(api: KubernetesApi, servers: FollowedServers) -> None:
    api.put("exec-1", "10.0.0.1")
    api.put("exec-2", "10.0.0.2")
    shows(servers, "10.0.0.1", "10.0.0.2")
    watched(api)
    api.fail("watch", 410, "too old resource version")
    api.drop()
    api.delete("exec-1")
    api.forget()
    shows(servers, "10.0.0.2")


def test_an_error_event_in_the_middle_of_a_watch_begins_anew(api: KubernetesApi, servers: FollowedServers) -> None:
    api.put("exec-1", "10.0.0.1")
    shows(servers, "10.0.0.1")
    watched(api)
    api.say(b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}')
    until(lambda: [verb for verb, _ in api.asked].count("list") == 2)
    api.put("exec-2", "10.0.0.2")
    shows(servers, "10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"{}",
        b'{"type":"MODIFIED"}',
        b'{"type":"MODIFIED","object":{}}',
        b'{"type":"MODIFIED","object":{"metadata":{"name":"exec-1"}}}',
        b'{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"7"}}}',
        b'{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"7","name":"x"},"status":{"podIP":7}}}',
        b'{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"7","name":"x"},"status":[1]}}',
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":""}}}',
        b'{"type":"MOVED","object":{"metadata":{"resourceVersion":"7","name":"x"}}}',
        b'{"type":"ERROR","object":{}}',
    ],
)
def test_a_malformed_event_is_answered_by_a_new_list_and_changes_nothing(
    api: KubernetesApi, servers: FollowedServers, line: bytes
) -> None:
    api.put("exec-1", "10.0.0.1")
    shows(servers, "10.0.0.1")
    watched(api)
    api.say(line)
    until(lambda: [verb for verb, _ in api.asked].count("list") == 2)
    shows(servers, "10.0.0.1")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"items":7}', b'{"items":[]}', b'{"items":[{}]}'])
def test_a_malformed_list_is_asked_for_again(api: KubernetesApi, servers: FollowedServers, body: bytes) -> None:
    api.put("exec-1", "10.0.0.1")
    api.failures.append(("list", 200, body))
    shows(servers, "10.0.0.1")


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_an_api_server_that_fails_is_asked_again(
    api: KubernetesApi, servers: FollowedServers, verb: str, status: int
) -> None:
    api.put("exec-1", "10.0.0.1")
    for _ in range(3):
        api.fail(verb, status)
    shows(servers, "10.0.0.1")
    watched(api)
    api.put("exec-2", "10.0.0.2")
    shows(servers, "10.0.0.1", "10.0.0.2")


def test_while_the_api_server_is_away_the_last_known_servers_stay_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture, api: KubernetesApi, servers: FollowedServers
) -> None:
    caplog.set_level(logging.INFO, "keyhole")
    api.put("exec-1", "10.0.0.1")
    shows(servers, "10.0.0.1")
    watched(api)
    api.failing = {verb: (503, status_body(503, "away")) for verb in ("list", "watch")}
    before = len(api.asked)
    api.drop()
    until(lambda: len(api.asked) > before + 5)
    assert servers.known() == {f"10.0.0.1:{PORT}"}
    api.failing = {}
    watched(api)
    api.put("exec-2", "10.0.0.2")
    shows(servers, "10.0.0.1", "10.0.0.2")
    said = [record.message for record in caplog.records if "servers changed" not in record.message]
    assert said == [
        "the Kubernetes API can't be asked for pods; the last known servers stay",
        "the Kubernetes API answers again",
    ]


def test_an_api_server_that_is_not_there_yet_is_waited_for(api: KubernetesApi) -> None:
    api.put("exec-1", "10.0.0.1")
    with kubernetes_api() as other:
        pass  # its port is nobody's now
    with found_by(other) as servers:
        assert servers.wait(0.1) == frozenset()


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_no_rights_at_the_start_is_an_error_that_says_who_lacks_which(api: KubernetesApi, verb: str) -> None:
    api.failing = {verb: (403, status_body(403, FORBIDDEN.replace("list", verb)))}
    with found_by(api) as servers, pytest.raises(InvalidConfiguration) as caught:
        servers.wait(PATIENCE_SECONDS)
    assert f"service account 'proxy' of namespace 'data' may not {verb} the resource pods in namespace 'data'" in str(
        caught.value
    )
    assert "a Role with the verbs list and watch on pods" in caught.value.message
    assert caught.value.facts == {
        "user": "system:serviceaccount:data:proxy",
        "verb": verb,
        "resource": "pods",
        "namespace": "data",
    }


@pytest.mark.parametrize(
    ("status", "says"), [(400, "the selector 'keyhole.dev/state-server=true'"), (401, "does not accept who")]
)
def test_what_else_is_refused_at_the_start_says_what_to_look_at(api: KubernetesApi, status: int, says: str) -> None:
    api.failing = {"list": (status, b"no JSON")}
    with found_by(api) as servers, pytest.raises(InvalidConfiguration, match=says):
        servers.wait(PATIENCE_SECONDS)


def test_rights_that_are_taken_away_later_are_asked_for_until_they_are_back(
    api: KubernetesApi, servers: FollowedServers
) -> None:
    api.put("exec-1", "10.0.0.1")
    shows(servers, "10.0.0.1")
    watched(api)
    api.failing = {verb: (403, status_body(403, FORBIDDEN)) for verb in ("list", "watch")}
    before = len(api.asked)
    api.drop()
    until(lambda: len(api.asked) > before + 3)
    shows(servers, "10.0.0.1")
    api.put("exec-2", "10.0.0.2")
    api.failing = {}
    shows(servers, "10.0.0.1", "10.0.0.2")


async def test_asyncio_hears_of_every_change(api: KubernetesApi, servers: FollowedServers) -> None:
    api.put("exec-1", "10.0.0.1")
    addresses = servers.addresses()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await anext(addresses) == {f"10.0.0.1:{PORT}"}
        api.put("exec-2", "10.0.0.2")
        assert await anext(addresses) == {f"10.0.0.1:{PORT}", f"10.0.0.2:{PORT}"}
    await addresses.aclose()  # type: ignore[attr-defined]


def test_closing_ends_the_watch_at_once(api: KubernetesApi) -> None:
    with found_by(api) as servers:
        servers.wait(PATIENCE_SECONDS)
        watched(api)
        (thread,) = servers._threads
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
