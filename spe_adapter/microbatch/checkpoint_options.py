"""The options of a stateful query that concern checkpoints, as texts, and what they mean.

Invariants: without the option `checkpoints` the others are refused; a secret is given as the name of its file; this
module does no I/O.
"""

from typing import Final

from logstore.errors import CairnError, InvalidConfig
from spe_adapter.checkpoint.policy import PolicySettings
from spe_adapter.checkpoint.settings import ANY_HOST, DEFAULT_REPLICAS, CheckpointSettings
from spe_adapter.datasource.options import OptionReader
from spe_adapter.microbatch.sizes import size_option

CHECKPOINT_OPTIONS: Final = frozenset(
    (
        "checkpoints",
        "checkpointCoordinator",
        "checkpointCoordinatorToken",
        "checkpointCoordinatorCa",
        "checkpointCoordinatorCertificate",
        "checkpointEvery",
        "checkpointHost",
        "checkpointMinEvery",
        "checkpointMinState",
        "checkpointPlans",
        "checkpointPlansToken",
        "checkpointRate",
        "checkpointReplicas",
        "checkpointUser",
        "checkpointWeight",
    )
)
_DEFAULT_POLICY: Final = PolicySettings()
_DEFAULT_USER: Final = "cairn"
LEAST_S: Final = 1.0
"""Of `checkpointEvery`: a checkpoint alone takes tenths of a second. Who wants checkpoints closer together where the
log grows fast says so with `checkpointMinEvery`.
"""


def checkpoint_settings(reader: OptionReader) -> CheckpointSettings | None:
    """Where and when checkpoints are written; None without the option `checkpoints`. Raises InvalidConfig."""
    url = reader.text("checkpoints")
    if url is None:
        given = sorted(name for name in CHECKPOINT_OPTIONS if reader.text(name) is not None)
        if given:
            raise InvalidConfig(
                f"option {given[0]!r} is {reader.text(given[0])!r}, without a place for checkpoints; give the option "
                "'checkpoints' too: file:///DIRECTORY, or hdfs://HOST:PORT/DIRECTORY"
            )
        return None
    try:
        return CheckpointSettings(
            sink=url,
            user=reader.text("checkpointUser") or _DEFAULT_USER,
            plans=reader.text("checkpointPlans") or "",
            plans_token_file=reader.text("checkpointPlansToken") or "",
            coordinator=reader.text("checkpointCoordinator") or "",
            coordinator_token_file=reader.text("checkpointCoordinatorToken") or "",
            coordinator_ca_file=reader.text("checkpointCoordinatorCa") or "",
            coordinator_certificate_file=reader.text("checkpointCoordinatorCertificate") or "",
            host=reader.text("checkpointHost") or ANY_HOST,
            replicas=reader.number("checkpointReplicas") or DEFAULT_REPLICAS,
            max_bytes_per_s=size_option(reader, "checkpointRate", 0),
            policy=_policy(reader),
        )
    except CairnError as error:
        raise InvalidConfig(f"options of checkpoints: {error}") from error


def _policy(reader: OptionReader) -> PolicySettings:
    every_s = reader.seconds("checkpointEvery", _DEFAULT_POLICY.every_s, LEAST_S)
    return PolicySettings(
        every_s=every_s,
        min_every_s=reader.seconds("checkpointMinEvery", min(_DEFAULT_POLICY.min_every_s, every_s), 0.0),
        min_state_bytes=size_option(reader, "checkpointMinState", _DEFAULT_POLICY.min_state_bytes, least=0),
        weight=_weight(reader),
    )


def _weight(reader: OptionReader) -> float:
    text = reader.text("checkpointWeight")
    if text is None:
        return _DEFAULT_POLICY.weight
    try:
        weight = float(text)
    except ValueError as error:
        raise InvalidConfig(f"option 'checkpointWeight' is {text!r}; allowed: a number from 0 on") from error
    if not weight >= 0:
        raise InvalidConfig(f"option 'checkpointWeight' is {text!r}; allowed: a number from 0 on")
    return weight
