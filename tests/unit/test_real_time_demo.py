"""`keyhole demo --realtime`: its job's description and its recount, and what the runner waits for."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from jobs.temperature_monitor import verify_realtime
from jobs.temperature_monitor.recount import Sensor
from keyhole import Answer, Client, Source
from keyhole.changelog.settings import updates_topic_name
from keyhole.demo import command, runner
from keyhole.demo.answers_table import AnswersTable
from keyhole.demo.command import REAL_TIME, LiveAnswers
from keyhole.demo.recount import VerifiedJob
from keyhole.demo.runner import RunOptions
from keyhole.demo.signals import StopSignals
from keyhole.encoding.row import row_class
from keyhole.errors import MachineError
from keyhole.local.stack import Stack
from keyhole.model.read import Role

FIELDS = [("last", float), ("min", float), ("max", float), ("total", float), ("readings", int), ("time_ms", int)]
NOW_MS = 1_795_219_200_000  # 2026-11-21


def answer(*of: float) -> Answer:
    """Of a sensor; of none, where nothing is said."""
    source = Source("server-0", Role.OWNER, 1, None, None, 1, 1, False)
    return Answer(bool(of), row_class(FIELDS)(*of) if of else None, source)


class FakeClient:
    """Gives one answer after the other."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = iter(answers)

    def get(self, *_: object, **__: object) -> Answer:
        return next(self._answers)


class FakeStack:
    """`batches`: where those end that end at its next looks, one a look."""

    bootstrap_servers = "kafka:9092"

    def __init__(self, directory: Path, *batches: dict[int, int]) -> None:
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self._batches: Iterator[tuple[int, dict[int, int]]] = iter(enumerate(batches))

    def supervise(self) -> None:
        for number, ends in self._batches:
            for folder, text in {"offsets": f"v1\n{{}}\n{json.dumps({'readings': ends})}", "commits": "v1\n{}"}.items():
                file = self.checkpoint / folder / str(number)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return

    def said(self, name: str) -> str:
        return ""

    def failed(self, name: str, what: str) -> MachineError:
        return MachineError(f"{name}: {what}")


def run(stack: FakeStack) -> runner._DemoRun:
    console = Console(file=io.StringIO())
    fake = cast("Stack", stack)
    return runner._DemoRun(REAL_TIME, LiveAnswers(alerts=False), RunOptions(), fake, console, StopSignals(), 0.0)


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_LOOK_SECONDS", 0.0)


def test_it_runs_modules_that_there_are_on_the_state_and_the_source_of_the_demo() -> None:
    spec = REAL_TIME.spec(Path("here"), Path("here/checkpoint"), "a.jar", {})
    assert (spec.job, REAL_TIME.verify) == (
        "jobs.temperature_monitor.realtime",
        "jobs.temperature_monitor.verify_realtime",
    )
    assert spec.source == "jobs.temperature_monitor.source"
    assert all(importlib.util.find_spec(module) for module in (spec.job, spec.source, REAL_TIME.verify))
    assert (verify_realtime.APPLICATION, verify_realtime.STATE) == (command.APPLICATION, command.STATE)
    assert updates_topic_name(command.APPLICATION, command.STATE) == verify_realtime.UPDATES_TOPIC


def test_the_first_answer_is_one_that_has_a_row(tmp_path: Path) -> None:
    client = FakeClient(answer(), answer(), answer(1.5, 1.5, 1.5, 1.5, 1, NOW_MS))
    run(FakeStack(tmp_path))._await_first_answer(cast("Client", client))
    with pytest.raises(StopIteration):
        client.get()


def test_all_is_taken_once_a_batch_has_ended_with_the_topics_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "topic_ends", lambda *_: {0: 10, 1: 20})
    stack = FakeStack(tmp_path, {0: 3, 1: 9}, {0: 10, 1: 19}, {0: 10, 1: 20}, {0: 10, 1: 20})
    assert run(stack)._await_last_batch() == 3


def test_a_job_whose_batches_bring_no_more_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "topic_ends", lambda *_: {0: 10})
    monkeypatch.setattr(runner, "_BATCH_SECONDS", 0.3)
    with pytest.raises(MachineError, match="no batch with more records has ended"):
        run(FakeStack(tmp_path, *[{0: 9}] * 3))._await_last_batch()


def test_the_mean_is_made_of_the_total() -> None:
    table = AnswersTable("answers", ["a"])
    table.update([answer(1.0, 1.0, 3.0, 6.0, 4, NOW_MS)])
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(table.render())
    (line,) = [line.split() for line in capture.get().splitlines() if "server-0" in line]
    assert line[:6] == ["a", "1.00", "1.00", "3.00", "1.50", "4"]


SENSOR = Sensor([1.0, 3.0, 2.0], NOW_MS)
RIGHT = (2.0, 1.0, 3.0, 6.0, 3, NOW_MS)


def test_a_sensor_is_told_as_it_was_counted_and_its_total_to_nine_digits() -> None:
    assert verify_realtime.agrees(answer(*RIGHT), SENSOR)
    assert verify_realtime.agrees(answer(*RIGHT[:3], 6.0 + 1e-10, *RIGHT[4:]), SENSOR)


@pytest.mark.parametrize("field", range(len(RIGHT)))
def test_a_sensor_of_which_any_field_differs_is_not(field: int) -> None:
    wrong = [value + (1 if at == field else 0) for at, value in enumerate(RIGHT)]
    assert not verify_realtime.agrees(answer(*wrong), SENSOR)
    assert not verify_realtime.agrees(answer(), SENSOR)


class Record:
    def __init__(self, partition: int, offset: int, value: bytes) -> None:
        self._place, self._value = (partition, offset), value

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def value(self) -> bytes:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, NOW_MS


def reading(sensor: str, temperature: float) -> bytes:
    return json.dumps({"sensor": sensor, "time": "2026-11-21T00:00:00Z", "temperature": temperature}).encode()


def test_the_recount_counts_every_reading_and_says_which_records_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [Record(1, 0, reading("a", 2)), Record(1, 1, b"{"), Record(2, 0, reading("b", 4))]
    records.append(Record(1, 2, reading("a", 1)))
    stack = FakeStack(tmp_path, {1: 3, 2: 1})
    stack.supervise()
    monkeypatch.setattr(verify_realtime, "records_before", lambda *_: records)
    subject = VerifiedJob("k:1", "readings", 1, stack.checkpoint, tmp_path / "logs", "")
    sensors, rejected, counted = verify_realtime.count(subject)
    assert {name: dataclasses.astuple(of) for name, of in sensors.items()} == {
        "a": ([2.0, 1.0], NOW_MS),
        "b": ([4.0], NOW_MS),
    }
    assert (rejected, counted) == ({(1, 1)}, 4)


def test_the_dead_letters_are_updates_that_say_where_the_record_was(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = [Record(0, at, b'[1,"id.sensors",2,%d,0,2,1,[null],null,[]]' % at) for at in (7, 9)]
    monkeypatch.setattr(verify_realtime, "topic_ends", lambda *_: {0: 2})
    monkeypatch.setattr(verify_realtime, "records_before", lambda *_: letters)
    assert verify_realtime.refused("k:1") == {(2, 7), (2, 9)}
