"""Keys and values as bytes, and back: one key at a time (pure), or a column of a Spark batch (numpy and Arrow).

The same in every process; it knows a state's descriptor, and nothing of stores, topics, servers or Spark.
"""
