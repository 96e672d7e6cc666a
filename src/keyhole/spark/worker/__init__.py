"""What runs in Spark's Python workers: a task stages its rows, a user's processor and aggregator are recorded and run.

A worker has one thread, runs one task after the other, and has no session. What is here may import `declaration`, the
words of jobs in `exposed` and `operators`, and the library's lower floors: of the coordinator `task_stream` alone. It
imports nothing else of `spark`, and not py4j. Two contracts in pyproject.toml hold that; tests/meta/test_layers.py
holds that they name every module. A worker begins with all of it loaded, and with one thread:
tests/spark/test_python_workers.py.
"""
