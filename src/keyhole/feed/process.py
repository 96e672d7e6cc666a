"""Holds the run of one state that is fed by updates, and feeds it from one topic: what `keyhole feed` is.

    take the state over     servers get its key groups; an earlier process hears so, and ends
    feed                    on a thread of its own, while the run's heartbeat has another one
    end                     all that was sent is acknowledged, and a boundary says up to where

Servers keep what they own after the end, and go on answering; the next process goes on at the boundary. One that is
killed at any step is followed by one that does the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Protocol

from keyhole.clock import Clock
from keyhole.errors import Fenced, KafkaUnreachable, KeyholeError
from keyhole.feed.topic_feed import FeedFigures
from keyhole.model.state import StateDescriptor
from keyhole.protocol.fed_sources import StateOnRecord

_LOOK_SECONDS = 0.5
_AGAIN_SECONDS, _FENCED_SECONDS, _ON_RECORD_SECONDS = 0.1, 5.0, 15.0


class StateRun(Protocol):
    """keyhole.coordinator.feed_run.FeedRun, as far as it is used here."""

    def start(
        self,
        states: Mapping[StateDescriptor, int],
        *,
        sources: Mapping[str, str],
        take_over: bool,
        admit: Callable[[Mapping[str, StateOnRecord]], None],
    ) -> None:
        """Returns once every key group has an owner."""

    @property
    def fenced(self) -> Fenced | None:
        """What it ends with, once a newer run has taken the query over."""

    @property
    def lost(self) -> KafkaUnreachable | None:
        """What it ends with, once it can't know what is on record."""

    def fenced_by(self) -> Fenced | None:
        """The same, with who has taken it over, as far as that is on record by now."""

    @property
    def descriptors(self) -> Mapping[str, StateDescriptor]:
        """The states as they are on record."""

    def beat(self, patience_seconds: float | None = None) -> None:
        """Raises Fenced: a newer run has taken the query over."""

    def close(self) -> None:
        """Ends it: servers keep what they own. Idempotent."""


class StateFeeder(Protocol):
    """keyhole.feed.topic_feed.TopicFeed, as far as it is used here."""

    @property
    def figures(self) -> FeedFigures:
        """How far it is. Any thread."""

    def check_rights(self) -> None:
        """Raises InvalidConfiguration: Kafka does not let it feed. It takes nothing from one that feeds."""

    def sources(self) -> Mapping[str, str]:
        """By which it feeds the state, each with the name of its topic."""

    def check(self, recorded: Collection[str]) -> None:
        """Whether it could begin now, beside the sources on record; takes nothing from one that feeds."""

    def run(self, stop: threading.Event) -> None:
        """Feeds until `stop` is set."""


class FeedProcess:
    """See the module's text. One thread: `start`, `feed`, then `close` in any case.

    Args:
        descriptor: Of the state, as it is declared.
        standbys: How many it is to have.
        feed_of: Makes the feed of a state, as it is on record, and of the topic with this id; empty: whichever it has.
        take_over: Also from a process that goes on.
    """

    def __init__(
        self,
        run: StateRun,
        descriptor: StateDescriptor,
        standbys: int,
        feed_of: Callable[[StateDescriptor, str], StateFeeder],
        clock: Clock,
        *,
        take_over: bool = False,
    ) -> None:
        self._take_over = take_over
        self._run = run
        self._descriptor = descriptor
        self._standbys = standbys
        self._feed_of = feed_of
        self._clock = clock
        self._topic_id = ""
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Takes the state over, where it could be fed then. Blocks until servers have it. May be broken off.

        Raises:
            KeyholeError: As FeedRun.start, StateFeeder.check_rights, sources and check.
        """
        feed = self._feed_of(self._descriptor, "")
        feed.check_rights()
        sources = feed.sources()
        (self._topic_id,) = sources
        wanted = {self._descriptor: self._standbys}
        self._run.start(wanted, sources=sources, take_over=self._take_over, admit=self._admit)

    def _admit(self, known: Mapping[str, StateOnRecord]) -> None:
        """Of a state that is new nothing was fed that could be missing."""
        if (recorded := known.get(self._descriptor.state)) is not None:
            self._feed_of(recorded.descriptor, self._topic_id).check(recorded.sources)

    def feed(self, stop: threading.Event, show: Callable[[FeedFigures], None]) -> FeedFigures:
        """Feeds until `stop` is set, which it sets itself where the state is taken over. Blocks.

        Args:
            show: Is called now and then, in the caller's thread.

        Returns:
            How far it has come. All of that is acknowledged, unless Kafka was away at the end.

        Raises:
            Fenced: Another process has taken the state over; the message says which one.
            KafkaUnreachable: Kafka was away for so long that the run holds the state no more. What was sent is as at
                any other end.
            KeyholeError: See TopicFeed.run.
        """
        feed = self._feed_of(self._run.descriptors[self._descriptor.state], self._topic_id)
        thread = threading.Thread(target=self._feed, args=(feed, stop), name="keyhole-feed", daemon=True)
        thread.start()
        lost: KafkaUnreachable | None = None
        try:
            while not self._clock.wait(self._ended, _LOOK_SECONDS):
                lost = lost or self._run.lost
                if self._run.fenced is not None or lost is not None:
                    stop.set()
                show(feed.figures)
        finally:
            # Also where they can't be shown: nothing is sent behind the caller's back.
            stop.set()
        thread.join()
        self._raise_failure()
        if lost is not None:
            raise lost
        return feed.figures

    def _feed(self, feed: StateFeeder, stop: threading.Event) -> None:
        try:
            feed.run(stop)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._failure = error
        finally:
            self._ended.set()

    def _raise_failure(self) -> None:
        if isinstance(self._failure, Fenced):
            # The feeder's lease is lost sooner than the run looks, and only the run knows who has taken over.
            until = self._clock.monotonic() + _FENCED_SECONDS
            while self._run.fenced is None and self._clock.monotonic() < until:
                with suppress(KeyholeError):
                    self._run.beat(0.0)
                self._clock.sleep(_AGAIN_SECONDS)
        if (fenced := self._fenced()) is not None:
            raise fenced
        if self._failure is not None:
            raise self._failure

    def _fenced(self) -> Fenced | None:
        """Who has taken over, which is on record a moment after the run was fenced."""
        until = self._clock.monotonic() + _ON_RECORD_SECONDS
        while (fenced := self._run.fenced_by()) is not None and "generation" not in fenced.facts:
            if self._clock.monotonic() >= until:
                break
            self._clock.sleep(_AGAIN_SECONDS)
        return fenced

    def close(self) -> None:
        """Ends the run: see FeedRun.close. Idempotent."""
        self._run.close()
