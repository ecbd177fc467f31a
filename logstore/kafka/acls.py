"""Shows and changes access control lists: DescribeAcls, CreateAcls, DeleteAcls.

Invariants: a change is durable and in effect before it is answered as done. Entries that cannot be stored are refused
one by one; the others of the request are made together. An entry that is there already, or gone already, is no error.
An entry that several filters of a request match is deleted, and answered, with the first of them. Hosts are kept in
the form that clients' addresses have (`canonical_host`), so that no entry fails to match because it is written in
another.

Source: Kafka protocol guide; KIP-140, KIP-290 (pattern types).
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.access.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from logstore.access.ledger import AclStore, check_acl
from logstore.base.addresses import canonical_host
from logstore.errors import CairnError, InvalidAcl
from logstore.events import ACLS_CHANGED
from logstore.kafka.api_types import Api, Broker, Caller
from logstore.kafka.errors import error_code
from logstore.kafka.pace import Pace
from logstore.kafka.wire import respond

_DONE: Final = {"error_code": ErrorCode.none, "error_message": None}
_Code = TypeVar("_Code", bound=IntEnum)


class AclHandlers:
    """Handlers of requests about access control lists."""

    def __init__(self, broker: Broker, acls: AclStore) -> None:
        self._broker = broker
        self._acls = acls

    def apis(self) -> list[Api]:
        """The requests served here."""
        return [
            Api(29, 1, 3, self.describe_acls),
            Api(30, 1, 3, self.create_acls),
            Api(31, 1, 3, self.delete_acls),
        ]

    async def describe_acls(self, request: Any, _: Caller) -> ResponsePayload:
        """DescribeAcls 1 to 3."""
        try:
            wanted = _filter(request)
        except InvalidAcl as error:
            return await respond(request, {**_outcome(error), "resources": []})
        pace = Pace()
        resources: dict[tuple[int, str, int], list[Mapping[str, Any]]] = {}
        for acl in self._acls.find(wanted):
            await pace.step()
            place = (int(acl.resource_type), acl.name, int(acl.pattern))
            resources.setdefault(place, []).append(_entry(acl))
        shown = [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
            for (kind, name, pattern), acls in resources.items()
        ]
        return await respond(request, {**_DONE, "resources": shown})

    async def create_acls(self, request: Any, caller: Caller) -> ResponsePayload:
        """CreateAcls 1 to 3."""
        results: list[Mapping[str, Any]] = []
        acls: list[Acl] = []
        for creation in request.creations:
            try:
                acl = _acl(creation)
                check_acl(acl)
            except InvalidAcl as error:
                results.append(_outcome(error))
                continue
            acls.append(acl)
            results.append(_DONE)
        try:
            await self._broker.engine.wait(self._acls.create(acls))
        except CairnError as error:
            results = [_outcome(error) if result is _DONE else result for result in results]
        else:
            await self._report(caller, "created", acls)
        return await respond(request, {"results": results})

    async def delete_acls(self, request: Any, caller: Caller) -> ResponsePayload:
        """DeleteAcls 1 to 3: everything that a filter matches, and that no filter before it does."""
        results: list[Mapping[str, Any]] = []
        doomed: dict[Acl, None] = {}
        pace = Pace()
        for one in request.filters:
            await pace.step(1 + len(self._acls.index))
            try:
                found = [acl for acl in self._acls.find(_filter(one)) if acl not in doomed]
            except InvalidAcl as error:
                results.append({**_outcome(error), "matching_acls": []})
                continue
            doomed.update(dict.fromkeys(found))
            results.append({**_DONE, "matching_acls": [{**_DONE, **_resource(acl), **_entry(acl)} for acl in found]})
        try:
            await self._broker.engine.wait(self._acls.delete(list(doomed)))
        except CairnError as error:
            results = [{**_outcome(error), "matching_acls": []} for _ in results]
        else:
            await self._report(caller, "deleted", list(doomed))
        return await respond(request, {"filter_results": results})

    async def _report(self, caller: Caller, what: str, acls: list[Acl]) -> None:
        pace = Pace()
        for acl in acls:
            await pace.step()
            self._broker.engine.store.report(ACLS_CHANGED, by=caller.principal, change=what, acl=_shown(acl))


def _shown(acl: Acl) -> str:
    return (
        f"{acl.permission.name} {acl.principal} {acl.operation.name} on {acl.resource_type.name} "
        f"{acl.pattern.name} {acl.name} from {acl.host}"
    )


def _outcome(error: CairnError) -> Mapping[str, Any]:
    return {"error_code": error_code(error), "error_message": str(error)}


def _entry(acl: Acl) -> Mapping[str, Any]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


def _resource(acl: Acl) -> Mapping[str, Any]:
    return {"resource_type": int(acl.resource_type), "resource_name": acl.name, "pattern_type": int(acl.pattern)}


def _acl(creation: Any) -> Acl:
    return Acl(
        _known(ResourceType, creation.resource_type, "resource type"),
        creation.resource_name,
        _known(PatternType, creation.resource_pattern_type, "pattern type"),
        creation.principal,
        canonical_host(creation.host),
        _known(Operation, creation.operation, "operation"),
        _known(Permission, creation.permission_type, "permission type"),
    )


def _filter(request: Any) -> AclFilter:
    return AclFilter(
        _known(ResourceType, request.resource_type_filter, "resource type"),
        request.resource_name_filter,
        _known(PatternType, request.pattern_type_filter, "pattern type"),
        request.principal_filter,
        None if request.host_filter is None else canonical_host(request.host_filter),
        _known(Operation, request.operation, "operation"),
        _known(Permission, request.permission_type, "permission type"),
    )


def _known(kind: type[_Code], number: int, what: str) -> _Code:
    """The value with this number. Raises InvalidAcl for UNKNOWN, and for numbers without a meaning here."""
    try:
        found = kind(number)
    except ValueError as error:
        raise InvalidAcl(f"{what} {number} is not known here; known are {_named(kind)}") from error
    if not found:
        raise InvalidAcl(f"{what} UNKNOWN; known are {_named(kind)}")
    return found


def _named(kind: type[IntEnum]) -> str:
    return ", ".join(f"{value.name} ({int(value)})" for value in kind if value)
