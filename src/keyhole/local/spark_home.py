"""Whether the Spark that SPARK_HOME names is one that this Python's PySpark can run on: PySpark trusts it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

from keyhole.errors import MachineError

_CORE = re.compile(r"spark-core_[\d.]+-(\d+\.\d+)\S*\.jar")


def refuse_other_spark(environ: Mapping[str, str]) -> None:
    """Passes where a job can run on the Spark that SPARK_HOME names, or where that is not set.

    Raises:
        MachineError: It can't; the message says why, and what to do.
        importlib.metadata.PackageNotFoundError: There is no PySpark here.
    """
    if why := other_spark(environ):
        raise MachineError(f"{why}: unset SPARK_HOME, so that the job runs on PySpark's own Spark")


def other_spark(environ: Mapping[str, str]) -> str:
    """Why it can't be, for a person; empty: it can, or SPARK_HOME is not set. Looks at the disk.

    Raises:
        importlib.metadata.PackageNotFoundError: There is no PySpark here.
    """
    named = environ.get("SPARK_HOME")
    if named is None:
        return ""
    if not named:
        return "SPARK_HOME is set, and empty"
    home = Path(named)
    if not (home / "bin" / "spark-submit").is_file():
        return f"SPARK_HOME is {home}, which has no bin/spark-submit"
    ours = importlib.metadata.version("pyspark")
    found = [of[1] for of in map(_CORE.fullmatch, _names(home / "jars")) if of is not None]
    # A Spark that was built there has its jars elsewhere: what it is can't be known.
    if found and not ours.startswith(f"{found[0]}."):
        return f"SPARK_HOME is {home}, which has Spark {found[0]}, and this Python has PySpark {ours}"
    return ""


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
