"""Has the archives of classes made that this machine's JVMs begin with, and says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from keyhole.local.class_archives import make_archives, missing
from keyhole.local.java import Java


def prepare_classes(
    console: Console, environ: Mapping[str, str], java: Java, kafka_jars: Sequence[Path], *, spark: bool = True
) -> None:
    """Nothing is shown where there are archives. What can't be made is shown; all works without, and begins later.

    Args:
        spark: Also Spark's, beside Kafka's.
    """
    makes = missing(java, kafka_jars, environ, spark=spark)
    if not makes:
        return
    whose = "Kafka's and Spark's" if spark else "Kafka's"
    console.print(f"preparing {whose} classes for a quick start, once for this Java")
    with _elapsing(console):
        reasons = make_archives(makes)
    for reason in reasons:
        console.print(f"going on without: {reason}", markup=False, soft_wrap=True)


def _elapsing(console: Console) -> Progress:
    """In a terminal, a line with the time that goes on, and that is gone at the end."""
    columns = TextColumn("takes some tens of seconds on a busy machine"), TimeElapsedColumn()
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    shown.add_task("")
    return shown
