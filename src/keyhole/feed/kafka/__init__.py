"""A feeder's interfaces on Kafka: the source, the updates topic, the dead letters, the lease. By librdkafka."""
