"""`keyhole up`, `down` and `env` without what they start: what is recorded, who holds the folder, and what is said."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from keyhole.cli.main import main
from keyhole.errors import JavaMissing, MachineError
from keyhole.local.stack_ports import StackPorts
from keyhole.up import bringing_up
from keyhole.up.bringing_up import UpOptions, follow, moved, ports_wanted, up
from keyhole.up.exports import exports, hint, proxy_here, running, variables
from keyhole.up.home import Home, Recorded
from keyhole.up.known_process import KnownProcess, process_of
from keyhole.up.supervisor import UpReport, end_leftovers
from keyhole.up.taking_down import down
from tests.support.waiting import LONG_SECONDS, until

PORTS = StackPorts(9092, (7410, 7411), 7400, 7402, 7420)
HOLDS = """
import sys
from pathlib import Path
from keyhole.up.home import Home
with Home(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / ".keyhole")
    home.make()
    return home


@pytest.fixture
def supervisor(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the folder, as one does that has started all, and ends at SIGTERM."""
    command = [sys.executable, "-c", HOLDS, str(home.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True) as process:
        yield process
        process.kill()


def console() -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    return Console(file=screen, width=40, highlight=False), screen


def recorded(home: Home, supervisor: KnownProcess | None = None, **more: object) -> Recorded:
    made = Recorded(ports=PORTS, data=str(home.data), supervisor=supervisor, serves=supervisor is not None)
    made = msgspec.structs.replace(made, **more)
    home.write(made)
    return made


def test_what_is_recorded_is_read_again(home: Home) -> None:
    assert home.read() is None
    made = recorded(home, KnownProcess(7, "then"), children={"proxy": KnownProcess(8, "now")}, failure="why")
    assert home.read() == made
    assert made.servers == "127.0.0.1:7410,127.0.0.1:7411"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ports": 1}', '{"version": 2}'])
def test_a_broken_file_is_told_with_what_to_do(home: Home, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    home.file.write_text(text)
    for command in ("env", "up", "down"):
        assert main([command, "--dir", str(home.path)]) == 1
        said = capsys.readouterr().err
        assert f"{home.file} is not what `keyhole up` has written" in said
        assert "delete that file" in said


def test_the_file_of_a_later_version_is_refused(home: Home) -> None:
    recorded(home)
    home.file.write_text(json.dumps(json.loads(home.file.read_text()) | {"version": 2}))
    with pytest.raises(MachineError, match="its version is 2, and this Keyhole knows 1"):
        home.read()


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    assert main(["up", "--dir", str(tmp_path)]) == 1
    assert "has other things in it: choose a new folder by --dir" in capsys.readouterr().err
    assert main(["down", "--delete", "--dir", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["up", "--dir", str(tmp_path / "file" / "below")]) == 1
    assert "can't be written (not a directory): choose another folder by --dir" in capsys.readouterr().err


def test_without_java_it_is_told_which_one_is_needed(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["up", "--dir", str(home.path)]) == 1
    assert "install a JDK of version 17 or later" in capsys.readouterr().err


def test_a_second_command_at_the_same_time_is_refused(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with home.alone():
        for command in ("up", "down"):
            assert main([command, "--dir", str(home.path)]) == 1
            assert "another `keyhole up` or `keyhole down` is under way in" in capsys.readouterr().err


def test_a_folder_is_held_until_its_process_ends(home: Home, supervisor: subprocess.Popen[bytes]) -> None:
    assert home.runs()
    with pytest.raises(MachineError, match="a `keyhole up` runs already"), home.held():
        raise AssertionError
    supervisor.kill()
    supervisor.wait()
    assert not home.runs()


def test_the_holder_notices_that_folder_or_file_is_gone(home: Home) -> None:
    recorded(home)
    with home.held() as still_there:
        assert still_there()
        home.file.unlink()
        assert not still_there()
        home.remove()
        assert not still_there()
        home.make()
        recorded(home)
        assert not still_there(), "it is another one's"


def test_a_second_up_says_what_runs(home: Home, supervisor: subprocess.Popen[bytes]) -> None:
    recorded(home, process_of(supervisor.pid))
    to, screen = console()
    assert up(home, UpOptions(), {}, to) == 0
    said = screen.getvalue()
    assert f"Keyhole runs here already, as process {supervisor.pid}." in said
    for address in ("127.0.0.1:9092", "127.0.0.1:7410", "127.0.0.1:7411", "127.0.0.1:7400", "http://127.0.0.1:7402"):
        assert address in said
    assert f'  eval "$(keyhole env --dir {home.path})"' in said.replace("uv run ", "")
    assert "end it first" not in said
    assert up(home, UpOptions(servers=3), {}, to) == 0
    assert "To start it otherwise, end it first." in screen.getvalue()


def test_what_only_starts_is_not_told_as_running(home: Home, supervisor: subprocess.Popen[bytes]) -> None:
    recorded(home, process_of(supervisor.pid), serves=False)
    with pytest.raises(MachineError, match="not ready yet"):
        up(home, UpOptions(), {}, console()[0])
    with pytest.raises(MachineError, match="not ready yet"):
        running(home)


def test_why_the_last_one_has_ended_is_told(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_java(_: object) -> None:
        raise JavaMissing("none")

    monkeypatch.setattr(bringing_up, "find_java", find_java)
    recorded(home, failure="Kafka has ended\nmore")
    to, screen = console()
    with pytest.raises(JavaMissing):
        up(home, UpOptions(), {}, to)
    assert screen.getvalue() == "what ran here has ended by itself: Kafka has ended\n"


def test_ports_stay_and_more_servers_get_the_next_ones(home: Home) -> None:
    assert ports_wanted(None, None) == StackPorts(9092, (7410,), 7400, 7402, 7420)
    assert ports_wanted(None, 2).servers == (7410, 7411)
    before = recorded(home, ports=StackPorts(20_000, (20_001, 20_002), 20_003, 20_004, 20_005))
    assert ports_wanted(before, None) == before.ports
    assert ports_wanted(before, 3).servers == (20_001, 20_002, 7412)
    assert ports_wanted(before, 1).servers == (20_001,)


def test_a_port_that_is_anothers_is_told() -> None:
    got = StackPorts(9092, (7410, 20_000), 20_001, 7402, 7420)
    assert list(moved(PORTS, got)) == [
        "port 7411 is another process's: server-1 has 20000",
        "port 7400 is another process's: the client proxy has 20001",
    ]


@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        ([UpReport(starting="Kafka"), UpReport(starting="proxy"), UpReport(serves=True)], None),
        ([UpReport(starting="Kafka"), UpReport(failure="no room")], "no room"),
        ([UpReport(starting="Kafka")], ""),
        ([UpReport(starting="proxy again: [a[/b] [red]")], ""),
        ([], ""),
    ],
)
def test_what_is_started_is_shown_until_all_serves(words: list[UpReport], outcome: str | None) -> None:
    read, write = os.pipe()
    os.write(write, b"".join(msgspec.json.encode(one) + b"\n" for one in words))
    os.close(write)
    to, shown = console()
    assert follow(read, to, 0.0) == outcome
    os.close(read)
    steps = [one.starting for one in words if one.starting]
    assert [line for line in shown.getvalue().splitlines() if not line.endswith(" s")] == [
        f"starting {step}" for step in steps
    ]


def test_down_ends_what_holds_the_folder_and_says_so_again(
    home: Home, supervisor: subprocess.Popen[bytes], sleeper: subprocess.Popen[bytes]
) -> None:
    """A child that outlives its supervisor is ended, too."""
    home.data.mkdir()
    recorded(home, process_of(supervisor.pid), children={"proxy": process_of(sleeper.pid)})
    to, screen = console()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keyhole.up.supervisor.LEFTOVER_SECONDS", 0.1)
        assert down(home, to, delete=False) == 0
    assert supervisor.wait(LONG_SECONDS) == -signal.SIGTERM
    assert sleeper.wait(LONG_SECONDS) == -signal.SIGKILL
    assert screen.getvalue().startswith("ended; the data stay in ")
    left = home.read()
    assert left is not None
    assert (left.supervisor, left.children, left.ports) == (None, {}, PORTS)
    assert down(home, to, delete=False) == 0
    assert "nothing runs here; the data stay in " in screen.getvalue()


def test_down_deletes_the_folder_if_it_is_told_to_and_says_what_goes(home: Home) -> None:
    home.data.mkdir()
    (home.data / "much").write_bytes(bytes(2_000_000))
    recorded(home)
    to, screen = console()
    assert down(home, to, delete=True) == 0
    assert f"deleting {home.path}: Kafka's data, the stores and the logs, " in screen.getvalue()
    assert not home.path.exists()
    assert down(home, to, delete=True) == 0
    assert (
        f"nothing of `keyhole up` is in {home.path}: change to the folder in which it was started" in screen.getvalue()
    )


def test_of_one_without_data_nothing_is_left(home: Home) -> None:
    recorded(home, ephemeral=True, data="")
    assert down(home, console()[0], delete=False) == 0
    assert not home.path.exists()


def test_checkpoints_of_jobs_that_ran_elsewhere_stay_unless_all_is_to_go(home: Home) -> None:
    """A job that runs without `keyhole up` keeps its place there; of a stack without data the folder went with it."""
    offsets = home.path / "checkpoints" / "totals" / "offsets"
    offsets.mkdir(parents=True)
    recorded(home, ephemeral=True, data="")
    to, screen = console()
    assert down(home, to, delete=False) == 0
    assert "the checkpoints of jobs stay in" in screen.getvalue()
    assert [path.name for path in home.path.iterdir()] == ["checkpoints"]
    assert offsets.is_dir()
    home.make()  # and another one begins there
    recorded(home)
    assert down(home, to, delete=True) == 0
    assert "the checkpoints and the logs" in screen.getvalue()
    assert not home.path.exists()


def test_a_process_with_the_number_of_one_that_has_ended_is_a_stranger(
    home: Home, sleeper: subprocess.Popen[bytes]
) -> None:
    stranger = KnownProcess(sleeper.pid, "another birth")
    assert not stranger.alive
    stranger.send(signal.SIGKILL)
    stranger.kill_group()
    end_leftovers(recorded(home, stranger, children={"kafka": stranger}))
    assert down(home, console()[0], delete=False) == 0
    assert process_of(sleeper.pid).alive


def test_a_process_is_known_until_it_has_ended(sleeper: subprocess.Popen[bytes]) -> None:
    known = process_of(sleeper.pid)
    assert known.alive
    assert known == process_of(sleeper.pid)
    assert not known.wait(0.01)
    known.kill_group()
    # Nobody has asked for its exit code yet.
    until(lambda: not known.alive)
    sleeper.wait()
    assert not known.alive
    assert not process_of(sleeper.pid).alive


def test_a_folder_with_spaces_in_its_name_is_one_word_of_what_is_to_be_typed(tmp_path: Path) -> None:
    spaced = Home(tmp_path / "my work")
    assert shlex.split(f"keyhole down{spaced.option}") == ["keyhole", "down", "--dir", str(spaced.path)]


def test_the_shell_reads_what_is_exported(home: Home) -> None:
    given = variables(recorded(home), "/some where/it's/python")
    script = exports(given, "sh") + "".join(f'echo "${name}"\n' for name in given)
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(given.values())
    assert given["KEYHOLE_JOB_SERVERS"] == "127.0.0.1:7410,127.0.0.1:7411"
    assert given["KEYHOLE_HTTP"] == "http://127.0.0.1:7402"
    lines = exports(given, "fish").splitlines()
    assert [shlex.split(line.removesuffix(";"))[:3] for line in lines] == [["set", "-gx", name] for name in given]


def test_checkpoints_go_where_the_states_go(home: Home) -> None:
    kept, gone = recorded(home), recorded(home, ephemeral=True, data="/tmp/keyhole-1")
    assert variables(kept, "")["KEYHOLE_CHECKPOINTS"] == str(home.path / "checkpoints")
    assert variables(gone, "")["KEYHOLE_CHECKPOINTS"] == "/tmp/keyhole-1/checkpoints"
    home.remove()
    home.path.joinpath("checkpoints", "totals").mkdir(parents=True)
    home.make()
    assert home.there


def test_a_reader_follows_a_port_that_moved(
    home: Home, supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.path.parent)
    assert proxy_here({}) == "127.0.0.1:7400"
    recorded(home, process_of(supervisor.pid), ports=dataclasses.replace(PORTS, proxy=40123))
    assert proxy_here({}) == "127.0.0.1:40123"
    assert proxy_here({"KEYHOLE_PROXY": "far:7400"}) == "far:7400"
    home.remove()
    assert proxy_here({}) == "127.0.0.1:7400"


def test_where_nothing_runs_nothing_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--dir", str(tmp_path / "none")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "start it by `keyhole up`" in said.err


def test_whom_no_proxy_answers_is_told_where_one_is(home: Home, supervisor: subprocess.Popen[bytes]) -> None:
    assert "`keyhole up` starts one" in hint(home, "127.0.0.1:7400")
    assert hint(home, "far:7400") == ""
    recorded(home, process_of(supervisor.pid))
    assert "give --proxy 127.0.0.1:7400" in hint(home, "other:7400")
    assert "its log is" in hint(home, "127.0.0.1:7400")
    supervisor.kill()
    supervisor.wait()
    assert "does not run now: `keyhole up` starts it again" in hint(home, "127.0.0.1:7400")


@pytest.mark.parametrize("seconds", ["1", "0.001"])
def test_the_hint_is_part_of_the_error_also_where_the_time_is_over_before(
    home: Home, seconds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home.path.parent)
    recorded(home)
    assert main(["states", "--proxy", "127.0.0.1:1", "--timeout", seconds]) == 1
    assert "What `keyhole up` has made in .keyhole does not run now" in capsys.readouterr().err


@pytest.mark.parametrize("topic", [":2", "a:0", "a:many"])
def test_a_topic_that_is_none_is_wrong_usage(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["up", "--topic", topic])
    assert caught.value.code == 2
    assert "--topic" in capsys.readouterr().err
