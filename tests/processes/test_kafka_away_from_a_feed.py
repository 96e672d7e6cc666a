"""Kafka is away under `keyhole feed` for longer than its clients wait: it says so, and goes on, or ends by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from keyhole.cli.main import main
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from tests.support.feed_stack import FeedStack
from tests.support.waiting import LONG_SECONDS

AWAY = "Kafka is away; the feeder begins again"
# Longer than any of its clients waits for an answer, and than Kafka leaves a transaction open: 60 s.
AWAY_SECONDS = 75.0


@pytest.fixture
def broker(tmp_path: Path, jars: list[Path], java: Java) -> Iterator[LocalKafka]:
    """A broker of this test's own: it is killed."""
    with LocalKafka(tmp_path / "kafka", jars, java) as started:
        yield started


@pytest.fixture
def stack(broker: LocalKafka, application: str, tmp_path: Path) -> Iterator[FeedStack]:
    with ExitStack() as ending:
        yield FeedStack(broker.bootstrap_servers, application, tmp_path, ending)


def test_a_feeder_goes_on_or_ends_by_name_owners_are_held_again_and_each_row_counts_once(
    broker: LocalKafka, stack: FeedStack, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.send(50)
    feeder = stack.start_feeder()
    stack.all_agree()
    # Whatever has become of these: read or not, sent or not, acknowledged or not, applied or not, committed or not.
    stack.send(5_000)
    broker.kill()
    killed = time.monotonic()
    stack.comes_true(lambda: "waiting for Kafka" in feeder.output())
    assert stack.readable() >= 50, "readers go on"

    # A start ends by name.
    monkeypatch.setenv("KEYHOLE_JOB_KAFKA_DEADLINE_SECONDS", "3")
    assert main(stack.words("--reduce", "order=count")) == 1
    said = capfd.readouterr().err
    assert f"Kafka at {broker.bootstrap_servers} could not" in said
    assert "Is it running, and is this its address?" in said

    stack.comes_true(lambda: feeder.output().count(AWAY) >= 3 or feeder.exit_code is not None)
    stack.comes_true(lambda: time.monotonic() > killed + AWAY_SECONDS)
    broker.start()
    stack.send(50)

    def goes_on() -> bool:
        """By itself, or it has ended by name, and is started again, as a supervisor does."""
        nonlocal feeder
        if feeder.exit_code is not None:
            assert feeder.exit_code == 1
            assert "Start it again: it goes on where this one was" in feeder.output()
            feeder = stack.start_feeder()
        return stack.readable() == stack.total and stack.is_confirmed()

    stack.comes_true(goes_on)
    stack.all_agree()
    stack.send(50)
    stack.all_agree()
    assert feeder.terminate(LONG_SECONDS) == 0
    assert "stopped: " in feeder.output()


@pytest.mark.parametrize("how", ["told to end", "killed"])
def test_a_feeder_that_ends_while_kafka_is_away_is_followed_by_the_next_start(
    broker: LocalKafka, stack: FeedStack, how: str
) -> None:
    stack.send(50)
    feeder = stack.start_feeder()
    stack.all_agree()
    stack.send(5_000)
    broker.kill()
    stack.comes_true(lambda: AWAY in feeder.output())
    if how == "killed":
        feeder.kill()
    else:
        assert feeder.terminate(LONG_SECONDS) == 0, feeder.output()
    broker.start()
    stack.send(50)
    feeder = stack.start_feeder()
    stack.all_agree()
    assert feeder.terminate(LONG_SECONDS) == 0
