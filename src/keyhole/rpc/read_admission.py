"""What callers may take of a proxy or a server by lookups: how many at once, and how many a second.

Asked at the entrance of each read, before anything is made for it, so that nothing behind it can grow: what is beyond a
limit is refused at once, with when to come again. The limits count keys, whatever they come in: a frame of a Lookup
stream, a Get or GetMany, a request over HTTP. What comes after its deadline, or its call's, is dropped here, unread.

                   call()                     begin(keys)               end(keys)
    who calls ───────────────► ReadCall ───────────────────► under way ───────────► answered
                  calls at once          keys at once, and a second
"""

from __future__ import annotations

import enum
import math
import urllib.parse
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from keyhole.clock import Clock
from keyhole.config import ClientProxyConfig, StateServerConfig
from keyhole.errors import DeadlineExceeded, InternalError, KeyholeError, Overloaded
from keyhole.rpc.frame_ages import LATE, FrameAges
from keyhole.rpc.read_requests import check_key_count
from keyhole.rpc.token_bucket import TokenBucket
from keyhole.security.authentication import current
from keyhole.security.policy import Verb

_MOST_REMEMBERED = 10_000
"""So many callers who have nothing under way are known by what they took in the last second."""

# When to come again where it can't be reckoned: lookups end within milliseconds, calls when somebody hangs up.
_KEYS_AGAIN_SECONDS = 0.1
_CALLS_AGAIN_SECONDS = 1.0


class Limit(enum.StrEnum):
    """What a read was refused by."""

    CALLER_CALLS = "caller_calls"
    CALLS = "calls"
    CALLER_KEYS = "caller_keys"
    KEYS = "keys"
    CALLER_RATE = "caller_rate"
    RATE = "rate"


_SETTINGS = {
    Limit.CALLER_CALLS: "MAX_CALLER_LOOKUP_CALLS",
    Limit.CALLS: "MAX_LOOKUP_CALLS",
    Limit.CALLER_KEYS: "MAX_CALLER_LOOKUP_KEYS",
    Limit.KEYS: "MAX_LOOKUP_KEYS",
    Limit.CALLER_RATE: "MAX_CALLER_LOOKUP_KEYS_PER_SECOND",
    Limit.RATE: "MAX_LOOKUP_KEYS_PER_SECOND",
}


@dataclass(frozen=True)
class ReadLimits:
    """Of one caller, and of all together; 0: no limit.

    Attributes:
        caller_calls, calls: Under way: Lookup streams, also idle ones, and other calls that look keys up.
        caller_keys, keys: Under way.
        caller_rate, rate: Keys a second.
        settings: What the names of their settings begin with.
    """

    caller_calls: int = 0
    calls: int = 0
    caller_keys: int = 0
    keys: int = 0
    caller_rate: int = 0
    rate: int = 0
    settings: str = ""

    @classmethod
    def of(cls, config: ClientProxyConfig | StateServerConfig) -> ReadLimits:
        """As the settings of a process have them. A state server answers at once: no keys are under way there."""
        caller_keys = keys = 0
        if isinstance(config, ClientProxyConfig):
            caller_keys, keys = config.max_caller_lookup_keys, config.max_lookup_keys
        return cls(
            caller_calls=config.max_caller_lookup_calls,
            calls=config.max_lookup_calls,
            caller_keys=caller_keys,
            keys=keys,
            caller_rate=config.max_caller_lookup_keys_per_second,
            rate=config.max_lookup_keys_per_second,
            settings=config.PREFIX,
        )


NO_LIMITS = ReadLimits()


class Called(Protocol):
    """A call, as gRPC has it: what this asks of a ServicerContext."""

    def peer(self) -> str:
        """Where it comes from: "ipv4:127.0.0.1:5000", "ipv6:%5B::1%5D:5000"."""

    def time_remaining(self) -> float | None:
        """Seconds; None: it has no deadline."""


def peer_of(address: str | None, port: int = 0) -> str:
    """An address as gRPC says where a call comes from. Who a caller is goes by it without the port."""
    if not address:
        return ""
    host = f"ipv6:{urllib.parse.quote(f'[{address}]', safe=':')}" if ":" in address else f"ipv4:{address}"
    return f"{host}:{port}"


def is_of_one_caller(error: KeyholeError) -> bool:
    """Whether a caller was refused by a limit of its own: nobody else lacks anything."""
    return "MAX_CALLER_LOOKUP" in error.facts.get("cap", "")


class _UnderWay:
    """What one caller, or all together, have under way. `bucket`: None: they may take any number a second."""

    __slots__ = ("bucket", "calls", "keys", "most_calls", "most_keys")

    def __init__(self, most_calls: int, most_keys: int, rate: int, now: float) -> None:
        self.calls = self.keys = 0
        self.most_calls = most_calls or math.inf
        self.most_keys = most_keys or math.inf
        self.bucket = TokenBucket(rate, now) if rate else None


class ReadAdmission:
    """The lookups of all callers of one process. Event loop's thread only.

    Args:
        where: What the process is, for messages: "this proxy".

    Attributes:
        where: The same.
        refused: By limit: keys, or calls, that were refused.
        expired: Keys that were dropped unread.
    """

    def __init__(self, limits: ReadLimits, clock: Clock, where: str) -> None:
        self._limits = limits
        self._clock = clock
        self.where = where
        self.refused: Counter[str] = Counter({limit.value: 0 for limit in Limit})
        self.expired = 0
        self._all = _UnderWay(limits.calls, limits.keys, limits.rate, clock.monotonic())
        self._platform = _UnderWay(0, 0, 0, 0.0)
        # In the order in which they have come to rest, those that have; see `_rest`.
        self._callers: OrderedDict[tuple[str, ...], _UnderWay] = OrderedDict()

    @property
    def keys(self) -> int:
        """How many are under way, of all callers."""
        return self._all.keys

    @property
    def calls(self) -> int:
        """How many are under way, of all callers."""
        return self._all.calls

    @contextmanager
    def call(self, context: Called) -> Iterator[ReadCall]:
        """Around a call, by whoever calls now: who that is by token or certificate, or else the address.

        Proxies (the verb platform) have no limits of one caller: they stand for others, and have limits of their own.

        Raises:
            Overloaded: As many calls are under way as may be.
        """
        caller = current()
        names = caller.names or (context.peer().rpartition(":")[0],)
        is_platform = not caller.is_anybody and caller.may_everywhere(Verb.PLATFORM)
        taken = self._platform if is_platform else self._taken_by(names)
        everybody, left = self._all, context.time_remaining()
        if taken.calls >= taken.most_calls:
            raise self._too_many_calls(Limit.CALLER_CALLS, names[0], taken)
        if everybody.calls >= everybody.most_calls:
            self._rest(names, taken)
            raise self._too_many_calls(Limit.CALLS, "", everybody)
        taken.calls += 1
        everybody.calls += 1
        opened = ReadCall(self, names, taken, None if left is None else self._clock.monotonic() + left)
        try:
            yield opened
        finally:
            opened.is_over = True
            taken.calls -= 1
            everybody.calls -= 1
            self._rest(names, taken)

    def begin(self, call: ReadCall, keys: int, sent_ms: int, timeout_ms: int) -> int:
        """Takes room for keys, or raises; see ReadCall.begin."""
        if call.is_over:
            raise InternalError("a lookup was begun behind the end of its call; nobody waits for it")
        check_key_count(keys)  # before others lack what nobody will look up
        everybody, taken, now = self._all, call.taken, self._clock.monotonic()
        if call.until is not None and now >= call.until:
            raise self.dropped(keys)
        late_ms = 0
        if sent_ms or call.ages is not None:
            call.ages = ages = call.ages or FrameAges()
            late_ms = ages.late_ms(sent_ms, now)
            if timeout_ms and late_ms >= timeout_ms:
                raise self.dropped(keys, **{LATE: late_ms})
        # A request that is larger than a limit is let in alone, or it could never be answered.
        if taken.keys and taken.keys + keys > taken.most_keys:
            raise self._too_many_keys(Limit.CALLER_KEYS, call.names[0], taken, keys)
        if everybody.keys and everybody.keys + keys > everybody.most_keys:
            raise self._too_many_keys(Limit.KEYS, "", everybody, keys)
        if taken.bucket is not None or everybody.bucket is not None:
            self._take(call, keys, now)
        taken.keys += keys
        everybody.keys += keys
        return late_ms

    def end(self, call: ReadCall, keys: int) -> None:
        """Gives back what `begin` has taken; see ReadCall.end."""
        taken = call.taken
        taken.keys -= keys
        self._all.keys -= keys
        if not taken.calls:  # its call has ended before it
            self._rest(call.names, taken)

    def dropped(self, keys: int, **facts: object) -> DeadlineExceeded:
        """Counts these keys as dropped. Returns what to refuse them with."""
        self.expired += keys
        return DeadlineExceeded(
            f"the deadline had passed before {self.where} came to this request, so nothing was looked up; give it "
            "more time, or look at the load of proxies and servers",
            **facts,
        )

    def _take(self, call: ReadCall, keys: int, now: float) -> None:
        own, common = call.taken.bucket, self._all.bucket
        if own is not None and (seconds := own.take(keys, now)):
            raise self._too_many_a_second(Limit.CALLER_RATE, call.names[0], keys, seconds)
        # A frame that is larger than what its caller may have in a second is owed by that caller, and not by all.
        most_owed = math.inf if own is None else self._limits.caller_rate
        if common is not None and (seconds := common.take(keys, now, most_owed)):
            if own is not None:
                own.give_back(keys)
            raise self._too_many_a_second(Limit.RATE, "", keys, seconds)

    def _taken_by(self, names: tuple[str, ...]) -> _UnderWay:
        taken = self._callers.get(names)
        if taken is None:
            of = self._limits
            taken = _UnderWay(of.caller_calls, of.caller_keys, of.caller_rate, self._clock.monotonic())
            self._callers[names] = taken
        return taken

    def _rest(self, names: tuple[str, ...], taken: _UnderWay) -> None:
        """Forgets a caller who has nothing under way any more. What it took in the last second still counts."""
        if taken is self._platform or taken.calls or taken.keys:
            return
        if self._callers.get(names) is not taken:
            return  # forgotten already: what there is by this name is of a later call
        if taken.bucket is None:
            self._callers.pop(names, None)
            return
        self._callers.move_to_end(names)
        now = self._clock.monotonic()
        while self._callers:
            first, of = next(iter(self._callers.items()))
            if of.calls or of.keys:
                self._callers.move_to_end(first)
                return
            if len(self._callers) <= _MOST_REMEMBERED and of.bucket is not None and not of.bucket.is_full(now):
                return
            del self._callers[first]

    def _too_many_calls(self, limit: Limit, who: str, taken: _UnderWay) -> Overloaded:
        what = f"{taken.calls:,} calls that look keys up are under way in {self.where}, and {taken.most_calls:,} may be"
        return self._refusal(limit, who, what, taken.most_calls, 1, _CALLS_AGAIN_SECONDS)

    def _too_many_keys(self, limit: Limit, who: str, taken: _UnderWay, keys: int) -> Overloaded:
        what = (
            f"{taken.keys:,} keys are being looked up in {self.where}, and with {keys:,} more they are beyond the "
            f"{taken.most_keys:,} that may be at once"
        )
        return self._refusal(limit, who, what, taken.most_keys, keys, _KEYS_AGAIN_SECONDS)

    def _too_many_a_second(self, limit: Limit, who: str, keys: int, seconds: float) -> Overloaded:
        most = self._limits.caller_rate if limit is Limit.CALLER_RATE else self._limits.rate
        what = f"{keys:,} more keys are beyond the {most:,} a second that may be looked up in {self.where}"
        return self._refusal(limit, who, what, most, keys, seconds)

    def _refusal(self, limit: Limit, who: str, what: str, most: float, count: int, seconds: float) -> Overloaded:
        self.refused[limit.value] += count
        setting = self._limits.settings + _SETTINGS[limit]
        again = math.ceil(seconds * 1000) / 1000
        return Overloaded(
            f"{who or 'all callers together'}: {what} ({setting}): try again in {again:g} s, or send fewer at once",
            cap=setting,
            limit=int(most),
            retry_after_seconds=again,
        )


class FrameCall(Protocol):
    """What a frame of lookups is let in by: a ReadCall, which see, or what stands for one."""

    def begin(self, keys: int, sent_ms: int = 0, timeout_ms: int = 0) -> int: ...

    def end(self, keys: int) -> None: ...


class ReadCall:
    """One call of a caller. Each `begin` that does not raise is followed by one `end`, also behind the call's own."""

    __slots__ = ("_admission", "ages", "is_over", "names", "taken", "until")

    def __init__(self, admission: ReadAdmission, names: tuple[str, ...], taken: _UnderWay, until: float | None) -> None:
        self._admission = admission
        self.names = names
        self.taken = taken
        self.until = until
        self.ages: FrameAges | None = None
        self.is_over = False

    def begin(self, keys: int, sent_ms: int = 0, timeout_ms: int = 0) -> int:
        """So many keys are to be looked up. Quick: asked for every frame, in about a microsecond.

        Args:
            sent_ms, timeout_ms: As in a LookupRequest.

        Returns:
            How many milliseconds late they have come, by what their sender says of when it sent them.

        Raises:
            MalformedRequest: More than may be in one request.
            DeadlineExceeded: The call's deadline, or the frame's, has passed: they are dropped.
            InternalError: The call has ended.
            Overloaded: They would be beyond a limit, which the message names. The fact `retry_after_seconds` says when
                to try again, `cap` the setting, `limit` its value.
        """
        return self._admission.begin(self, keys, sent_ms, timeout_ms)

    def end(self, keys: int) -> None:
        """They are answered, or given up."""
        self._admission.end(self, keys)

    @contextmanager
    def lookup(self, keys: int) -> Iterator[None]:
        """Around the lookup of so many keys. Raises as `begin`."""
        self.begin(keys)
        try:
            yield
        finally:
            self.end(keys)
