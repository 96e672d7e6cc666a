"""What one machine needs to run all of Keyhole: jars, Java, a Kafka, processes, ports."""
