"""The committed code of the protos is what the generator makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    # protoc finds its plugins beside the interpreter, also where the environment is not activated.
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [sys.executable, str(ROOT / "protos" / "generate.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=300, env=environ)
    committed, fresh = ROOT / "src" / "keyhole" / "v1", tmp_path / "keyhole" / "v1"
    names = {path.name for path in fresh.iterdir()}
    assert {path.name for path in committed.iterdir() if path.suffix in {".py", ".pyi"}} == names
    stale = [name for name in sorted(names) if (committed / name).read_bytes() != (fresh / name).read_bytes()]
    assert not stale, f"run `uv run python protos/generate.py`: {stale}"
