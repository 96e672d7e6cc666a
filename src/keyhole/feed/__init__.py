"""Feeding states without Spark: records of a Kafka topic become updates, each counted once, whoever dies.

    options.py    what a feeder is told: key, value columns, reducers   -> the state's descriptor
    rows.py       a JSON record                                         -> what becomes of which row
    connect.py    values with the schema that Kafka Connect wrote       -> in the forms that a state has
    debezium.py   a change of a database's table, as Debezium tells it  -> the same
    mapping.py    what becomes of rows                                  -> updates, and their key groups

    progress.py   what was sent and not acknowledged                    -> up to where all was
    positions.py  boundaries in the updates topic                       -> from where a feeder sends
    feeder.py     the loop that reads, maps, sends and writes boundaries; Kafka is behind its interfaces

    kafka/        these interfaces on Kafka
    topic_feed.py a feeder on Kafka, through outages

    writes.py     what a program puts, adds and deletes                 -> updates, and a token for who reads them
    producer.py   sends these to Kafka

Only kafka/, topic_feed.py and producer.py do I/O. docs/updates.md has the records of an updates topic,
docs/adr/real-time-updates.md the reasons.
"""
