"""The Spark side: makes the states of a Structured Streaming job queryable. Of the library it alone runs Spark.

Jobs use `keyhole.spark.queryable`, `keyhole.spark.processor` and `keyhole.spark.session`, and what docs/architecture.md
names beside them. Nothing is imported here: Spark's Python workers import this package for what is in `worker` alone.
"""
