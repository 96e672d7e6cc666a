"""The changelog of states and the control topic: the interfaces, the records, and in kafka/ Kafka."""
