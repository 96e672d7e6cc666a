"""Chunks in; segments, open chunks, vitals and closed blobs out. Pure: data frames in, data frames out."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from jobs.vital_signs.chunks import MAX_CHUNK_BYTES, NAME, NO_NAMES, SAMPLE
from jobs.vital_signs.processor import OUTPUT

APPLICATION = "vital-signs"
KEY = ("patient", "signal")
KEY_GROUPS = 64
# A divisor of the key groups, so that the sinks need no shuffle of their own after that of the grouping.
SHUFFLE_PARTITIONS = 4

# How late a chunk may come. A blob closes so long after its end.
DELAY = "10 seconds"
# The year 2100: a chunk from the far future would close every blob.
END_OF_TIME_US = 4_102_444_800_000_000

_CHUNK = "patient string, signal string, start bigint, samples string"


def chunks(records: DataFrame) -> DataFrame:
    """The chunks in Kafka's records; those that aren't any are dropped.

    Args:
        records: `value`: a JSON object of patient and signal (names), start (microseconds since 1970) and samples
            (base64).

    Returns:
        patient, signal: string; start_us: bigint; samples: binary, whole samples, at least one; time: timestamp.
    """
    parsed = records.select(f.from_json(f.col("value").cast("string"), _CHUNK).alias("chunk")).select("chunk.*")
    decoded = parsed.select(
        *KEY, f.col("start").alias("start_us"), f.try_to_binary("samples", f.lit("base64")).alias("samples")
    )
    for name in KEY:
        decoded = decoded.where(f.col(name).rlike(rf"\A{NAME}\z") & ~f.col(name).isin(*NO_NAMES))
    size = f.octet_length("samples")
    return decoded.where(
        f.col("start_us").between(0, END_OF_TIME_US - 1)
        & size.between(SAMPLE.itemsize, MAX_CHUNK_BYTES)
        & (size % SAMPLE.itemsize == 0)
    ).withColumn("time", f.timestamp_micros("start_us"))


def monitored(of: DataFrame, processor: StatefulProcessor, *, output: str = OUTPUT, mode: str = "update") -> DataFrame:
    """Runs a VitalSigns processor, or one that wraps it, over the chunks.

    Needs `spark.sql.streaming.stateStore.providerClass` to be RocksDB's.

    Args:
        output: The schema of the processor's rows; default: closed blobs.
    """
    return (
        of.withWatermark("time", DELAY)
        .groupBy(*KEY)
        .transformWithState(processor, outputStructType=output, outputMode=mode, timeMode="eventTime")
    )
