"""Clients are told what went wrong by a code of Kafka's, whatever went wrong."""

import inspect

from kio.schema.errors import ErrorCode

from logstore import errors
from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.kafka.errors import CODES, error_code

NOT_KAFKA = {
    errors.CairnError,  # the root
    errors.FencedIncarnation,  # epochs: requests of our own, which name the class itself
    errors.StaleEpoch,
    errors.AdoptionRefused,  # of the command
    errors.ReaderReleased,
    errors.TooManyReaders,
    errors.UnknownReader,
    errors.StagedMissing,
    errors.StagePosition,
    errors.ConfigError,
    errors.DiskRefused,
    errors.WrongCluster,
    errors.HostNameTaken,
    errors.NodeIdTaken,
    errors.MalformedMessage,
    errors.UnsendableMessage,
    errors.LinkRefused,
}
"""Errors that no request of Kafka's can meet."""


def all_errors() -> set[type[errors.CairnError]]:
    """Every error the log store declares."""
    found = vars(errors).values()
    return {kind for kind in found if inspect.isclass(kind) and issubclass(kind, errors.CairnError)}


def test_every_error_has_a_code() -> None:
    """Each error is in the table by itself, or known never to meet a Kafka client."""
    assert all_errors() - set(CODES) - NOT_KAFKA == set()
    assert not NOT_KAFKA & set(CODES)


def test_damage_is_not_skipped() -> None:
    """A chunk with damage is a storage error: consumers stop there, and do not take it for a damaged transfer."""
    lost = errors.CorruptChunk("t-0: lost", first_offset=3, last_offset=5)
    assert error_code(lost) is ErrorCode.kafka_storage_error


def test_a_metadata_store_that_is_away_may_be_asked_again() -> None:
    """Clients try again: nothing was changed, or they find out what was."""
    assert error_code(MetadataUnavailable("away")) is ErrorCode.request_timed_out
    assert error_code(OutcomeUnknown("lost")) is ErrorCode.request_timed_out


def test_strangers_are_unknown() -> None:
    """What is not in the table is UNKNOWN_SERVER_ERROR; what derives from something in it has its code."""

    class Worse(errors.InvalidConfig):
        """More special than anything in the table."""

    assert error_code(KeyError("x")) is ErrorCode.unknown_server_error
    assert error_code(Worse("x")) is ErrorCode.invalid_config
