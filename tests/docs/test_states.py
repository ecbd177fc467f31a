"""docs/states.md draws the state machines from the tables that the code runs.

`python -m tests.docs.test_states` writes the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from logstore.epochs import ledger_entries, staging
from logstore.kafka import answers, connection
from logstore.kafka.groups import state as groups
from logstore.kafka.security import login
from logstore.replica import known_replicas, owner_states, repair
from scheduler.peace.online import states as peace
from spe_adapter.checkpoint import steps as checkpoint_steps

PAGE = Path(__file__).resolve().parents[2] / "docs/states.md"
HEAD = """# State machines

Drawn from the tables in the code by `python -m tests.docs.test_states`. A step that is not in a table is a defect: it
raises at once.
"""


class Step(NamedTuple):
    """One arrow. `event` is empty where the table has no events."""

    before: Enum
    event: str
    after: Enum


def drawn(title: str, module: str, text: str, initial: Enum, steps: Iterable[Step]) -> str:
    """A section with a diagram."""
    lines = [f"\n## {title}\n", f"{text} Source: `{module}`.\n", "```mermaid", "stateDiagram-v2"]
    lines.append(f"    [*] --> {initial.name}")
    for step in steps:
        label = f" : {step.event}" if step.event else ""
        lines.append(f"    {step.before.name} --> {step.after.name}{label}")
    return "\n".join([*lines, "```", ""])


def checkpoint_section() -> str:
    """The section of a checkpoint's steps."""
    steps = [Step(before, event.value, after) for (before, event), after in checkpoint_steps.TRANSITIONS.items()]
    return drawn(
        "A checkpoint of an operator's state",
        "spe_adapter/checkpoint/steps.py",
        "From the decision to take it to the owner's knowledge of it. Pages are frozen in FROZEN and WRITING.",
        checkpoint_steps.CheckpointState.NOTED,
        steps,
    )


def login_section() -> str:
    """The section of a connection's login."""
    return drawn(
        "The login of a connection",
        "logstore/kafka/security/login.py",
        "Where a listener wants one. Nothing else is served before DONE, and nothing after FAILED.",
        login.LoginState.STARTED,
        [Step(before, event.value, after) for (before, event), after in login.TRANSITIONS.items()],
    )


def replication_sections() -> str:
    """The sections of replication."""
    owner = [Step(before, event.value, after) for (before, event), after in owner_states.TRANSITIONS.items()]
    replica = [Step(before, event.value, after) for (before, event), after in known_replicas.TRANSITIONS.items()]
    repairs = [Step(before, event.value, after) for (before, event), after in repair.TRANSITIONS.items()]
    return "".join(
        (
            drawn(
                "The owner of a replicated stream",
                "logstore/replica/owner_states.py",
                "From its claim until another host has claimed the stream ([replication](replication.md)).",
                owner_states.OwnerState.IDLE,
                owner,
            ),
            drawn(
                "A replica of a chunk",
                "logstore/replica/known_replicas.py",
                "On one host. Fences are a stream's, not a chunk's.",
                known_replicas.ReplicaState.OPEN,
                replica,
            ),
            drawn(
                "The repair of a sealed chunk",
                "logstore/replica/repair.py",
                "One copy: named in the registration, copied, named as a member.",
                repair.RepairState.IDLE,
                repairs,
            ),
        )
    )


def page() -> str:
    """The page as it should be."""
    epochs = [Step(before, event.value, after) for (before, event), after in ledger_entries.TRANSITIONS.items()]
    sending = [Step(before, event.value, after) for (before, event), after in answers.TRANSITIONS.items()]
    connections = [Step(before, event.value, after) for (before, event), after in connection.TRANSITIONS.items()]
    attempts = [Step(before, event.value, after) for (before, event), after in staging.TRANSITIONS.items()]
    requests = [Step(before, event.value, after) for (before, event), after in peace.REQUEST_TRANSITIONS.items()]
    chunks = [Step(before, event.value, after) for (before, event), after in peace.CHUNK_TRANSITIONS.items()]
    group = [
        Step(before, "", after)
        for before, afters in groups.TRANSITIONS.items()
        for after in groups.GroupState
        if after in afters
    ]
    return HEAD + "".join(
        (
            drawn(
                "The newest epoch of a query",
                "logstore/epochs/ledger_entries.py",
                "From the commit to the ledger's word that every stream has the epoch.",
                ledger_entries.EpochState.IDLE,
                epochs,
            ),
            drawn(
                "The staged output of a task attempt",
                "logstore/epochs/staging.py",
                "From the first write to the removal of its file.",
                staging.AttemptState.EMPTY,
                attempts,
            ),
            drawn(
                "A client's connection",
                "logstore/kafka/connection.py",
                "From its first request to the end of its socket.",
                connection.ConnectionState.SERVING,
                connections,
            ),
            drawn(
                "The answers of a connection",
                "logstore/kafka/answers.py",
                "Who sends them.",
                answers.Sending.BUSY,
                sending,
            ),
            login_section(),
            drawn(
                "A consumer group",
                "logstore/kafka/groups/state.py",
                "The classic protocol's states, under the names that Kafka's tools show.",
                groups.GroupState.EMPTY,
                group,
            ),
            drawn(
                "A request of Peace",
                "scheduler/peace/online/states.py",
                "From the submission to one of three ends.",
                peace.RequestState.WAITING,
                requests,
            ),
            drawn(
                "A chunk of a request of Peace",
                "scheduler/peace/online/states.py",
                "A chunk that failed or was revoked waits again; each start is a new attempt.",
                peace.ChunkState.WAITING,
                chunks,
            ),
            checkpoint_section(),
            replication_sections(),
        )
    )


def test_the_page_is_what_the_tables_say() -> None:
    """Nobody edits it by hand."""
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
