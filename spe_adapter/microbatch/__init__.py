"""Stateful Python operators on Spark: the state is in the host's memory, its checkpoint in the query's output topic.

    stateful(payments, key="customer", operator=Alarm()).start(topic="alarms", checkpointLocation=…)

An epoch runs through four modules: `driver` plans and commits it, `epoch` has the messages between driver and tasks,
`task` processes one partition, and `spe_adapter.epochs` stages and commits. The other modules: `query` is the user's
interface, `options` and `frames` check the user's input, `shuffle` brings rows to their tasks, `epoch_end` chooses the
windows that get a footprint, `state_loader` reads state from the log, `committed` has the last committed epoch,
`topics` creates and trims the topic, `no_data_trigger` closes windows when input pauses, and `host_memory` removes the
state of a stopped query.

Invariants:
* The results of an epoch, its changes of state and its progress are committed together.
* This module imports nothing: every new Python worker of Spark imports `task`, and would wait for the modules of the
  driver.
"""
