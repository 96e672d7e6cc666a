"""Spark's Python workers, which run one task after the other."""

from __future__ import annotations

import functools
import gc
import sys
from typing import Any

from pyspark.sql.pandas import types as conversion

_imported = 0

_REMEMBERS = "_keyhole_remembers"


def spare_imports() -> None:
    """Called by a task: what has been imported by now is left out when Spark's worker collects garbage.

    It does so after each task (pyspark.daemon), over all that there is: with pandas, pyarrow and grpc that takes longer
    than many a task, and the next task of the worker waits for it. Modules stay anyhow. What a user's own code holds at
    this moment is freed as ever once nothing refers to it, unless it refers to itself.
    """
    global _imported
    if len(sys.modules) > _imported:
        _imported = len(sys.modules)
        gc.collect()
        gc.freeze()


def remember_arrow_type() -> None:
    """Called where a processor arrives in a worker: Spark's conversion of types keeps the last one that it made.

    For what a processor gives out for one key Spark (4.2) makes the Arrow type of all columns, and again for the next.
    """
    make = conversion.to_arrow_type
    if hasattr(make, _REMEMBERS):
        return
    last: tuple[Any, Any, Any] = None, None, None

    @functools.wraps(make)
    def to_arrow_type(dt: Any, **options: Any) -> Any:
        nonlocal last
        if last[0] is not dt or last[1] != options:
            # This is called for the types of a struct's fields, too, before that of the struct is made.
            last = dt, options, make(dt, **options)
        return last[2]

    setattr(to_arrow_type, _REMEMBERS, True)
    conversion.to_arrow_type = to_arrow_type
