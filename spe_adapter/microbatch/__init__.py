"""Stateful Python operators on Spark: state in the host's memory, checkpointed in the query's own output topic.

    stateful(payments, key="customer", operator=Alarm()).start(topic="alarms", checkpointLocation=…)

One epoch is four modules: `driver` plans and commits it, `epoch` is what driver and tasks tell each other, `task` runs
one partition of it, and `spe_adapter.epochs` stages and commits. Around them: `query` is what a user calls, `options`
and `frames` check what the user gave, `shuffle` brings rows to their tasks, `epoch_end` decides which windows an epoch
footprints, `state_loader` reads state from the log, `committed` is the last epoch, `topics` makes and trims the topic,
`no_data_trigger` closes windows when input pauses, `host_memory` removes the state of a stopped query.

Invariants:
* An epoch's results, its changes of state and its progress are one commit.
* Nothing is imported here: every new Python worker of Spark imports `task`, and would wait for what only the driver
  needs.
"""
