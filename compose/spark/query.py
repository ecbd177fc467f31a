"""The query of the compose file: averages per customer, from topic `payments` to topic `averages`.

`python query.py SERVERS CHECKPOINT` makes the topics, and runs until it is stopped. CHECKPOINT is a directory that
outlives the container, such as hdfs://namenode:8020/averages. Send payments with any Kafka client, one JSON object in
each record, such as {"customer": "c7", "amount": 12.5, "paid": "2026-01-01T10:00:00Z"}.
"""

import sys
from contextlib import suppress

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from logstore.client.blocking import Client, parse_addresses
from logstore.errors import TopicExists
from spe_adapter import Aggregate, Tumbling, agg, stateful

PARTITIONS = 2
PAYMENT = "customer string, amount double, paid timestamp"


def main() -> None:
    """Run the query."""
    servers, checkpoint = sys.argv[1:]
    with Client(parse_addresses(servers)) as client, suppress(TopicExists):
        client.create_topic("payments", PARTITIONS, {})
    spark = SparkSession.builder.master("local[2]").appName("averages").getOrCreate()
    payments = (
        spark.readStream.format("cairn")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .load()
        .select(sf.from_json(sf.col("value").cast("string"), PAYMENT).alias("p"))
        .select("p.*")
    )
    averages = Aggregate(Tumbling("5 minutes", time="paid", delay="1 minute"), average=agg.avg("amount"))
    query = (
        stateful(payments, key="customer", operator=averages)
        .option("kafka.bootstrap.servers", servers)
        .start(topic="averages", checkpointLocation=checkpoint)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
