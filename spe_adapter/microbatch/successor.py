"""Whether a query's operator may take over the state that another operator, or an older one, has left in the log.

Invariants:
* The answer depends on the log alone: the fingerprint in the last mark, and the columns of the footprints.
* What cannot be taken over is refused before the first epoch, with every column and the remedy in the message.
* The key, and the inputs with event time, stay as they are: windows are found by one, the watermark comes from the
  other.

Source: docs/decisions/0027.
"""

from typing import Final

import pyarrow as pa

from logstore.client.blocking import Client, TopicPartition
from spe_adapter.epochs.lookup import state_columns
from spe_adapter.errors import StateTrimmed
from spe_adapter.microbatch.committed import CommittedEpoch
from spe_adapter.microbatch.epoch import QueryDefinition
from spe_adapter.operators.errors import OperatorChanged
from spe_adapter.state.errors import StateSchemaChanged
from spe_adapter.state.evolution import Conversion

_BY_KEY: Final = "; by "
_PART: Final = "; "


def check_successor(client: Client, fixed: QueryDefinition, query: str, last: CommittedEpoch, former: str) -> str:
    """How the operator follows the one with the fingerprint `former`: a sentence for the log.

    Raises OperatorChanged, and the errors of a scan.
    """
    topic, operator = fixed.options.topic, fixed.operator
    columns = _former_columns(client, topic, query, last)
    body, _, keys = former.rpartition(_BY_KEY)
    problem = None
    changes = ""
    if keys != fixed.fingerprint.rpartition(_BY_KEY)[2]:
        problem = f"its key was {keys}"
    elif last.max_events_ms and len(last.max_events_ms) != len(operator.inputs()):
        problem = f"it had {len(last.max_events_ms)} inputs with event time, and has {len(operator.inputs())} now"
    else:
        problem = operator.follows(_description(body, columns))
    if problem is None and columns is not None:
        now = operator.state_schema(fixed.schema)
        try:
            changes = Conversion(columns, now, operator.state_evolution(fixed.schema, columns)).changes
        except StateSchemaChanged as error:
            problem = str(error)
    if problem is not None:
        raise OperatorChanged(
            f"query {query}: the state of epoch {last.epoch} in topic {topic!r} is of {former}, but the operator is "
            f"now {fixed.fingerprint}: {problem}. Declare what changed with operator.evolving(...), restore the former "
            "operator, or start with a new checkpoint and a new topic"
        )
    return f"the operator has changed since epoch {last.epoch} ({changes or 'its state has the same columns'})"


def _former_columns(client: Client, topic: str, query: str, last: CommittedEpoch) -> pa.Schema | None:
    """The columns of the state in the log; None if no window is open in any partition.

    Raises StateTrimmed if windows are open, and no partition's log has a footprint of them any more.
    """
    trimmed: StateTrimmed | None = None
    for partition in range(last.progress.partitions):
        try:
            found = state_columns(client, TopicPartition(topic, partition), query, last.epoch)
        except StateTrimmed as error:
            trimmed = error
            continue
        if found is not None:
            return found
    if trimmed is not None:
        raise trimmed
    return None


def _description(body: str, columns: pa.Schema | None) -> str:
    """The operator's description, from a fingerprint without its key (`frames.check`)."""
    if columns is not None:
        written = _PART + ", ".join(f"{field.name} {field.type}" for field in columns)
        if body.endswith(written):
            return body.removesuffix(written)
    return body.rpartition(_PART)[0]
