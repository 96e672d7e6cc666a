"""What this machine has for jobs: Python, PySpark, the workers' Python, Java, Spark's connector."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from keyhole.addresses import parted
from keyhole.cli.doctor.diagnosis import Diagnosis, fault, ok, skipped, warning
from keyhole.errors import JavaMissing, KeyholeError
from keyhole.installing import with_extra
from keyhole.local.java import find_java
from keyhole.local.spark_home import other_spark

_SPARK = "4.2."
_PYTHONS = ((3, 11), (3, 13))
_TIMEOUT_SECONDS = 30.0
_CONNECT_SECONDS = 1.0
_SPARKS_OWN = "python3"
_ASKED_OF_A_WORKER = "import sys, keyhole; print('%d.%d' % sys.version_info[:2])"


def machine_findings(environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Blocks for a second or two: it runs Java, and the workers' Python."""
    version = sys.version_info[:2]
    said = f"{version[0]}.{version[1]} ({sys.executable})"
    if _PYTHONS[0] <= version <= _PYTHONS[1]:
        yield ok("Python", said)
    else:
        yield fault("Python", f"it is {said}", "Keyhole needs 3.11 to 3.13")
    if importlib.util.find_spec("pyspark") is None:
        yield skipped(
            "jobs",
            "PySpark is not installed, so that none run here",
            f"where they are to: install {with_extra('spark')}",
        )
        return
    spark = importlib.metadata.version("pyspark")
    if spark.startswith(_SPARK):
        yield ok("PySpark", spark)
    else:
        yield fault("PySpark", f"it is {spark}, and Keyhole needs {_SPARK}x", f"install {with_extra('spark')}")
    if why := other_spark(environ):
        yield fault("SPARK_HOME", why, "unset SPARK_HOME: jobs then run on PySpark's own Spark")
    yield from _workers(environ)
    try:
        java = find_java(environ)
        yield ok("Java", f"{java.version} ({java.executable})")
    except JavaMissing as error:
        yield fault("Java", error.message, "see there: Spark and Kafka don't start without")
    yield from _connector(environ)


def _workers(environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    named = environ.get("PYSPARK_PYTHON")
    # As Spark has it. Sessions of keyhole.spark.session take the driver's Python, whatever this is.
    python, wrong = (_SPARKS_OWN, warning) if named is None else (named, fault)
    about = "Python of Spark's workers"
    todo = f"export PYSPARK_PYTHON={sys.executable}, which has Keyhole"
    found = shutil.which(python, path=environ.get("PATH", ""))
    if found is None:
        yield wrong(about, f"{python or 'PYSPARK_PYTHON, which is empty,'} is not there", todo)
        return
    try:
        done = subprocess.run(
            [found, "-c", _ASKED_OF_A_WORKER],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield wrong(about, f"{found} can't be run: {error}", todo)
        return
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        yield wrong(about, f"{found} can't import keyhole: {lines[-1] if lines else 'it says nothing'}", todo)
    elif done.stdout.strip() != here:
        yield wrong(about, f"{found} is Python {done.stdout.strip()}, and the driver's is {here}", todo)
    else:
        yield ok(about, f"{found} has Keyhole")


def _connector(environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    about = "Spark's Kafka connector"
    if importlib.util.find_spec("jgo") is None:
        yield skipped(about, "not looked for: `keyhole jars` is not installed", f"install {with_extra('jars')}")
        return
    from keyhole.local.jars import JarSet, default_cache_dir, is_cached, locked

    jars, cache = locked(JarSet.SPARK_KAFKA), default_cache_dir(environ)
    missing = [jar for jar in jars if not is_cached(jar, cache)]
    if missing:
        yield warning(
            about,
            f"{len(missing)} of its {len(jars)} jars are not in {cache}",
            "run `keyhole jars` while this machine has a network; jobs with a connector of their own need none of it",
        )
    else:
        yield ok(about, f"{len(jars)} jars in {cache}")


def way_findings(addresses: Sequence[str]) -> Iterator[Diagnosis]:
    """Whether jobs here would reach the state servers: each is connected to, for a second at most."""
    for address in addresses:
        about = f"way to {address}"
        try:
            host, port = parted(address, "the state server")
            with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
                yield ok(about, "jobs on this machine reach the state server")
        except (OSError, KeyholeError) as error:
            yield skipped(
                about,
                f"this machine does not reach the state server ({error})",
                "jobs here would have to; where they run elsewhere, as in Kubernetes, that is as it should be",
            )
