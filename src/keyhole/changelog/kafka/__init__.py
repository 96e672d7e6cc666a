"""The changelog and the control topic on Kafka: transactions, fencing, readers and followers, by librdkafka.

In drivers, state servers, replicas and tools. It implements keyhole.changelog.base, and knows nothing of stores, gRPC
or Spark, nor what the records of the control topic say.
"""
