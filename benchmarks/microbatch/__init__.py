"""Parts of benchmarks/stateful_spark.py: its input, the engines, the Spark process they run in, what is reported."""
