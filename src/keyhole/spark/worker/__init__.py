"""What runs in Spark's Python workers: a task stages its rows, a user's processor and aggregator are recorded and run.

A worker has one thread, runs one task after the other, and has no session. It knows nothing of `driver` and
`write_path`.
"""
