"""Records of JSON as a pipeline gets them, on real Spark, beyond what the jobs' own tests send."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from keyhole.errors import InvalidConfiguration
from keyhole.spark.json_records import WELL_FORMED, parsed


def test_a_record_whose_fields_may_all_be_missing_is_an_object_all_the_same(spark: SparkSession) -> None:
    records = spark.createDataFrame([(value,) for value in (b"{}", b'{"n": null}', b"", b" ", None)], "value binary")
    (well_formed,) = WELL_FORMED
    found = parsed(records, {"n": "bigint", "s": "string"}).selectExpr(f"{well_formed} is true").collect()
    assert [row[0] for row in found] == [True, True, False, False, False]


@pytest.mark.parametrize("name", ["value", "timestamp", "__text"])
def test_a_field_that_would_stand_beside_a_column_of_its_name_is_refused(spark: SparkSession, name: str) -> None:
    records = spark.createDataFrame([], "value binary, timestamp timestamp")
    with pytest.raises(InvalidConfiguration, match=f"the records' field '{name}' would stand beside a column"):
        parsed(records, {name: "string"})
