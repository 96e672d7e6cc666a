"""What each customer has ordered: of a source that makes ten orders a second, each of 5 for one of ten customers."""

import os

from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it

from keyhole.spark import queryable
from keyhole.spark.session import session

if __name__ == "__main__":
    spark = session("shop")
    orders = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    (
        orders.select(F.concat(F.lit("customer-"), F.col("value") % 10).alias("customer"))
        .groupBy("customer")
        .agg(F.count("*").alias("orders"), (F.count("*") * 5).alias("spent"))
        .writeStream.queryName("totals")
        .outputMode("update")
        .option("checkpointLocation", os.environ["KEYHOLE_CHECKPOINTS"] + "/totals")
        .foreachBatch(queryable.value("totals", key="customer"))
        .start()
        .awaitTermination()
    )
