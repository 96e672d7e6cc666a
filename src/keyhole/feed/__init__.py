"""Feeding states without Spark: records of a Kafka topic become updates, each counted once, whoever dies.

    options.py    what a feeder is told: key, value columns, reducers   -> the state's descriptor
    rows.py       a JSON record                                         -> what becomes of which row
    debezium.py   a change of a database's table, as Debezium tells it  -> the same
    mapping.py    what becomes of rows                                  -> updates, and their key groups

These are pure. docs/updates.md has the records of an updates topic, docs/adr/real-time-updates.md the reasons.
"""
