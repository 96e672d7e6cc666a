"""Chunks in; segments, open chunks, vitals and closed blobs out. Pure: data frames in, data frames out."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from jobs.vital_signs.chunks import MAX_CHUNK_BYTES, NAME, NO_NAMES, SAMPLE
from jobs.vital_signs.processor import EXPOSED, OUTPUT, VitalSigns
from keyhole.spark.dead_letters import Accept, drop, first_broken
from keyhole.spark.json_records import WELL_FORMED, parsed
from keyhole.spark.processor import QueryableProcessor

APPLICATION = "vital-signs"
QUERY = "vital_signs"
KEY = ("patient", "signal")
# Each that an epoch touches is a partition of its transaction in Kafka: no more than a job's servers will ever be.
KEY_GROUPS = 16

# How late a chunk may come. A blob closes so long after its end.
DELAY = "10 seconds"
# The year 2100: a chunk from the far future would close every blob.
END_OF_TIME_US = 4_102_444_800_000_000

_CHUNK = {"patient": "string", "signal": "string", "start": "bigint", "samples": "string"}


_NAMED = r"{name} rlike r'\A{NAME}\z' and {name} not in {NO_NAMES}"
_SIZE = "octet_length(samples)"
# In this order; the first that fails is the reason. A record that is no JSON object has none of the fields.
_RULES = {
    **{_NAMED.format(name=name, NAME=NAME, NO_NAMES=NO_NAMES): f"{name} is no name" for name in KEY},
    f"start_us between 0 and {END_OF_TIME_US - 1}": "start is no number of microseconds from 1970 to 2099",
    # Spark reads base64 with line breaks and the like, too; and writes it with some.
    f"{_SIZE} between {SAMPLE.itemsize} and {MAX_CHUNK_BYTES} and {_SIZE} % {SAMPLE.itemsize} = 0 "
    "and replace(base64(samples), '\\r\\n', '') = __samples": (
        f"samples are not whole ones of {SAMPLE.itemsize} bytes in base64, or too many"
    ),
    **WELL_FORMED,
}


def chunks(records: DataFrame, accept: Accept = drop) -> DataFrame:
    """The chunks in Kafka's records.

    Args:
        records: `value`: a JSON object of patient and signal (names), start (microseconds since 1970) and samples
            (base64).
        accept: What to do with records that are none.

    Returns:
        patient, signal: string; start_us: bigint; samples: binary, whole samples, at least one; time: timestamp.
    """
    read = parsed(records, _CHUNK).withColumnsRenamed({"start": "start_us", "samples": "__samples"})
    decoded = read.withColumn("samples", f.try_to_binary("__samples", f.lit("base64")))
    return accept(decoded, first_broken(_RULES)).withColumn("time", f.timestamp_micros("start_us"))


def exposing(blob_us: int) -> QueryableProcessor:
    """The processor, with the states that readers find. `blob_us`: how long a blob is, whole seconds."""
    return QueryableProcessor(VitalSigns(blob_us), key=KEY, expose=EXPOSED)


def monitored(of: DataFrame, processor: QueryableProcessor) -> DataFrame:
    """Runs the processor over the chunks: closed blobs, and what changes in its states (keyhole.spark.changes.split).

    Needs `spark.sql.streaming.stateStore.providerClass` to be RocksDB's.
    """
    return processor.transform(of.withWatermark("time", DELAY), OUTPUT, time_mode="eventTime")
