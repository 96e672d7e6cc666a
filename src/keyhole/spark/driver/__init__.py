"""What the write path needs in Spark's driver: a look into plans and micro-batches, partitions, files of a checkpoint.

Speaks to the JVM by Py4J. It knows what workers run, and nothing of the sink above it.
"""
