"""What a processor asks of Spark's state server, for many keys at once.

Spark's worker sends a request and waits for its answer: three times for each key that a batch has, where a processor
reads a value and writes it. Here it waits twice for some dozens of keys. It reads the values of all of them before the
first one is processed. What only has to be done (this is the key now, this is its value) it sends in front of the next
question.

    read ahead:  key a, get | key b, get | key c, get   -> one wait
    processing:  (a) update, (b) update, (c) update     -> sent with what is read next

The state server sees the requests of each key in their order. Runs in Spark's workers, on their one thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.proto import StateMessage_pb2 as pb
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.streaming.value_state_client import ValueStateClient

MOST_KEYS = 64
"""Of which values are read at once."""
MOST_QUESTION_BYTES = 16_384
"""Questions that are sent before the first answer is read. While the state server waits to be rid of a long answer it
takes no more of them: they must find room on the way, or each side would wait for the other."""
MOST_LATE_BYTES = 1 << 20
"""Of what has only to be done, whose answers are short."""

_VERSION = 0
_HEAD = struct.Struct("!ii")


class ManyKeysClient(StatefulProcessorApiClient):
    """Spark's client of the state server that a task has, which it takes the place of.

    What the state server refuses of an update comes back with the next question, and fails the task as ever.
    """

    def __init__(self, client: StatefulProcessorApiClient) -> None:
        # One connection, one handle's state: either sees what the other has done.
        self.__dict__ = client.__dict__
        self._key: bytes | None = None
        self._key_there: bytes | None = None
        self._late: list[tuple[bytes, str]] = []
        self._late_bytes = 0
        self._values: dict[str, bytes] = {}
        self._ahead: dict[bytes, dict[str, bytes]] = {}
        self._asked: dict[str, int] = {}
        self._keys = 0

    def set_implicit_key(self, key: tuple[Any, ...]) -> None:
        self._key = self._key_request(key)
        self._values = self._ahead.pop(self._key, {})
        self._keys += 1

    def remove_implicit_key(self) -> None:
        self._key = self._key_there = None
        self._values = {}
        super().remove_implicit_key()

    def later(self, request: pb.StateRequest, failing: str) -> None:
        """What has only to be done for the key at hand. `failing`: what failed, where it is refused."""
        self._place_key()
        self._put_off(request.SerializeToString(), failing)
        if self._late_bytes >= MOST_LATE_BYTES:
            self._ask([])

    def read_ahead(self, keys: Sequence[tuple[Any, ...]]) -> None:
        """Values of the keys that are processed next: those of the states that most keys before had asked for."""
        states = [state for state, asked in self._asked.items() if 2 * asked > self._keys]
        self._asked, self._keys = {}, 0
        if not states:
            return
        gets = [_value_request(state, get=pb.Get()).SerializeToString() for state in states]
        for of_keys in self._asked_at_once(keys, sum(map(len, gets))):
            self._ask([one for key in of_keys for one in (key, *gets)])
            for key in of_keys:
                self._answer(_SETTING_KEY)
                self._ahead[key] = {state: self._answer(_GETTING) for state in states}
            self._key_there = of_keys[-1]

    def value(self, state: str) -> bytes | None:
        """Of the key at hand, as Spark pickles it, empty where there is none; None: the state server must be asked."""
        self._asked[state] = self._asked.get(state, 0) + 1
        return self._values.get(state)

    def changed(self, state: str, *, gone: bool) -> None:
        """What was read ahead is no longer so."""
        if gone:
            self._values[state] = b""
        else:
            self._values.pop(state, None)

    def _send_proto_message(self, message: bytes) -> None:
        # All of Spark's own questions pass here.
        self._place_key()
        self._ask([message])

    def _key_request(self, key: tuple[Any, ...]) -> bytes:
        content = pb.SetImplicitKey(key=self._serialize_to_bytes(self.key_schema, key))
        of_key = pb.ImplicitGroupingKeyRequest(setImplicitKey=content)
        return bytes(pb.StateRequest(implicitGroupingKeyRequest=of_key).SerializeToString())

    def _place_key(self) -> None:
        if self._key is not None and self._key != self._key_there:
            self._put_off(self._key, _SETTING_KEY)
            self._key_there = self._key

    def _put_off(self, message: bytes, failing: str) -> None:
        self._late.append((message, failing))
        self._late_bytes += len(message)

    def _ask(self, questions: Sequence[bytes]) -> None:
        """Sends them behind all that was put off, whose answers are taken."""
        late, self._late, self._late_bytes = self._late, [], 0
        for message in (*(message for message, _ in late), *questions):
            self.sockfile.write(_HEAD.pack(_VERSION, len(message)))
            self.sockfile.write(message)
        self.sockfile.flush()
        for _, failing in late:
            self._answer(failing)

    def _asked_at_once(self, keys: Sequence[tuple[Any, ...]], bytes_each: int) -> Iterator[list[bytes]]:
        """The keys' requests, as many together as find room; a long one alone."""
        requests: list[bytes] = []
        size = 0
        for request in map(self._key_request, keys):
            if requests and size + len(request) + bytes_each > MOST_QUESTION_BYTES:
                yield requests
                requests, size = [], 0
            requests.append(request)
            size += len(request) + bytes_each
        if requests:
            yield requests

    def _answer(self, failing: str) -> bytes:
        status, error, value = self._receive_proto_message()
        if status != 0:
            raise PySparkRuntimeError(f"{failing}: {error}")
        return value


class ManyKeysValueClient(ValueStateClient):
    """Spark's client of a value state, by a ManyKeysClient."""

    def __init__(self, client: ManyKeysClient, schema: Any) -> None:
        super().__init__(client, schema)
        self._client = client

    def exists(self, state_name: str) -> bool:
        value = self._client.value(state_name)
        return super().exists(state_name) if value is None else bool(value)

    def get(self, state_name: str) -> tuple[Any, ...] | None:
        value = self._client.value(state_name)
        if value is None:
            return super().get(state_name)
        return tuple(self._client._deserialize_from_bytes(value)) if value else None

    def update(self, state_name: str, value: tuple[Any, ...]) -> None:
        content = pb.ValueStateUpdate(value=self._client._serialize_to_bytes(self.schema, value))
        self._client.later(_value_request(state_name, valueStateUpdate=content), "Error updating value state")
        self._client.changed(state_name, gone=False)

    def clear(self, state_name: str) -> None:
        self._client.later(_value_request(state_name, clear=pb.Clear()), "Error clearing value state")
        self._client.changed(state_name, gone=True)


def _value_request(state: str, **call: Any) -> pb.StateRequest:
    return pb.StateRequest(
        stateVariableRequest=pb.StateVariableRequest(valueStateCall=pb.ValueStateCall(stateName=state, **call))
    )


# As Spark says it.
_SETTING_KEY = "Error setting implicit key"
_GETTING = "Error getting value state"
