"""`python -m keyhole.spark.daemon`: forks Spark's Python workers, with all loaded that a worker of ours needs.

Spark starts it by `spark.python.daemon.module`. Its own daemon has PySpark loaded and nothing else, so that each worker
loads pandas, Arrow, gRPC and Keyhole anew: 1.4 s of processor time each, four times before a job's first batch ends.
None of them may have a thread at work when it is loaded, or a lock that one of them held would be locked in the worker
for ever. tests/spark/test_python_workers.py knows those that they have, which are made anew in a worker.
"""

from __future__ import annotations

import pandas  # noqa: F401
import pyspark.sql.streaming.transform_with_state_driver_worker
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import keyhole.spark.worker.processor_task
import keyhole.spark.worker.stage  # noqa: F401
from keyhole.spark.worker.row_batches import use_larger_batches
from keyhole.spark.worker.worker_setup import spare_imports

if __name__ == "__main__":
    use_larger_batches()
    spare_imports()
    manager()
