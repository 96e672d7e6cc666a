"""What docs/modules.py prints of the library and the services: each module, with what it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("module_map", ROOT / "docs" / "modules.py")
assert spec is not None
assert spec.loader is not None
module_map = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module_map)


def test_every_module_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert module_map.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 500
    # Of services alone nothing is said: each of them is a package with a text of its own.
    assert [line for line in lines if len(line.split()) < 3 and line != "."] == []


def test_a_folder_is_found_by_its_name_in_the_library_and_from_the_root(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for name in ("changelog/kafka", "src/keyhole/changelog/kafka", "services/client_proxy"):
        assert module_map.main([name]) == 0
        found.append(capsys.readouterr().out.splitlines())
    assert found[0] == found[1]
    assert [line.split()[0] for line in found[0]] == sorted(line.split()[0] for line in found[0])
    (line,) = [line for line in found[2] if line.startswith("forwarding/scan.py ")]
    assert line.endswith(".")


def test_a_folder_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert module_map.main(["changelog", "nowhere"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "there is no such folder; docs/architecture.md lists those of the library\n")
