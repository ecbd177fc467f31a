"""The users of a sidecar and their SCRAM credentials, durable in a ledger.

Invariants:
* The ledger holds credentials (`logstore.kafka.security.credentials`), never a password.
* For a name that is no user's, `credential_or_decoy` gives a credential that nobody's password fits. It looks like a
  user's, is the same at every call and after a restart, and takes as long: who asks does not learn who is a user.
* A change counts once it is durable, for the next login; connections that are logged in stay so, as in Kafka.
* The number of users is bounded (MAX_USERS).
"""

import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from logstore.kafka.security.credentials import (
    MECHANISMS,
    MIN_ITERATIONS,
    SALT_BYTES,
    ScramCredential,
    UnacceptableCredential,
)
from logstore.log.ledger import Ledger
from logstore.log.ticket import Ticket

LEDGER: Final = "users"
MAX_USERS: Final = 10_000
"""Some 10 MB of memory."""
_CREDENTIAL: Final = "credential/"
_DECOY_KEY: Final = "decoy-key"
_DECOY_KEY_BYTES: Final = 32
_BASE_36: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


class CredentialName(NamedTuple):
    """Whose credential, and for which mechanism."""

    user: str
    mechanism: str

    @property
    def key(self) -> str:
        """Its key in the ledger. A mechanism has no slash, a user may."""
        return f"{_CREDENTIAL}{self.mechanism}/{self.user}"


class Users:
    """All users. `new_secret` gives that many random bytes. Raises CorruptFile if the ledger's entries are damaged."""

    def __init__(
        self, ledger: Ledger, new_secret: Callable[[int], bytes], default_iterations: int = MIN_ITERATIONS
    ) -> None:
        self._ledger = ledger
        self._default_iterations = default_iterations
        self._decoy_key = ledger.get(_DECOY_KEY) or new_secret(_DECOY_KEY_BYTES)
        self._credentials: dict[CredentialName, ScramCredential] = {}
        for key, value in ledger.items(_CREDENTIAL):
            mechanism, _, user = key[len(_CREDENTIAL) :].partition("/")
            if mechanism in MECHANISMS:
                name = CredentialName(user, mechanism)
                self._credentials[name] = ScramCredential.decode(value, f"user {user!r}")

    def __len__(self) -> int:
        return len(self.names())

    @property
    def has_any(self) -> bool:
        """Whether there is a user. Asked for every request, so it must not count them."""
        return bool(self._credentials)

    def names(self) -> list[str]:
        """The names of all users, sorted."""
        return sorted({name.user for name in self._credentials})

    def credentials_of(self, user: str) -> Mapping[str, ScramCredential]:
        """A user's credentials by mechanism; empty: no such user."""
        found = ((mechanism, self._credentials.get(CredentialName(user, mechanism))) for mechanism in MECHANISMS)
        return {mechanism: credential for mechanism, credential in found if credential is not None}

    def password_mechanism(self, user: str) -> str:
        """The mechanism whose credential a PLAIN password is checked against; for no user, as for some user."""
        mechanisms = self.credentials_of(user)
        if not mechanisms and self._credentials:
            names = sorted(self._credentials)
            seed = hmac.digest(self._decoy_key, user.encode(errors="replace"), "sha256")
            mechanisms = self.credentials_of(names[int.from_bytes(seed[:8]) % len(names)].user)
        return next(iter(mechanisms), next(iter(MECHANISMS)))

    def credential_or_decoy(self, name: CredentialName) -> tuple[ScramCredential, bool]:
        """A user's credential and True, or a decoy and False."""
        decoy = self._decoy(name)  # made in either case, so that both take as long
        found = self._credentials.get(name)
        return (decoy, False) if found is None else (found, True)

    def _decoy(self, name: CredentialName) -> ScramCredential:
        seed = hmac.digest(self._decoy_key, name.key.encode(errors="replace"), "sha512")
        kind = [one for other, one in self._credentials.items() if other.mechanism == name.mechanism]
        iterations, salt = self._default_iterations, seed[:SALT_BYTES]
        if kind:  # as many iterations, and a salt of the same length and alphabet, as some user has
            model = kind[int.from_bytes(seed[:8]) % len(kind)]
            iterations = model.iterations
            stretched = seed * (len(model.salt) // len(seed) + 1)
            salt = stretched[: len(model.salt)]
            if all(byte in _BASE_36 for byte in model.salt):
                salt = bytes(_BASE_36[byte % len(_BASE_36)] for byte in salt)
        keys = hmac.digest(self._decoy_key, seed, "sha512")
        size = 64 if name.mechanism == "SCRAM-SHA-512" else 32
        return ScramCredential(iterations, salt, keys[:size], keys[:size])

    def change(
        self, removed: Iterable[CredentialName], set_to: Mapping[CredentialName, ScramCredential]
    ) -> Ticket[None]:
        """Remove and set credentials, all or nothing; durable once the ticket settles. Raises UnacceptableCredential
        if there would be more than MAX_USERS users.
        """
        gone = list(removed)
        names = {name.user for name in self._credentials if name not in gone} | {name.user for name in set_to}
        if len(names) > max(MAX_USERS, len(self)):
            raise UnacceptableCredential(f"there are {len(self)} users; {MAX_USERS} are allowed")
        changes: dict[str, bytes | None] = {name.key: None for name in gone}
        changes |= {name.key: value.encode() for name, value in set_to.items()}
        ticket = self._ledger.put({**changes, _DECOY_KEY: self._decoy_key})

        def settled(done: Ticket[None]) -> None:
            if done.error is None:
                for name in gone:
                    self._credentials.pop(name, None)
                self._credentials.update(set_to)

        ticket.add_callback(settled)
        return ticket
