"""The client in Go, built once: tests/e2e/go, as a static binary and as an image of it alone.

uv run python -m tests.support.go_client     # prints both
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.images import ROOT, image_id

SOURCES = ROOT / "tests" / "e2e" / "go"
# All of gRPC, on a busy machine.
_BUILD_SECONDS = 1200


@functools.cache
def binary() -> Path:
    """The program, in the temporary folder; built where it isn't there yet. Needs Go; blocks.

    Raises:
        RuntimeError: It can't be built; the message has what Go said.
    """
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("**/*.go"), SOURCES / "go.mod", SOURCES / "go.sum", SOURCES / "Dockerfile"]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    place = Path(tempfile.gettempdir(), f"keyhole-go-client-{digest.hexdigest()[:12]}")
    place.mkdir(exist_ok=True)
    built = place / "go-client"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _run(
                ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(place / "unfinished"), "."],
                cwd=SOURCES,
                env={**os.environ, "CGO_ENABLED": "0"},
            )
            (place / "unfinished").rename(built)
    return built


@functools.cache
def image() -> str:
    """keyhole/go-client:<hash>; its entry point is the program. Needs Go and Docker. Raises as `binary`."""
    name = f"keyhole/go-client:test-{binary().parent.name.rsplit('-', 1)[-1]}"
    if not image_id(name):
        with tempfile.TemporaryDirectory() as context:
            shutil.copy2(binary(), Path(context, "go-client"))
            _run(["docker", "build", "--file", str(SOURCES / "Dockerfile"), "--tag", name, context])
    return name


def _run(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")


if __name__ == "__main__":
    print(binary())
    print(image())
