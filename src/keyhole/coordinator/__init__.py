"""The epoch protocol carried out in Spark's driver: one Coordinator for each run of a query.

The decisions are keyhole.protocol's; here are the threads, the calls to state servers and the records in Kafka. It
knows nothing of Spark: a micro-batch is an EpochBatch, whose `stage` runs the tasks, and what they send is in
task_stream.py.
"""
