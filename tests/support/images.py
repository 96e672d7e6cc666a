"""The images of this working tree, built once: the tag is a hash of what goes into them.

    uv run python -m tests.support.images state-server client-proxy     # builds what lacks, prints names and sizes

KEYHOLE_BASE_IMAGE: what they are built from; default: keyhole-base:bookworm where Docker has it, else the Dockerfile's.
KEYHOLE_IMAGE_TAG: images that were built elsewhere are taken as they are, and none is built.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("state-server", "client-proxy", "metrics-exporter", "feed", "cli", "spark-job", "kafka")
# As .dockerignore lets them in, but for README.md, which nothing that runs reads.
_INPUTS = ("Dockerfile", ".dockerignore", "pyproject.toml", "uv.lock", "src", "services", "jobs", "protos")
_LOCAL_BASE = "keyhole-base:bookworm"
_BUILD_SECONDS = 1800
# As its makers' image has it: the folder of the volume, and the user nobody.
_PROMETHEUS = """\
ARG BASE_IMAGE=python:3.13-slim-bookworm
FROM ${BASE_IMAGE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus >/dev/null \
    && rm -rf /var/lib/apt/lists/* && mkdir -p /prometheus && chown nobody /prometheus
USER nobody
ENTRYPOINT ["/usr/bin/prometheus"]
"""


@functools.cache
def base_image() -> str:
    """What the images are built from; empty: the Dockerfile's default."""
    chosen = os.environ.get("KEYHOLE_BASE_IMAGE", "")
    return chosen or (_LOCAL_BASE if image_id(_LOCAL_BASE) else "")


@functools.cache
def tag() -> str:
    """The same for all targets, so that a chart needs one."""
    if given := os.environ.get("KEYHOLE_IMAGE_TAG"):
        return given
    digest = hashlib.sha256(image_id(base_image()).encode() if base_image() else b"")
    for path in _files():
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"test-{digest.hexdigest()[:12]}"


def image(target: str) -> str:
    """The image's name; builds it where Docker lacks it. Blocks; processes that build take turns.

    Raises:
        RuntimeError: It can't be built; the message has the end of what Docker said.
    """
    name = f"keyhole/{target}:{tag()}"
    if image_id(name):
        return name
    if "KEYHOLE_IMAGE_TAG" in os.environ:
        raise RuntimeError(f"KEYHOLE_IMAGE_TAG names {name}, which Docker has not: build it, or unset the variable")
    with Path(tempfile.gettempdir(), "keyhole-images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Somebody else may have built it meanwhile.
        if not image_id(name):
            _build(target, name)
    return name


def prometheus() -> str:
    """The name of an image with Debian's Prometheus, in place of one that can't be pulled everywhere; built likewise.

    Raises:
        RuntimeError: As `image`.
    """
    name = f"keyhole-test/prometheus:{hashlib.sha256(_PROMETHEUS.encode()).hexdigest()[:12]}"
    if not image_id(name):
        base = ["--build-arg", f"BASE_IMAGE={base_image()}"] if base_image() else []
        command = ["docker", "build", "--network", "host", *base, "--tag", name, "-"]
        done = subprocess.run(
            command, input=_PROMETHEUS, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return name


def image_id(name: str) -> str:
    """Docker's id of an image; empty: it has none of the name."""
    done = _docker("image", "inspect", "--format", "{{.Id}}", name)
    return done.stdout.strip() if done.returncode == 0 else ""


def size_bytes(name: str) -> int:
    """Of all its layers, unpacked."""
    return int(_docker("image", "inspect", "--format", "{{.Size}}", name).stdout)


def _files() -> Iterator[Path]:
    for name in _INPUTS:
        place = ROOT / name
        found = place.rglob("*") if place.is_dir() else [place]
        yield from sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _build(target: str, name: str) -> None:
    base = ["--build-arg", f"BASE_IMAGE={base_image()}"] if base_image() else []
    # Package clients in a build see the network as they do outside of it.
    command = ["build", "--network", "host", *base, "--target", target, "--tag", name, str(ROOT)]
    done = _docker(*command, seconds=_BUILD_SECONDS)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"docker {' '.join(command)} failed:\n{said}")


def _docker(*arguments: str, seconds: int = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=seconds, check=False)


if __name__ == "__main__":
    for one in sys.argv[1:] or TARGETS:
        built = image(one)
        print(f"{built}  {size_bytes(built) / 1e6:.0f} MB")
