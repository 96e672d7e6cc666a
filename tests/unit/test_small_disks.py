"""The small disks of the tests are gone with the test process, however that ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.disks import NoDiskError, mounted
from tests.support.waiting import until

MIB = 1 << 20
HOLD = """
import sys, time
from pathlib import Path
from tests.support.disks import mounted
with mounted(Path(sys.argv[1]), 1 << 20):
    print("mounted", flush=True)
    time.sleep(600)
"""


def is_mounted(path: Path) -> bool:
    return str(path) in Path("/proc/self/mounts").read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    path.mkdir()
    try:
        with mounted(path, MIB):
            assert is_mounted(path)
    except NoDiskError as error:
        pytest.skip(str(error))
    return path


def test_a_disk_is_gone_after_its_context_and_after_what_failed_in_it(path: Path) -> None:
    assert not is_mounted(path)
    with pytest.raises(OSError, match="No space left"), mounted(path, MIB), (path / "open").open("wb") as file:
        file.write(bytes(2 * MIB))
    assert not is_mounted(path)


def test_a_killed_process_leaves_no_disk_behind(path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout as output:
        assert output.readline() == "mounted\n"
        assert is_mounted(path)
        holder.kill()
        holder.wait()
    until(lambda: not is_mounted(path))
