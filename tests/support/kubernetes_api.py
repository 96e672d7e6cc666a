"""A small server that speaks the part of the Kubernetes API that finds pods: list, watch, bookmarks, and its failures.

Real HTTP on a real port, so that the official client talks to it. Its failures are scripted by the test.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from keyhole.addresses import joined
from keyhole.backoff import Backoff
from keyhole.discovery.following import FollowedServers
from keyhole.discovery.kubernetes.api import Api, PodSource
from keyhole.discovery.parse import Pods

NAMESPACE = "data"
PORT = 7410


class KubernetesApi:
    """The pods of one namespace, and everybody who watches them. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.oldest = 0
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.generation = 0
        self.failures: deque[tuple[str, int, bytes]] = deque()
        self.failing: dict[str, tuple[int, bytes]] = {}
        self.raw: deque[bytes] = deque()
        self.page: int | None = None
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.watching = 0
        self.closed = False
        api = self

        class Handler(_Handler):
            of = api

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def connect(self) -> Api:
        """What PodSource takes."""
        settings = client.Configuration(host=f"http://127.0.0.1:{self.port}")
        settings.retries = False
        return Api(client.ApiClient(settings), NAMESPACE)

    def put(
        self, name: str, host: str | None, phase: str = "Running", *, deleting: bool = False, **labels: str
    ) -> None:
        """A pod is added or changed."""
        with self.changed:
            self.version += 1
            metadata = {"name": name, "namespace": NAMESPACE, "resourceVersion": str(self.version)}
            if deleting:
                metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            status = {"phase": phase} | ({"podIP": host} if host else {})
            pod = {"kind": "Pod", "metadata": metadata, "status": status}
            self.events.append((self.version, "MODIFIED" if name in self.pods else "ADDED", pod))
            self.pods[name] = pod
            self.changed.notify_all()

    def tell(self, name: str, **more: Any) -> None:
        """A pod is there, and says this of itself (spec, status) beside its name."""
        with self.changed:
            self.version += 1
            metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": str(self.version)}
            pod = {"kind": "Pod", "metadata": metadata, **more}
            self.events.append((self.version, "MODIFIED" if name in self.pods else "ADDED", pod))
            self.pods[name] = pod
            self.changed.notify_all()

    def delete(self, name: str) -> None:
        """A pod is gone."""
        with self.changed:
            if name in self.pods:
                self.version += 1
                pod = json.loads(json.dumps(self.pods.pop(name)))
                pod["metadata"]["resourceVersion"] = str(self.version)
                self.events.append((self.version, "DELETED", pod))
                self.changed.notify_all()

    def bookmark(self) -> None:
        """Watchers hear of a version at which nothing that they see has changed."""
        with self.changed:
            self.version += 1
            self.events.append(
                (self.version, "BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}})
            )
            self.changed.notify_all()

    def forget(self) -> None:
        """No watch can be resumed from before now: 410."""
        with self.changed:
            self.oldest = self.version
            self.events.clear()

    def drop(self) -> None:
        """Breaks off every watch, in the middle of an answer."""
        with self.changed:
            self.generation += 1
            self.changed.notify_all()

    def say(self, line: bytes) -> None:
        """One watcher gets these bytes next."""
        with self.changed:
            self.raw.append(line)
            self.changed.notify_all()

    def fail(self, verb: str, status: int, message: str = "scripted") -> None:
        """The next request of the kind fails so."""
        self.failures.append((verb, status, status_body(status, message)))

    def live(self) -> frozenset[str]:
        """host:port of each pod that may hold a server."""
        with self.changed:
            return frozenset(
                joined(pod["status"]["podIP"], PORT)
                for pod in self.pods.values()
                if pod["status"].get("podIP") and pod["status"]["phase"] not in ("Succeeded", "Failed")
            )

    def failure(self, verb: str) -> tuple[int, bytes] | None:
        """What a request is to fail with."""
        with self.changed:
            if verb in self.failing:
                return self.failing[verb]
            for item in self.failures:
                if item[0] == verb:
                    self.failures.remove(item)
                    return item[1:]
            return None

    def close(self) -> None:
        """Ends every watch, and the server. Idempotent."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def status_body(status: int, message: str) -> bytes:
    """What the API server says of a refused request."""
    return json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": status}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: KubernetesApi

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Nothing: a test's output is its own."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        verb = "watch" if query.get("watch", "").lower() == "true" else "list"
        with self.of.changed:
            self.of.asked.append((verb, {**query, "path": url.path}))
        failure = self.of.failure(verb)
        try:
            if failure is not None:
                self._answer(*failure)
            elif verb == "watch":
                self._watch(int(query["resourceVersion"]))
            else:
                self._list(query)
        except OSError:  # the client has gone
            self.close_connection = True

    def _list(self, query: dict[str, str]) -> None:
        with self.of.changed:
            version, _, begun = query.get("continue", f"{self.of.version}:0").partition(":")
            # All pages are of the version of the first.
            pods = self.of.lists.setdefault(version, [self.of.pods[name] for name in sorted(self.of.pods)])
            begin = int(begun)
            end = len(pods) if self.of.page is None else begin + self.of.page
            metadata = {"resourceVersion": version} | ({"continue": f"{version}:{end}"} if end < len(pods) else {})
            body = {"kind": "PodList", "metadata": metadata, "items": pods[begin:end]}
        self._answer(200, json.dumps(body).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, version: int) -> None:
        api = self.of
        with api.changed:
            if version < api.oldest:
                self._answer(410, status_body(410, "too old resource version"))
                return
            generation = api.generation
            api.watching += 1
            api.changed.notify_all()
        try:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                with api.changed:
                    if not (lines := self._due(version)) and api.generation == generation and not api.closed:
                        api.changed.wait()
                        lines = self._due(version)
                    ended = api.generation != generation or api.closed
                    version = max([version, *(number for number, _ in lines)])
                if ended:
                    self.close_connection = True
                    self.wfile.flush()
                    self.connection.shutdown(2)
                    return
                for _, line in lines:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        finally:
            with api.changed:
                api.watching -= 1
                api.changed.notify_all()

    def _due(self, version: int) -> list[tuple[int, bytes]]:
        if version < self.of.oldest:
            gone = {"type": "ERROR", "object": json.loads(status_body(410, "too old resource version"))}
            return [(self.of.version, json.dumps(gone).encode() + b"\n")]
        if self.of.raw:
            return [(version, self.of.raw.popleft() + b"\n")]
        return [
            (number, json.dumps({"type": kind, "object": thing}).encode() + b"\n")
            for number, kind, thing in self.of.events
            if number > version
        ]


@contextmanager
def kubernetes_api() -> Iterator[KubernetesApi]:
    """A started one, closed at the end."""
    api = KubernetesApi()
    try:
        yield api
    finally:
        api.close()


@contextmanager
def found_by(api: KubernetesApi, pods: Pods | None = None) -> Iterator[FollowedServers]:
    """The pods' discovery, which tries again within milliseconds; closed at the end."""
    servers = FollowedServers((), [PodSource(pods or Pods(PORT), api.connect, Backoff(0.001, 0.01))], "kubernetes:7410")
    try:
        yield servers
    finally:
        servers.close()
