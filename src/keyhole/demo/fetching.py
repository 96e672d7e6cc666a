"""Fetches the JVM jars, and shows how far it is."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from keyhole.local.jars import JarSet, default_cache_dir, fetch


def fetch_jars(console: Console, environ: Mapping[str, str], *sets: JarSet) -> list[list[Path]]:
    """Has the jars of each set from the cache, where nothing is shown, or from the registry, with a progress bar or a
    line.

    Raises:
        JarsUnavailable: As `keyhole.local.jars.fetch`.
    """
    columns = (TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn())
    progress = Progress(*columns, console=console, transient=True)
    with contextlib.ExitStack() as shown:

        def of(which: JarSet) -> list[Path]:
            task = progress.add_task(f"{which} jars", total=None, visible=False)
            said = False

            def show(done: int, total: int) -> None:
                nonlocal said
                if not console.is_terminal:
                    if not said:
                        console.print(f"fetching {which} jars: {total / 1e6:.1f} MB")
                    said = True
                    return
                if not progress.live.is_started:
                    shown.enter_context(progress)
                progress.update(task, completed=done, total=total, visible=True)

            return fetch(which, default_cache_dir(environ), show)

        return [of(which) for which in sets]
