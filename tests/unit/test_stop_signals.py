"""Ctrl-C, SIGTERM and a closed terminal: break off, end gently, or nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from keyhole.demo.signals import StopSignals
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka

ALL = pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["Ctrl-C", "SIGTERM", "terminal-closed"]
)


@pytest.fixture(autouse=True)
def _not_under_nohup() -> Iterator[None]:
    """There a closed terminal is ignored from the start, and is to be."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def send(number: signal.Signals) -> None:
    """To this very thread: its handler has run when this returns."""
    signal.pthread_kill(threading.get_ident(), number)


@ALL
def test_a_signal_breaks_off_what_is_under_way(number: signal.Signals) -> None:
    with StopSignals() as signals, pytest.raises(KeyboardInterrupt):
        send(number)
    assert signals.came.is_set()


@ALL
def test_a_second_signal_does_not_interrupt_the_handling_of_the_first(number: signal.Signals) -> None:
    with StopSignals():
        with pytest.raises(KeyboardInterrupt):
            send(number)
        send(number)


@ALL
def test_gently_a_signal_is_only_told_and_the_next_one_breaks_off(number: signal.Signals) -> None:
    with StopSignals() as signals:
        with signals.gently():
            send(number)
        assert signals.came.is_set()
        with pytest.raises(KeyboardInterrupt):
            send(number)


@ALL
def test_what_must_be_whole_is_broken_off_after_its_end(number: signal.Signals) -> None:
    steps = []
    with StopSignals() as signals, contextlib.suppress(KeyboardInterrupt):
        with signals.deferred():
            send(number)
            steps.append("whole")
        steps.append("after it")
    assert steps == ["whole"]


@ALL
def test_what_must_be_whole_and_fails_is_broken_off_all_the_same(number: signal.Signals) -> None:
    def failing() -> None:
        with signals.deferred():
            send(number)
            raise ValueError("mine")

    with StopSignals() as signals, pytest.raises(KeyboardInterrupt):
        failing()


@ALL
def test_what_must_be_whole_does_not_break_off_what_ends_gently(number: signal.Signals) -> None:
    with StopSignals() as signals, signals.gently():
        with signals.deferred():
            send(number)
        assert signals.came.is_set()


@ALL
def test_ignored_signals_do_nothing(number: signal.Signals) -> None:
    with StopSignals() as signals:
        signals.ignore()
        send(number)
        assert not signals.came.is_set()


def test_the_handlers_from_before_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_what_was_told_to_outlive_its_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            send(signal.SIGHUP)
            assert not signals.came.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


class Cleared:
    """While it is cleared away, a signal comes, as one may to a client of Kafka's that waits for its threads."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


def test_a_signal_that_comes_while_an_object_is_cleared_away_is_not_lost() -> None:
    with StopSignals() as signals:
        Cleared()
        assert signals.came.is_set()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)


class Interrupted(subprocess.Popen[bytes]):
    """A signal comes while it is started: its parent has not seen yet that there is a process."""

    started: ClassVar[list[subprocess.Popen[bytes]]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.started.append(self)
        send(signal.SIGTERM)


def test_a_signal_that_comes_while_a_jvm_of_kafka_is_started_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nexec sleep 600\n")
    java.chmod(0o700)
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with StopSignals() as signals:
        kafka = LocalKafka(tmp_path / "kafka", [], Java(java, 17), options=(), uninterrupted=signals.deferred)
        with pytest.raises(KeyboardInterrupt):
            kafka.start()
    assert [process.returncode for process in Interrupted.started] == [-signal.SIGKILL]


def test_what_else_is_lost_is_told_as_ever() -> None:
    raised: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda lost: raised.append(lost.exc_value)
    try:
        with StopSignals():

            class Failing:
                def __del__(self) -> None:
                    raise ValueError("mine")

            Failing()
    finally:
        sys.unraisablehook = before
    assert [str(error) for error in raised] == ["mine"]
