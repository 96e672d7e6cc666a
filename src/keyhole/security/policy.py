"""Who may do what: a small file, evaluated purely. What no entry allows is refused, and the order doesn't matter.

    [[allow]]
    who = ["token:dashboard", "certificate:*.dashboards.example"]
    verbs = ["read", "scan"]
    states = ["temperature-monitor/*"]        # application/state, with *, ? and [...]

    [[allow]]
    who = ["jwt:system:serviceaccount:jobs:temperature-monitor"]
    verbs = ["write"]
    states = ["temperature-monitor/*"]

    [[allow]]
    who = ["certificate:keyhole-client-proxy"]
    verbs = ["platform"]

An identity is `token:NAME` (of the tokens' file), `certificate:NAME` (a DNS name, URI or address of a client's
certificate, or its common name) or `jwt:SUBJECT`; * stands for any text. `*` alone is everybody who is authenticated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from keyhole.encoding.toml_text import decode_toml
from keyhole.errors import InvalidConfiguration
from keyhole.hints import ready

ANYBODY = "*"
EVERYTHING = "*/*"
IDENTITY_KINDS = ("token", "certificate", "jwt")


class Verb(StrEnum):
    """What is done.

    READ: look keys up. SCAN: read the entries of a key, or all keys. WATCH: get changes as they come. DIRECT, beside
    READ: learn of a proxy where the servers are, to look keys up there. ADMIN: see the servers, have them drain, move
    key groups, and read all that a copy holds (`keyhole status`, `drain`, `move`, `verify`). WRITE: what an
    application's driver and tasks say to state servers. PLATFORM: what proxies and the metrics exporter ask of servers;
    it includes all reads. METRICS: the figures alone, under /metrics and Stats.
    """

    READ = "read"
    SCAN = "scan"
    WATCH = "watch"
    DIRECT = "direct"
    ADMIN = "admin"
    WRITE = "write"
    PLATFORM = "platform"
    METRICS = "metrics"


SEEING = (Verb.READ, Verb.SCAN, Verb.WATCH, Verb.ADMIN, Verb.WRITE)
"""Whoever may do one of these with a state may know that there is one, and what it is."""


_WITHOUT_STATES = (Verb.PLATFORM, Verb.METRICS)


class Allow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the file."""

    who: tuple[str, ...]
    verbs: tuple[Verb, ...]
    states: tuple[str, ...] = ()

    def problems(self) -> Iterator[str]:
        """What is wrong with it."""
        for name, given in (("who", self.who), ("verbs", self.verbs)):
            if not given:
                yield f"{name} is empty"
        for who in self.who:
            kind, colon, rest = who.partition(":")
            if who != ANYBODY and not (kind in IDENTITY_KINDS and colon and rest):
                kinds = ", ".join(f"{kind}:NAME" for kind in IDENTITY_KINDS)
                yield f"{who!r} in who is no identity; write {kinds} or *"
        if whole := [verb for verb in self.verbs if verb in _WITHOUT_STATES]:
            if set(self.verbs) - set(whole):
                yield f"{whole[0]} is not about states; give the other verbs in an entry of their own"
            if self.states:
                yield f"{whole[0]} is not about states; leave states out"
        elif not self.states:
            yield f'states is missing; write ["APPLICATION/STATE"], with * for any, as ["{EVERYTHING}"]'
        for pattern in self.states:
            application, slash, state = pattern.partition("/")
            if not (application and slash and state) or "/" in state:
                yield f"{pattern!r} in states is not APPLICATION/STATE"
            elif Verb.WRITE in self.verbs and state != "*":
                yield f"write is about a whole application: {pattern!r} must be {application}/*"

    def covers(self, application: str, state: str) -> bool:
        """Whether one of its patterns fits."""
        return any(
            fnmatchcase(application, of_application) and fnmatchcase(state, of_state)
            for of_application, _, of_state in (pattern.partition("/") for pattern in self.states)
        )


@ready
class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy's file: who is allowed what. What no entry allows is denied."""

    allow: tuple[Allow, ...]

    def of(self, identities: Iterable[str]) -> Rights:
        """What somebody with these identities may do."""
        names = tuple(identities)
        return Rights(
            tuple(entry for entry in self.allow if any(_is(who, name) for who in entry.who for name in names))
        )

    def identities(self) -> set[str]:
        """The identities that are named in full, to compare with those that there are."""
        return {who for entry in self.allow for who in entry.who if "*" not in who}


class Rights:
    """The entries that concern one caller."""

    __slots__ = ("_entries", "platform")

    def __init__(self, entries: tuple[Allow, ...]) -> None:
        self._entries = entries
        self.platform = any(Verb.PLATFORM in entry.verbs for entry in entries)

    def may(self, verb: Verb, application: str, state: str) -> bool:
        """Whether it may do this with the state. Of WRITE the state is "*"."""
        if self.platform and verb is not Verb.WRITE:
            return True
        return any(verb in entry.verbs and entry.covers(application, state) for entry in self._entries)

    def may_see(self, application: str, state: str) -> bool:
        """Whether it may know of the state at all."""
        return any(self.may(verb, application, state) for verb in SEEING)

    def may_everywhere(self, verb: Verb) -> bool:
        """Whether an entry allows it for all states there are, or will be."""
        if self.platform and verb is not Verb.WRITE:
            return True
        return any(
            verb in entry.verbs and (EVERYTHING in entry.states or verb in _WITHOUT_STATES) for entry in self._entries
        )

    def administers(self, application: str = "*", state: str = "*") -> bool:
        """Whether an entry names the verb admin for the state. The platform's reads don't come to that.

        Args:
            application, state: "*": for all there are, or will be.
        """
        administered = [entry for entry in self._entries if Verb.ADMIN in entry.verbs]
        if application == "*":
            return any(EVERYTHING in entry.states for entry in administered)
        return any(entry.covers(application, state) for entry in administered)

    def may_somewhere(self, verb: Verb) -> bool:
        """Whether an entry allows it for any state."""
        return any(verb in entry.verbs for entry in self._entries)


def load(path: str) -> Policy:
    """Reads a policy.

    Raises:
        InvalidConfiguration: It can't be read or is no policy; the message names the file and each wrong entry.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise InvalidConfiguration(f"the policy {path} can't be read ({why})", path=path) from error
    try:
        policy = decode_toml(text, Policy)
    except msgspec.DecodeError as error:  # ValidationError is one
        raise InvalidConfiguration(
            f"the policy {path} is not one: {error}. The verbs are {', '.join(Verb)}; docs/security.md has examples",
            path=path,
        ) from error
    problems = [
        f"entry {number}: {problem}" for number, entry in enumerate(policy.allow, 1) for problem in entry.problems()
    ]
    if problems:
        raise InvalidConfiguration(f"the policy {path} is wrong: {'; '.join(problems)}", path=path)
    return policy


def _is(who: str, name: str) -> bool:
    if "*" not in who:
        return who == name
    return re.fullmatch(".*".join(map(re.escape, who.split("*"))), name, re.DOTALL) is not None
