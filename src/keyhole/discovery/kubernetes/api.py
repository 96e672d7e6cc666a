"""Pods by their labels, from the Kubernetes API: one list, then a watch that is resumed for as long as it can be.

The only home of the client library, which takes more than a second to import: imported when it is first needed.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from keyhole.backoff import JITTER, Backoff
from keyhole.discovery.following import Telling
from keyhole.discovery.kubernetes.pods import Json, KeptPods, NotOfKubernetes, PodSet, version_of
from keyhole.discovery.parse import Pods
from keyhole.errors import InvalidConfiguration, KeyholeError, MachineError
from keyhole.installing import with_extra

_log = logging.getLogger(__name__)

_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CONNECT_SECONDS = 5.0
_LIST_SECONDS = 30.0
_PAGE = 500
# A watch ends by itself after so long, and is resumed: a connection that has died unheard is noticed then.
_WATCH_SECONDS = (40, 60)
_WATCH_GRACE_SECONDS = 15.0
_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 0.2, 10.0
# A watch that ended sooner, without an event, is one that failed.
_LIVED_SECONDS = 1.0
# The API server holds no object above 1.5 MiB.
_MOST_LINE_BYTES = 8 << 20
_GONE = 410
_REFUSALS = (400, 401, 403)
_USER = re.compile(r'User "([^"]*)"')
_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):(.+)")


class Api(NamedTuple):
    """A client of the API (kubernetes.client.ApiClient), and the namespace of whoever uses it."""

    client: Any
    namespace: str


ConnectApi = Callable[[], Api]


def connect_api() -> Api:
    """Connects as the pod's service account where this runs in a pod, else by the file that KUBECONFIG names.

    Raises:
        InvalidConfiguration: There is neither, or the client library is not installed.
    """
    try:
        from kubernetes import client
        from kubernetes import config as untyped
    except ImportError as error:
        raise InvalidConfiguration(
            f"finding servers by Kubernetes pods needs the package kubernetes; install {with_extra('service')}"
        ) from error
    config: Any = untyped
    settings = client.Configuration()
    try:
        try:
            config.load_incluster_config(client_configuration=settings)
            namespace = _SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
        except (config.ConfigException, OSError):
            config.load_kube_config(client_configuration=settings)
            _, active = config.list_kube_config_contexts()
            namespace = active.get("context", {}).get("namespace") or "default"
    except (config.ConfigException, OSError) as error:
        raise InvalidConfiguration(
            "servers are to be found by Kubernetes pods, but this process is in no pod with a service account, and "
            f"KUBECONFIG names no usable file ({error})"
        ) from error
    settings.retries = False  # they are made here, with jitter
    return Api(client.ApiClient(settings), namespace)


class _ApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str, verb: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.verb = verb


class PodSource:
    """See following.Source. While the API server is away, what was known last stays.

    Args:
        backoff: Between requests that fail.
        keep: What is kept of the pods; default: the addresses of their servers.
    """

    def __init__(
        self,
        pods: Pods,
        connect: ConnectApi = connect_api,
        backoff: Backoff | None = None,
        keep: KeptPods | None = None,
    ) -> None:
        self._wanted = pods
        self._connect = connect
        self._api: Api | None = None
        self._set: KeptPods = keep or PodSet(pods.port)
        self._version: str | None = None
        self._failing = False
        self._watched = False
        self._lock = threading.Lock()
        self._response: Any = None
        self._backoff = backoff or Backoff(_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS)

    def look(self) -> None:
        """Lists the pods once, by the caller's own thread.

        Raises:
            InvalidConfiguration: There is no API to connect to, or it refuses.
            MachineError: It does not answer, or not as it should.
        """
        try:
            self._list()
        except _ApiError as error:
            if error.status in _REFUSALS:
                raise self._refusal(error) from error
            raise MachineError(f"the Kubernetes API server says {error}") from error
        except KeyholeError:
            raise
        except Exception as error:  # the client lets through whatever a socket raises
            raise MachineError(f"the Kubernetes API can't be asked for pods: {error}") from error
        finally:
            if self._api is not None:
                self._api.client.rest_client.pool_manager.clear()

    def follow(self, telling: Telling, closed: threading.Event) -> None:
        while not closed.is_set():
            begun = time.monotonic()
            try:
                events = self._round(telling, closed)
            except _ApiError as error:
                if not closed.is_set():
                    self._answered(error, telling)
                events = False
            except KeyholeError as error:
                telling.refused(error)
                self._fails(error.message)
                events = False
            except NotOfKubernetes as error:
                self._version = None
                self._fails(f"it answered {error}")
                events = False
            except Exception as error:  # noqa: BLE001 - the top of the loop; the client lets through whatever a socket raises
                # The watch is resumed where it broke off.
                if not closed.is_set():
                    self._fails(f"{type(error).__name__}: {error}")
                events = False
            if events or time.monotonic() - begun >= _LIVED_SECONDS:
                self._backoff.reset()
            if not events:
                closed.wait(self._backoff.next())
        if self._api is not None:
            self._api.client.rest_client.pool_manager.clear()

    def interrupt(self) -> None:
        with self._lock:
            if self._response is not None:
                with suppress(OSError, ValueError, RuntimeError):  # it has just ended
                    self._response.shutdown()

    def _round(self, telling: Telling, closed: threading.Event) -> bool:
        """Lists where there is nothing to resume, then watches until that ends. Returns whether it was of use."""
        listed = self._version is None
        if listed:
            self._list()
        try:
            response = self._get("watch", watch="true", allowWatchBookmarks="true", resourceVersion=self._version)
        except Exception as error:
            # Who may list but not watch is to hear of it at the start.
            may_watch = self._watched or not (isinstance(error, _ApiError) and error.status in _REFUSALS)
            if listed and may_watch:
                telling.found(self._set.addresses())
            raise
        useful = False
        try:
            with self._lock:
                self._response = response
            if closed.is_set():
                return False
            self._watched = True
            telling.found(self._set.addresses())
            self._answers()
            for line in _lines(response):
                self._event(_json(line))
                telling.found(self._set.addresses())
                useful = True
        finally:
            with self._lock:
                self._response = None
            response.close()
        return useful

    def _list(self) -> None:
        pods: list[Json] = []
        page: Any = {"metadata": {}}
        following = ""
        while True:
            paging = {"continue": following} if following else {}
            response = self._get("list", limit=_PAGE, **paging)
            try:
                page = _json(response.read())
            finally:
                response.close()
            items = page.get("items")
            if not isinstance(items, list):
                raise NotOfKubernetes("no list of pods")
            pods += items
            following = page["metadata"].get("continue") or "" if isinstance(page.get("metadata"), dict) else ""
            if not following:
                break
        version = version_of(page)
        self._set.listed(pods)
        self._version = version

    def _event(self, event: Json) -> None:
        kind, thing = event.get("type"), event.get("object")
        if not (isinstance(kind, str) and isinstance(thing, dict)):
            raise NotOfKubernetes("an event without a type or an object")
        if kind == "ERROR":
            code = thing.get("code")
            raise _ApiError(code if isinstance(code, int) else 0, str(thing.get("message")), "watch")
        version = version_of(thing)
        if kind != "BOOKMARK":
            self._set.changed(kind, thing)
        self._version = version

    def _get(self, verb: str, **query: Any) -> Any:
        """One request; the response is open. Raises _ApiError, and whatever the client lets through.

        Not by CoreV1Api: importing it takes 1.5 s of processor time and 90 MB (measured with version 37).
        """
        if self._api is None:
            self._api = self._connect()
        seconds = JITTER.randint(*_WATCH_SECONDS)
        if verb == "watch":
            query["timeoutSeconds"] = seconds
        request = self._api.client.param_serialize(
            "GET",
            "/api/v1/namespaces/{namespace}/pods",
            path_params={"namespace": self._wanted.namespace or self._api.namespace},
            query_params=[("labelSelector", self._wanted.selector), *query.items()],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        patience = seconds + _WATCH_GRACE_SECONDS if verb == "watch" else _LIST_SECONDS
        response = self._api.client.call_api(*request, _request_timeout=(_CONNECT_SECONDS, patience)).response
        if response.status != 200:
            try:
                body = response.read()
            finally:
                response.close()
            raise _ApiError(response.status, _message(body), verb)
        return response

    def _answered(self, error: _ApiError, telling: Telling) -> None:
        self._version = None
        if error.status == _GONE:
            # What happened since is forgotten there: the next list has it.
            _log.debug("the watch of pods begins anew", extra={"why": str(error)})
            return
        if error.status in _REFUSALS:
            refusal = self._refusal(error)
            telling.refused(refusal)
            self._fails(refusal.message)
            return
        self._fails(str(error))

    def _refusal(self, error: _ApiError) -> InvalidConfiguration:
        """What to do about it."""
        assert self._api is not None
        namespace = self._wanted.namespace or self._api.namespace
        said = f"the Kubernetes API server says {error.status}: {error.message}"
        if error.status == 400:
            return InvalidConfiguration(
                f"the selector {self._wanted.selector!r} can't be used to find the pods of state servers; {said}"
            )
        if error.status == 401:
            return InvalidConfiguration(
                "the Kubernetes API server does not accept who this process says it is; check its service account's "
                f"token, or the file that KUBECONFIG names; {said}"
            )
        user = _USER.search(error.message)
        name = user.group(1) if user else "of this process"
        account = _SERVICE_ACCOUNT.fullmatch(name)
        who = f"service account {account.group(2)!r} of namespace {account.group(1)!r}" if account else f"user {name!r}"
        return InvalidConfiguration(
            f"{who} may not {error.verb} the resource pods in namespace {namespace!r}: bind it there to a Role with "
            f"the verbs list and watch on pods (apiGroups: ['']); {said}",
            user=name,
            verb=error.verb,
            resource="pods",
            namespace=namespace,
        )

    def _fails(self, why: str) -> None:
        if not self._failing:
            _log.warning(
                "the Kubernetes API can't be asked for pods; the last known servers stay",
                extra={"known": len(self._set.addresses()), "why": why},
            )
        self._failing = True

    def _answers(self) -> None:
        if self._failing:
            _log.info("the Kubernetes API answers again", extra={"known": len(self._set.addresses())})
        self._failing = False


def _lines(response: Any) -> Iterator[bytes]:
    """One JSON text each, as they come."""
    rest = b""
    for chunk in response.stream(amt=None, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
        if len(rest) > _MOST_LINE_BYTES:
            raise NotOfKubernetes("an event without an end")


def _json(text: bytes) -> Json:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise NotOfKubernetes("what is no JSON") from error
    if not isinstance(value, dict):
        raise NotOfKubernetes("JSON that is no object")
    return value


def _message(body: bytes | str | None) -> str:
    """That of a Status, or what there is."""
    try:
        return str(json.loads(body or "")["message"])
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
        return text[:300] or "without a reason"
