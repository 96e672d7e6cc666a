"""Has the archives of classes made that this machine's JVMs begin with, and says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from keyhole.local.class_archives import make_archives, missing
from keyhole.local.java import Java

_WHAT = "preparing Kafka's and Spark's classes for a quick start, once for this Java"


def prepare_classes(console: Console, environ: Mapping[str, str], java: Java, kafka_jars: Sequence[Path]) -> None:
    """Nothing is shown where there are archives. What can't be made is shown; all works without, and begins later."""
    makes = missing(java, kafka_jars, environ)
    if not makes:
        return
    console.print(_WHAT)
    for reason in make_archives(makes):
        console.print(f"going on without: {reason}", markup=False, soft_wrap=True)
