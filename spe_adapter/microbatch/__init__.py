"""Stateful Python operators on Spark: state in the host's memory, checkpointed in the query's own output topic.

    stateful(payments, key="customer", operator=Alarm()).start(topic="alarms", checkpointLocation=…)

`query` is the front, `driver` decides epochs, `task` runs them, `loading` finds state in the log, `resetting` goes
back.

What always holds in here: an epoch's results, its changes of state and its progress are one decision. Nothing is
imported here: every new Python worker of Spark imports `task`, and would wait for what only the driver needs.
"""
