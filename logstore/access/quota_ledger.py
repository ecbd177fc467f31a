"""The quotas and their entries.

One key per entity, `quota/` and its names as JSON (`{"user": NAME, "client-id": NAME}`, null for a default); the
value is a JSON object of numbers. Invariants: a change is in effect only once it is durable; at most MAX_ENTITIES.
"""

import json
from collections.abc import Mapping
from typing import Final

from logstore.access.entries import AccessEntries, EntryChanges
from logstore.access.ledger import MAX_TEXT_CHARACTERS
from logstore.access.quotas import DEFAULT, KEYS, Entity, Name, Quotas
from logstore.errors import CorruptFile, InvalidQuota
from logstore.log.ticket import Ticket

MAX_ENTITIES: Final = 10_000
MAX_BYTES_PER_S: Final = float(2**53)
"""Beyond that a float is no whole number any more."""
USER, CLIENT_ID = "user", "client-id"
_QUOTA: Final = "quota/"


class QuotaStore:
    """All quotas: in memory what is durable."""

    def __init__(self, entries: AccessEntries) -> None:
        """Raises CorruptFile if an entry cannot be read."""
        self._entries = entries
        self.quotas = Quotas()
        entries.follow(_QUOTA, self._changed)

    def _changed(self, key: str, value: bytes | None) -> None:
        self.quotas.set(_entity(key), {} if value is None else _values(key, value))

    def alter(self, entity: Entity, changes: Mapping[str, float | None]) -> Ticket[None]:
        """Set quotas of an entity, in bytes a second; None removes one. `check_change` has passed.

        The ticket fails with InvalidQuota if there are too many entities, and as `AccessEntries` says.
        """

        def compute() -> EntryChanges:
            if not self.quotas.of(entity) and len(self.quotas) >= MAX_ENTITIES:
                raise InvalidQuota(f"{MAX_ENTITIES} users and clients have quotas, and no more can; use a default")
            altered = {**self.quotas.of(entity), **changes}
            values = {key: value for key, value in altered.items() if value is not None}
            encoded = json.dumps(values, separators=(",", ":")).encode() if values else None
            return {_key(entity): encoded}

        return self._entries.change(compute)


def check_entity(entity: Entity) -> None:
    """Raise InvalidQuota unless an entity can have quotas."""
    if entity == Entity():
        raise InvalidQuota(f"a quota is for a {USER}, a {CLIENT_ID} or both; neither is named")
    for name in entity:
        if isinstance(name, str) and not 0 < len(name) <= MAX_TEXT_CHARACTERS:
            raise InvalidQuota(f"a name of {len(name)} characters; 1 to {MAX_TEXT_CHARACTERS} are allowed")


def check_change(key: str, value: float | None) -> None:
    """Raise InvalidQuota unless a quota can be set to this value (None: removed)."""
    if key not in KEYS:
        raise InvalidQuota(f"quota {key!r} is not enforced here; {' and '.join(KEYS)} are")
    if value is not None and not (1 <= value <= MAX_BYTES_PER_S and value == int(value)):
        raise InvalidQuota(f"{key}={value!r} must be a whole number of bytes a second, 1 or more")


def _key(entity: Entity) -> str:
    names = {USER: entity.user, CLIENT_ID: entity.client_id}
    shown = {kind: None if name is DEFAULT else name for kind, name in names.items() if name is not None}
    return _QUOTA + json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


def _entity(key: str) -> Entity:
    try:
        names: dict[str, str | None] = json.loads(key.removeprefix(_QUOTA))
        found: dict[str, Name] = {kind: DEFAULT if name is None else str(name) for kind, name in names.items()}
        entity = Entity(found.pop(USER, None), found.pop(CLIENT_ID, None))
        check_entity(entity)
    except (ValueError, AttributeError, RecursionError, InvalidQuota) as error:
        raise CorruptFile(f"the ledger of quotas has the key {key!r}, which names no entity: {error}") from error
    if found:
        raise CorruptFile(f"the ledger of quotas has the key {key!r} with more than a user and a client id")
    return entity


def _values(key: str, value: bytes) -> dict[str, float]:
    try:
        loaded = json.loads(value)
        values = {str(name): float(number) for name, number in loaded.items()}
        for name, number in values.items():
            check_change(name, number)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, InvalidQuota) as error:
        raise CorruptFile(f"the ledger of quotas: the value of {key!r} is not a quota: {error}") from error
    return values
