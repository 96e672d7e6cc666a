"""The Spark side: makes the states of a Structured Streaming job queryable. The only package that imports PySpark.

Jobs use `keyhole.spark.queryable`, `keyhole.spark.processor` and `keyhole.spark.session`. Nothing is imported here:
Spark's Python workers import this package for what is in `worker` alone.
"""
