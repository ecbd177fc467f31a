"""Users over the network: DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

Invariants: a password never travels here, only its salted hash; errors are each user's own, and a user's changes are
made together or not at all; what is answered without an error is durable.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.errors import CairnError
from logstore.events import USERS_CHANGED
from logstore.kafka.api_types import Api, Broker, Caller
from logstore.kafka.errors import RefusedWithCode, error_code
from logstore.kafka.pace import Pace
from logstore.kafka.security.credentials import (
    MECHANISM_NUMBERS,
    ScramCredential,
    UnacceptableCredential,
    check_name,
    credential_of_salted_password,
)
from logstore.kafka.security.users import CredentialName, Users
from logstore.kafka.wire import respond

_NAMES: Final[Mapping[int, str]] = {number: name for name, number in MECHANISM_NUMBERS.items()}
_UNACCEPTABLE: Final = ErrorCode.unacceptable_credential
_Refusal = tuple[ErrorCode, str]


class UserHandlers:
    """Shows and changes users."""

    def __init__(self, broker: Broker, users: Users) -> None:
        self._broker = broker
        self._users = users
        self._pace = Pace()

    def apis(self) -> list[Api]:
        """The requests served here."""
        return [Api(50, 0, 0, self.describe), Api(51, 0, 0, self.alter)]

    async def describe(self, request: Any, _: Caller) -> ResponsePayload:
        """DescribeUserScramCredentials 0: the mechanisms and iterations of users; null: of all."""
        asked = self._users.names() if request.users is None else [user.name for user in request.users]
        results = []
        for name, times in Counter(asked).items():
            await self._pace.step()
            refusal: _Refusal | None = None
            found = self._users.credentials_of(name)
            if times > 1:
                refusal = ErrorCode.duplicate_resource, f"user {name!r} is asked for twice"
            elif not found:
                refusal = ErrorCode.resource_not_found, f"there is no user {name!r}"
            infos = [
                {"mechanism": MECHANISM_NUMBERS[mechanism], "iterations": credential.iterations}
                for mechanism, credential in found.items()
                if refusal is None
            ]
            results.append({"user": name, **_outcome(refusal), "credential_infos": infos})
        return await respond(request, {"error_code": ErrorCode.none, "error_message": None, "results": results})

    async def alter(self, request: Any, caller: Caller) -> ResponsePayload:
        """AlterUserScramCredentials 0: removes and sets credentials."""
        refused: dict[str, _Refusal] = {}
        removed: list[CredentialName] = []
        given: dict[CredentialName, ScramCredential] = {}
        entries = [*request.deletions, *request.upsertions]
        times = Counter((entry.name, entry.mechanism) for entry in entries)
        for entry in entries:
            await self._pace.step()
            try:
                name = self._checked(entry)
                if times[entry.name, entry.mechanism] > 1:
                    raise RefusedWithCode(
                        ErrorCode.duplicate_resource, f"{name.mechanism} of {name.user!r} is changed twice"
                    )
                if not hasattr(entry, "salt"):
                    if name.mechanism not in self._users.credentials_of(name.user):
                        raise RefusedWithCode(
                            ErrorCode.resource_not_found, f"there is no {name.mechanism} credential of {name.user!r}"
                        )
                    removed.append(name)
                else:
                    given[name] = credential_of_salted_password(
                        name.mechanism, entry.salted_password, entry.salt, entry.iterations
                    )
            except RefusedWithCode as error:
                refused.setdefault(entry.name, (error.code, str(error)))
            except UnacceptableCredential as error:
                refused.setdefault(entry.name, (_UNACCEPTABLE, str(error)))
        removed = [name for name in removed if name.user not in refused]
        given = {name: value for name, value in given.items() if name.user not in refused}
        users = list(dict.fromkeys(entry.name for entry in entries))
        if removed or given:
            refused |= await self._change(removed, given, caller)
        results = [{"user": user, **_outcome(refused.get(user))} for user in users]
        return await respond(request, {"results": results})

    def _checked(self, entry: Any) -> CredentialName:
        """Raises RefusedWithCode, UnacceptableCredential."""
        if entry.mechanism not in _NAMES:
            raise RefusedWithCode(ErrorCode.unsupported_sasl_mechanism, f"there is no mechanism {entry.mechanism}")
        # A user that is there may go, whatever its name is.
        is_there = bool(self._users.credentials_of(entry.name))
        return CredentialName(entry.name if is_there else check_name(entry.name), _NAMES[entry.mechanism])

    async def _change(
        self, removed: list[CredentialName], given: Mapping[CredentialName, ScramCredential], caller: Caller
    ) -> Mapping[str, _Refusal]:
        """Make the changes durable; returns the users for which that failed."""
        changed = {name.user for name in (*removed, *given)}
        try:
            await self._broker.engine.wait(self._users.change(removed, given))
        except CairnError as error:
            code = _UNACCEPTABLE if isinstance(error, UnacceptableCredential) else error_code(error)
            return dict.fromkeys(changed, (code, str(error)))
        shown = ", ".join(sorted(changed)[:USERS_SHOWN])
        self._broker.engine.store.report(USERS_CHANGED, users=shown, count=len(changed), by=caller.principal)
        return {}


USERS_SHOWN: Final = 5


def _outcome(refusal: _Refusal | None) -> Mapping[str, Any]:
    code, message = refusal or (ErrorCode.none, None)
    return {"error_code": code, "error_message": message}
