"""What can't be on a command line: exit code 2, one line that says what to write, and nothing is asked or made."""

from __future__ import annotations

import ast
import os
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

from keyhole.cli.arguments import parser_of_all
from keyhole.cli.main import main
from keyhole.client.bounds import bounds_of

ROOT = Path(__file__).resolve().parents[2]
KAFKA = ["--bootstrap-servers", "127.0.0.1:1"]
FEED = ["feed", "a/b", "--topic", "t", "--key", "k"]

WRONG: dict[str, tuple[list[str], str]] = {
    "a command that there is not": (["nope"], "keyhole: there is no command 'nope'; `keyhole --help` says more"),
    "a command that is misspelt": (["gett", "a/b", "k"], "there is no command 'gett' (did you mean get?); `keyhole --"),
    "a verb that is misspelt": (["savepoint", "creat"], "keyhole savepoint: there is no command 'creat' (did you mean"),
    "an option that there is not": (
        ["states", "--nope"],
        "keyhole states: unrecognized arguments: --nope; `keyhole states --help` says more",
    ),
    "an option that is misspelt": (["states", "--jsn"], "unrecognized arguments: --jsn (did you mean --json?); `keyho"),
    "an option like none": (["get", "a/b", "--no-such", "k"], "unrecognized arguments: --no-such; `keyhole get --h"),
    "a word too many": (["dev", "job.py", "more.py"], "keyhole dev: unrecognized arguments: more.py; `keyhole dev --h"),
    "an option before the command": (
        ["--proxy", "a:7400", "states"],
        "keyhole: --proxy stands before the command: write it behind, as in `keyhole COMMAND --proxy ...`",
    ),
    "no key": (["get", "a/b"], "keyhole get: the following arguments are required: KEY; `keyhole get --help`"),
    "no state": (["get", "nope", "k"], "'nope' names no state; write APPLICATION/STATE"),
    "a state of three names": (["describe", "a/b/c"], "the state's name is 'b/c', but must be 1 to 100 letters"),
    "an empty application": (["retire", ""], "the name is '', but must be"),
    "an epoch below 0": (["get", "a/b", "k", "--min-epoch", "-1"], "--min-epoch: -1 is too few"),
    "no epoch": (["scan", "a/b", "--min-epoch", "soon"], "'soon' is no whole number"),
    "an empty proxy": (["states", "--proxy", ""], "the target is empty; give host:port of a client proxy"),
    "a URL as proxy": (["get", "a/b", "k", "--proxy", "http://a:1"], "a URL: leave out http://"),
    "a port too high": (["drain", "s", "--proxy", "a:70000"], "whose port is no number from 1 to 65535"),
    "a key group below all": (["move", "a/b", "-1", "--to", "s"], "-1 is too few; give 0 or more"),
    "two tokens of which one is none": (["top", "--proxy", "a:1,b:c"], "'b:c', whose port is no number"),
    "a namespace without pods": (["status", "--namespace", "n"], "--namespace says where the pods of --pods are"),
    "pods again and again": (["status", "--pods", "--watch"], "give one of them"),
    "an interval of one look": (["status", "--interval", "3"], "give --watch, too, or leave them out"),
    "a count of one look": (["status", "--count", "3"], "--count and --interval are of looking again and again"),
    "a token of one key": (["scan", "a/b", "k", "--after", "x"], "--after goes on with all keys of a state"),
    "servers without a port": (["retire", "a", "--servers", "s1:7410,nope"], "'nope' is not HOST:PORT"),
    "no servers": (["verify", "a/b", *KAFKA, "--servers", ""], "'' is not HOST:PORT"),
    "servers and none": (
        ["drop", "a", "q", *KAFKA, "--servers", "a:1", "--no-servers"],
        "--no-servers: not allowed with argument --servers",
    ),
    "a topic without a name": (["feed", "a/b", "--topic", ""], "'' can't be a topic's name"),
    "a topic with a blank": (["up", "--topic", "my orders"], "'my orders' can't be a topic's name"),
    "a topic without partitions": (["dev", "job.py", "--topic", "a:0"], "0 is too few"),
    "a type that there is not": ([*FEED, "--value", "v:nope", *KAFKA], "a state can't hold values of type nope"),
    "two ways to keep a row": ([*FEED, "--value", "v", "--reduce", "a=sum"], "give one of the two"),
    "no address of Kafka": ([*FEED, "--value", "v"], "give --bootstrap-servers HOST:PORT, or set"),
    "servers that are none": ([*FEED, "--value", "v", *KAFKA, "--servers", "nope"], "'nope'"),
    "a job of its own, verified": (["job", "temperature_monitor", "--external", "--verify"], "leave them out, or that"),
    "no address at all": (["doctor", "--bootstrap-servers", ""], "'' has an empty address; write HOST:PORT"),
    "an empty address": (["savepoint", "create", "a", "--to", "x", "--bootstrap-servers", "k:1,"], "an empty address"),
    "more days than there are": (["token", "n", "--to", "t", "--days", "99999999"], "give at most 365000"),
    "a pair that is none": (["savepoint", "create", "a", "--to", "x", *KAFKA, "--checkpoint", "q"], "is not QUERY=DIR"),
    "updates of no time": (["size", "--keys", "1M", "--updates", "5M"], "--updates: '5M' doesn't say per which time"),
    "a shell that there is not": (["env", "--shell", "csh"], "invalid choice: 'csh'"),
}


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("KEYHOLE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("words", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_can_not_be_is_refused_in_one_line_before_anything_is_asked(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(words)
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert says in printed.err
    assert printed.err.startswith("keyhole")
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder_of_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["env", "--dir", "file"]) == 1
    said = capsys.readouterr().err
    assert "nothing of `keyhole up` runs in file: start it by `keyhole up`; or, where it was started in another" in said
    assert "change to that one, or name its data by --dir" in said


@pytest.mark.parametrize("seconds", ["1e300", "1e12"])
def test_any_age_may_be_asked_for(seconds: str) -> None:
    asked = parser_of_all().parse_args(["get", "a/b", "k", "--max-staleness", seconds])
    assert bounds_of("always", timedelta(seconds=asked.max_staleness), 0).max_staleness_ms == 2**32 - 1


def test_each_extra_that_a_message_names_is_one() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named: dict[str, set[str]] = {}
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "services").rglob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            function = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            at = {"require": 1, "Program": 1, "with_extra": 0}.get(function)
            of = call.args[at] if at is not None and len(call.args) > at else None
            if isinstance(of, ast.Constant) and isinstance(of.value, str):
                named.setdefault(str(path), set()).update(of.value.split(","))
    assert len(named) >= 5
    assert {path: names - known.keys() for path, names in named.items() if names - known.keys()} == {}
