"""Shows and changes quotas: DescribeClientQuotas, AlterClientQuotas.

Invariants: a change is durable and in effect before it is answered as done; an entity with a change that cannot be made
is refused as a whole, the others are not. Quotas that would have no effect here are refused by name.

Source: Kafka protocol guide; KIP-546.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.access.quota_ledger import CLIENT_ID, USER, QuotaStore, check_change, check_entity
from logstore.access.quotas import DEFAULT, Entity, Name
from logstore.errors import CairnError, InvalidQuota
from logstore.events import QUOTAS_CHANGED
from logstore.kafka.api_types import Api, Broker, Caller
from logstore.kafka.errors import error_code
from logstore.kafka.pace import Pace
from logstore.kafka.wire import respond

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_DONE: Final = {"error_code": ErrorCode.none, "error_message": None}


class QuotaHandlers:
    """Handlers of requests about quotas."""

    def __init__(self, broker: Broker, quotas: QuotaStore) -> None:
        self._broker = broker
        self._quotas = quotas

    def apis(self) -> list[Api]:
        """The requests served here."""
        return [Api(48, 0, 1, self.describe), Api(49, 0, 1, self.alter)]

    async def describe(self, request: Any, _: Caller) -> ResponsePayload:
        """DescribeClientQuotas 0 and 1."""
        try:
            wanted = _components(request.components)
        except InvalidQuota as error:
            return await respond(request, {**_outcome(error), "entries": None})
        entries = []
        pace = Pace()
        for entity, values in self._quotas.quotas.items():
            await pace.step()
            if _matches(entity, wanted, strict=request.strict):
                shown = [{"key": key, "value": value} for key, value in sorted(values.items())]
                entries.append({"entity": _shown(entity), "values": shown})
        return await respond(request, {**_DONE, "entries": entries})

    async def alter(self, request: Any, caller: Caller) -> ResponsePayload:
        """AlterClientQuotas 0 and 1."""
        answers = []
        for entry in request.entries:
            named = [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity]
            try:
                await self._alter(entry, caller, validate_only=request.validate_only)
                outcome: Mapping[str, Any] = _DONE
            except CairnError as error:
                outcome = _outcome(error)
            answers.append({**outcome, "entity": named})
        return await respond(request, {"entries": answers})

    async def _alter(self, entry: Any, caller: Caller, *, validate_only: bool) -> None:
        entity = _entity((part.entity_type, part.entity_name) for part in entry.entity)
        check_entity(entity)
        changes: dict[str, float | None] = {}
        for operation in entry.ops:
            if operation.key in changes:
                raise InvalidQuota(f"quota {operation.key!r} is changed twice for one entity")
            changes[operation.key] = None if operation.remove else float(operation.value)
            check_change(operation.key, changes[operation.key])
        if not validate_only:
            await self._broker.engine.wait(self._quotas.alter(entity, changes))
            shown = " ".join(f"{key}={'removed' if value is None else int(value)}" for key, value in changes.items())
            named = " ".join(f"{part['entity_type']}={part['entity_name'] or '<default>'}" for part in _shown(entity))
            self._broker.engine.store.report(QUOTAS_CHANGED, by=caller.principal, entity=named, changes=shown)


def _outcome(error: CairnError) -> Mapping[str, Any]:
    return {"error_code": error_code(error), "error_message": str(error)}


def _entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity with these names by type. Raises InvalidQuota."""
    names: dict[str, Name] = {}
    for kind, name in parts:
        _check_kind(kind)
        if kind in names:
            raise InvalidQuota(f"the entity has two names of type {kind!r}")
        names[kind] = DEFAULT if name is None else name
    return Entity(names.get(USER), names.get(CLIENT_ID))


def _check_kind(kind: str) -> None:
    if kind not in (USER, CLIENT_ID):
        raise InvalidQuota(f"quotas of type {kind!r} are not enforced here; those of {USER!r} and {CLIENT_ID!r} are")


def _components(components: Iterable[Any]) -> dict[str, Name | None]:
    """What is asked about each type; None: any name or default. Raises InvalidQuota."""
    wanted: dict[str, Name | None] = {}
    for part in components:
        _check_kind(part.entity_type)
        if part.entity_type in wanted:
            raise InvalidQuota(f"the type {part.entity_type!r} is asked about twice")
        if part.match_type == _EXACT and part.match is not None:
            wanted[part.entity_type] = part.match
        elif part.match_type == _DEFAULT:
            wanted[part.entity_type] = DEFAULT
        elif part.match_type == _SPECIFIED:
            wanted[part.entity_type] = None
        else:
            raise InvalidQuota(f"match type {part.match_type} with the name {part.match!r} says nothing")
    return wanted


def _matches(entity: Entity, wanted: Mapping[str, Name | None], *, strict: bool) -> bool:
    for kind, name in ((USER, entity.user), (CLIENT_ID, entity.client_id)):
        if kind in wanted:
            if name is None or wanted[kind] not in (None, name):
                return False
        elif strict and name is not None:
            return False
    return True


def _shown(entity: Entity) -> list[Mapping[str, Any]]:
    names = ((USER, entity.user), (CLIENT_ID, entity.client_id))
    return [
        {"entity_type": kind, "entity_name": name if isinstance(name, str) else None}
        for kind, name in names
        if name is not None
    ]
