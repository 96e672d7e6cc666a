"""`keyhole savepoint`, killed at each of its steps, on a real Kafka: run again, it ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
import pytest

from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.clock import SystemClock
from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.run import QueryRun
from keyhole.errors import ChangelogRecreated, SavepointMismatch
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.processes import Child
from keyhole.protocol.control import read_control
from keyhole.savepoint.create import create
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.listing import listing, load
from keyhole.savepoint.manifest import MANIFEST
from keyhole.savepoint.restore_application import plan_of, restore
from keyhole.savepoint.restore_plan import RestoreOptions
from tests.support import every_kind
from tests.support.every_kind import MAIN, RULES, STATES, Content
from tests.support.killable_savepoint import start, steps_in, worth_a_kill
from tests.support.waiting import LONG_SECONDS, until

Result = TypeVar("Result")

# Several processes start at a time, and speak to one Kafka: of each of them, and of one call of theirs.
ENDED_SECONDS = 5 * LONG_SECONDS
PATIENT = ["--timeout", str(LONG_SECONDS)]


@dataclass(frozen=True)
class Original:
    """An application, its Spark checkpoint, and a savepoint of it."""

    bootstrap_servers: str
    application: str
    directory: Path

    @classmethod
    def made(cls, bootstrap_servers: str, directory: Path) -> Original:
        of = cls(bootstrap_servers, f"app-{uuid.uuid4().hex[:10]}", directory)
        changelog = KafkaChangelog(bootstrap_servers, of.application)
        every_kind.write_application(changelog, of.application, of.checkpoint)
        of.take(Folder(str(of.savepoint)))
        return of

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def savepoint(self) -> Path:
        return self.directory / "savepoint"

    def arguments(self, to: Path) -> list[str]:
        """What `keyhole savepoint` is given to take one."""
        kafka = ["--bootstrap-servers", self.bootstrap_servers]
        checkpoint = ["--checkpoint", f"{MAIN}={self.checkpoint}"]
        return ["create", self.application, *kafka, *checkpoint, "--to", str(to), *PATIENT]

    def take(self, target: Folder) -> None:
        """The same in this process."""
        changelog = KafkaChangelog(self.bootstrap_servers, self.application)
        create(self.application, changelog, target, {MAIN: Folder(str(self.checkpoint))}, SystemClock())

    def restored(self, name: str, directory: Path) -> Restored:
        return Restored(self, f"{self.application}-{name}", directory / name)


@dataclass(frozen=True)
class Restored:
    """What becomes of the savepoint under another name, with other names and numbers of key groups here and there."""

    original: Original
    application: str
    directory: Path
    renamed: Mapping[str, str] = field(default_factory=lambda: {"operator": "subtasks"})
    epochs: Mapping[str, int] = field(default_factory=lambda: {MAIN: 4, RULES: 4})

    @property
    def changelog(self) -> KafkaChangelog:
        return KafkaChangelog(self.original.bootstrap_servers, self.application)

    @property
    def options(self) -> RestoreOptions:
        places = {query: str(self.directory / "checkpoints" / query) for query in (MAIN, RULES)}
        return RestoreOptions(self.application, {"sums": 3}, self.renamed, checkpoints=places)

    def arguments(self, *more: str) -> list[str]:
        """What `keyhole savepoint` is given."""
        options = self.options
        pairs = {"--key-groups": options.key_groups, "--rename": options.states, "--checkpoint": options.checkpoints}
        return [
            *("restore", str(self.original.savepoint), "--bootstrap-servers", self.original.bootstrap_servers),
            *("--application", self.application),
            *(word for option, of in pairs.items() for name, to in of.items() for word in (option, f"{name}={to}")),
            *PATIENT,
            *more,
        ]

    def run(self) -> bool:
        """The same in this process: whether it has taken up one that was broken off."""
        source = Folder(str(self.original.savepoint))
        _, plan = plan_of(source, self.options)
        return restore(source, plan, self.changelog, SystemClock(), LONG_SECONDS)

    def assert_whole(self) -> None:
        """All of the savepoint is there, and nothing else."""
        found, epochs = every_kind.content(self.changelog)
        wanted: Content = {}
        for name, of in STATES.items():
            renamed = self.renamed.get(name, name)
            groups = self.options.key_groups.get(name, min(2, of.key_groups))
            changed = msgspec.structs.replace(of, application=self.application, state=renamed, key_groups=groups)
            wanted[renamed] = changed, every_kind.expected(changed, name)
        assert found == wanted
        assert epochs == self.epochs
        laid = self.directory / "checkpoints" / MAIN
        files = {str(path.relative_to(laid)): path.read_text() for path in laid.rglob("*") if path.is_file()}
        # What was settled for names that have changed is there under the new ones, too.
        old, new = (every_kind.checkpoint_files(name) for name in (self.original.application, self.application))
        assert files == old | new | {"keyhole/subtasks/subtasks/1": "6"}

    @property
    def restoring(self) -> bool:
        """Whether it is on record that the application is being restored; nothing else is, before all of it is."""
        try:
            control = read_control(self.changelog.control("test").read(LONG_SECONDS), MAIN)
        except ChangelogRecreated:
            return False  # there is no such topic yet
        assert not (control.restoring and (control.states or control.complete or control.query))
        return bool(control.restoring)


@pytest.fixture(scope="module")
def original(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original.made(kafka, tmp_path_factory.mktemp("original"))


def ended(process: Child) -> int:
    code = process.wait(ENDED_SECONDS)
    assert code is not None, process.output()
    return code


def killed(directory: Path, arguments: Sequence[str], at: int, steps: Sequence[str]) -> None:
    """Runs `keyhole savepoint` up to its step of this number."""
    process = start(directory, arguments, at)
    assert ended(process) == -signal.SIGKILL, process.output()
    assert steps_in(directory) == list(steps[: at + 1])


@contextmanager
def standing_still(directory: Path, arguments: Sequence[str], at: int) -> Iterator[Child]:
    """The process as it stands at its step; it goes on at the end."""
    process = start(directory, arguments, at, "SIGSTOP")

    def stands() -> bool:
        assert process.exit_code is None, process.output()
        return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED

    until(stands, ENDED_SECONDS, 0.05, process.output)
    try:
        yield process
    finally:
        os.kill(process.pid, signal.SIGCONT)


def assert_no_query_starts(restored: Restored, *queries: str) -> None:
    config = JobConfig(restored.application, ("a:1",), restored.original.bootstrap_servers)
    for query in queries:
        with closing(restored.changelog.control(query)) as log, closing(Fleet(tuple)) as fleet:
            started = QueryRun(config, query, restored.changelog, log, fleet, SystemClock())
            with pytest.raises(SavepointMismatch, match="run `keyhole savepoint restore` again with the same options"):
                started.take()


def at_once(check: Callable[[int], Result], numbers: Sequence[int]) -> dict[int, Result]:
    """By a step's number, what its check has returned. Several at a time: nearly all of it is waiting for Kafka."""
    with ThreadPoolExecutor(6) as pool:
        return dict(zip(numbers, pool.map(check, numbers), strict=True))


@pytest.fixture(scope="module")
def restoring(original: Original, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The steps of a restore that nothing interrupts."""
    whole = original.restored("whole", tmp_path_factory.mktemp("restoring"))
    process = start(whole.directory, whole.arguments())
    assert ended(process) == 0, process.output()
    whole.assert_whole()
    return steps_in(whole.directory)


def test_a_restore_that_is_killed_at_any_step_has_all_of_the_savepoint_once_it_is_run_again(
    original: Original, restoring: Sequence[str], tmp_path: Path
) -> None:
    def check(at: int) -> bool:
        restored = original.restored(f"killed-{at}", tmp_path)
        killed(restored.directory, restored.arguments(), at, restoring)
        begun = restored.restoring
        # Where it died in a transaction on the control topic, a start waits for Kafka to end that, and is refused then.
        if begun and "what was written" not in restoring[at]:
            assert_no_query_starts(restored, "another" if at % 2 else MAIN)
        if at == len(restoring) - 1:
            with pytest.raises(SavepointMismatch, match="restored from this savepoint already: start the job"):
                restored.run()
        else:
            assert restored.run() == begun
        restored.assert_whole()
        return begun

    begun = at_once(check, worth_a_kill(restoring))
    # From its claim on, and until all is done.
    claim = restoring.index("take the id of the restore")
    assert [at for at, of in begun.items() if of] == [at for at in begun if claim <= at + 1 < len(restoring)]


def test_a_savepoint_that_is_killed_at_any_step_is_no_whole_one_and_may_be_taken_again(
    original: Original, tmp_path: Path
) -> None:
    process = start(tmp_path / "whole", original.arguments(tmp_path / "whole" / "savepoint"))
    assert ended(process) == 0, process.output()
    steps = steps_in(tmp_path / "whole")
    (whole,) = listing(Folder(str(tmp_path / "whole")), checksums=True)
    assert whole.savepoint is not None

    def check(at: int) -> str:
        directory = tmp_path / f"killed-{at}"
        killed(directory, original.arguments(directory / "savepoint"), at, steps)
        step = steps[at]
        found = [of.problem for of in listing(Folder(str(directory)), checksums=True)]
        savepoint = Folder(str(directory / "savepoint"))
        if step == "remove incomplete":
            assert found == [""]
            with pytest.raises(SavepointMismatch, match="holds a savepoint already"):
                original.take(savepoint)
        elif step == "begin incomplete":
            assert found == []
        else:
            assert "is incomplete" in found[0]
            with pytest.raises(SavepointMismatch, match="is incomplete"):
                plan_of(savepoint, RestoreOptions())
        if step != "remove incomplete":
            original.take(savepoint)
            assert savepoint.files().keys() == {MANIFEST, *(file.path for file in load(savepoint).files)}
        (sound,) = listing(Folder(str(directory)), checksums=True)
        assert sound.problem == ""
        assert sound.savepoint is not None
        # All but what differs from one to the next: its id, and when it was taken.
        assert sound.savepoint.states == whole.savepoint.states
        assert sound.savepoint.queries == whole.savepoint.queries
        return step

    reached = set(at_once(check, worth_a_kill(steps)).values())
    assert {"begin incomplete", "name incomplete", "name manifest", "remove incomplete"} < reached


def test_no_start_ends_a_restore_that_stands_still_nor_does_another_restore(
    original: Original, restoring: Sequence[str], tmp_path: Path
) -> None:
    restored = original.restored("still", tmp_path)
    at = restoring.index("commit, as its rows, what was written")
    with standing_still(restored.directory, restored.arguments(), at) as process:
        assert_no_query_starts(restored, MAIN, "another")
        other = replace(restored, directory=tmp_path / "other", renamed={})
        with pytest.raises(SavepointMismatch, match="is under way, or was broken off, with other options"):
            other.run()
    assert ended(process) == 0, process.output()
    restored.assert_whole()


ALREADY, OVERTAKEN = "restored from this savepoint already: start the job", "and goes on with it in place of this one"
WHEN_IT_WAKES = {
    "take the id of whoever declares": ALREADY,
    "commit, as whoever declares, what was written": ALREADY,
    "take the id of the restore": ALREADY,
    "take the id of its rows": OVERTAKEN,
    "go on after the commit as its rows": OVERTAKEN,
    "begin a file of a checkpoint": OVERTAKEN,
}


def test_of_two_processes_with_one_restore_one_ends_it_and_the_other_says_so_when_it_wakes(
    original: Original, restoring: Sequence[str], tmp_path: Path
) -> None:
    def check(at: int) -> None:
        restored = original.restored(f"twice-{at}", tmp_path)
        with standing_still(restored.directory, restored.arguments(), at) as process:
            restored.run()
        assert ended(process) == 1, process.output()
        assert WHEN_IT_WAKES[restoring[at]] in process.output()
        restored.assert_whole()

    at_once(check, [restoring.index(step) for step in WHEN_IT_WAKES])


def test_a_restore_goes_on_once_its_broker_is_back_and_says_what_to_do_where_that_takes_too_long(
    restoring: Sequence[str], jars: list[Path], java: Java, tmp_path: Path
) -> None:
    rows = restoring.index("go on after the commit as its rows") + 3
    with LocalKafka(tmp_path / "kafka", jars, java) as kafka:
        original = Original.made(kafka.bootstrap_servers, tmp_path / "original")

        def standing(name: str, *more: str) -> tuple[Restored, AbstractContextManager[Child]]:
            restored = original.restored(name, tmp_path)
            return restored, standing_still(restored.directory, restored.arguments(*more), rows)

        # Both have time enough for a busy broker. One of them has it for a broker that comes back late, too.
        goes_on, until_it_is_back = standing("goes-on")
        gives_up, while_it_is_away = standing("gives-up", "--timeout", "30")
        with until_it_is_back as patient, while_it_is_away as impatient:
            for restored in (goes_on, gives_up):
                assert "its rows" in steps_in(restored.directory)[-1]
            kafka.kill()
        assert ended(impatient) == 1, impatient.output()
        assert "run this again with the same options" in impatient.output()
        kafka.start()
        assert ended(patient) == 0, patient.output()
        goes_on.assert_whole()
        assert gives_up.run()
        gives_up.assert_whole()
