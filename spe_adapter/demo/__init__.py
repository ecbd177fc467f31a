"""`cairn demo`: a sidecar and a Spark query, killed again and again, and the exact result.

A generator appends the CEC paper's purchases; a Spark query averages prices per item over event-time windows and writes
the averages through the exactly-once sink; meanwhile the query's processes and the sidecar are killed with SIGKILL. At
the end the averages are compared, record by record, with a computation that never saw Spark.
"""
