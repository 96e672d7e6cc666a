"""What runs in Spark's Python workers: a task stages its rows, a user's processor and aggregator are recorded and run.

A worker has one thread of Python, runs one task after the other, and has no session. What is here may import pyspark's
types and functions, `declaration`, what jobs name (`exposed`, `operators`), and the library's lower layers: of the
coordinator `task_stream` alone. It imports nothing else of `spark`, and not py4j. Two contracts in pyproject.toml hold
that ("a Python worker has no session, and knows nothing of the driver" and "the rooms of a write to Spark");
tests/meta/test_layers.py holds that the first names every module. Workers are forked of keyhole.spark.daemon: one
begins with all of it loaded, and with one thread of Python, which tests/spark/test_python_workers.py holds. So nothing
here begins a thread or a connection at import.
"""
