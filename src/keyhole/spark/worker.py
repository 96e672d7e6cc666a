"""Spark's Python workers, which run one task after the other."""

from __future__ import annotations

import gc
import sys

_imported = 0


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
