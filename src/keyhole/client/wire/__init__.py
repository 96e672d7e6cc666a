"""How the client speaks to its targets: lookups gathered into frames, scans put together from pages, reads sent again.

In any process that reads, on the client's event loop; behind keyhole.client, which is what users import. It knows
neither Spark nor Kafka.
"""
