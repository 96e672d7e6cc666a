"""By this name Spark finds Keyhole's data source by itself: `spark.read.format("keyhole")`.

Spark looks into every package whose name begins with pyspark_, for a class called DefaultSource.
"""

from keyhole.spark.state_source import StateSource as DefaultSource

__all__ = ["DefaultSource"]
