"""The users of a sidecar, or of all hosts of a cluster, and their SCRAM credentials.

Invariants:
* The entries hold credentials (`logstore.kafka.security.credentials`), never a password.
* For a name that is no user's, `credential_or_decoy` gives a credential that nobody's password fits. It looks like a
  user's, is the same at every call and after a restart, and takes as long: who asks does not learn who is a user.
* What a request or a login asks (`is_empty`, `credential_or_decoy`, `password_mechanism`) takes a time that does not
  grow with the number of users.
* A change counts once it is durable, for the next login; connections that are logged in stay so, as in Kafka.
* The number of users is bounded (MAX_USERS).
"""

import hmac
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from logstore.access.entries import AccessEntries, EntryChanges
from logstore.kafka.security.credentials import (
    MECHANISMS,
    MIN_ITERATIONS,
    SALT_BYTES,
    ScramCredential,
    UnacceptableCredential,
)
from logstore.log.ticket import Ticket

LEDGER: Final = "users"
MAX_USERS: Final = 10_000
"""Some 10 MB of memory."""
_CREDENTIAL: Final = "credential/"
_DECOY_KEY: Final = "decoy-key"
_DECOY_KEY_BYTES: Final = 32
_BASE_36: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_MOST_FORMS: Final = 16
"""Forms of credentials that decoys take, the most frequent ones; users added by one tool have one form."""
T = TypeVar("T")


class _Form(NamedTuple):
    """What a stranger sees of a credential without the password."""

    iterations: int
    salt_bytes: int
    is_base_36: bool
    """As Kafka's own tools make salts."""


class CredentialName(NamedTuple):
    """Whose credential, and for which mechanism."""

    user: str
    mechanism: str

    @property
    def key(self) -> str:
        """Its key among the entries. A mechanism has no slash, a user may."""
        return f"{_CREDENTIAL}{self.mechanism}/{self.user}"


class Users:
    """All users. `new_secret` gives that many random bytes. Raises CorruptFile if entries are damaged."""

    def __init__(
        self, entries: AccessEntries, new_secret: Callable[[int], bytes], default_iterations: int = MIN_ITERATIONS
    ) -> None:
        self._entries = entries
        self._default_iterations = default_iterations
        self._decoy_key = new_secret(_DECOY_KEY_BYTES)
        """Of this process until the first change, which keeps it."""
        self._users: dict[str, dict[str, ScramCredential]] = {}
        self._forms: dict[str, Counter[_Form]] = {mechanism: Counter() for mechanism in MECHANISMS}
        """How many credentials of a mechanism have which form."""
        self._checked_by: Counter[str] = Counter()
        """How many users' PLAIN passwords are checked against which mechanism's credential."""
        entries.follow(_DECOY_KEY, self._decoy_key_changed)
        entries.follow(_CREDENTIAL, self._credential_changed)

    def _decoy_key_changed(self, _key: str, value: bytes | None) -> None:
        self._decoy_key = value or self._decoy_key

    def _credential_changed(self, key: str, value: bytes | None) -> None:
        mechanism, _, user = key[len(_CREDENTIAL) :].partition("/")
        if mechanism in MECHANISMS:
            credential = None if value is None else ScramCredential.decode(value, f"user {user!r}")
            self._set(CredentialName(user, mechanism), credential)

    def __len__(self) -> int:
        return len(self._users)

    @property
    def is_empty(self) -> bool:
        """Whether there is no user."""
        return not self._users

    def names(self) -> list[str]:
        """The names of all users, sorted."""
        return sorted(self._users)

    def credentials_of(self, user: str) -> Mapping[str, ScramCredential]:
        """A user's credentials by mechanism, the strongest first; empty: no such user."""
        held = self._users.get(user, {})
        return {mechanism: held[mechanism] for mechanism in MECHANISMS if mechanism in held}

    def password_mechanism(self, user: str) -> str:
        """The mechanism whose credential a PLAIN password is checked against; for no user, as for some user."""
        drawn = self._drawn(self._checked_by, user)  # in either case, so that both take as long
        return next(iter(self.credentials_of(user)), drawn or next(iter(MECHANISMS)))

    def credential_or_decoy(self, name: CredentialName) -> tuple[ScramCredential, bool]:
        """A user's credential and True, or a decoy and False."""
        decoy = self._decoy(name)  # made in either case, so that both take as long
        found = self.credentials_of(name.user).get(name.mechanism)
        return (decoy, False) if found is None else (found, True)

    def _decoy(self, name: CredentialName) -> ScramCredential:
        seed = hmac.digest(self._decoy_key, name.key.encode(errors="replace"), "sha512")
        # As many iterations, and a salt of the same length and alphabet, as some user has.
        form = self._drawn(self._forms[name.mechanism], name.key)
        form = form or _Form(self._default_iterations, SALT_BYTES, is_base_36=False)
        salt = (seed * (form.salt_bytes // len(seed) + 1))[: form.salt_bytes]
        if form.is_base_36:
            salt = bytes(_BASE_36[byte % len(_BASE_36)] for byte in salt)
        keys = hmac.digest(self._decoy_key, seed, "sha512")
        size = 64 if name.mechanism == "SCRAM-SHA-512" else 32
        return ScramCredential(form.iterations, salt, keys[:size], keys[:size])

    def _drawn(self, numbers: Counter[T], text: str) -> T | None:
        """A form that is drawn for a text, the more likely the more often it occurs; None if there is none.

        Each form has a lot of its own for each text and the lowest one wins (weighted rendezvous hashing), so that a
        new user of one form does not change what is drawn for other texts from those of the others.
        """

        def lot(drawn: tuple[T, int]) -> float:
            form, number = drawn
            digest = hmac.digest(self._decoy_key, f"{form}/{text}".encode(errors="replace"), "sha256")
            return -math.log((int.from_bytes(digest[:8]) + 1) / 2**64) / number

        best = min(numbers.most_common(_MOST_FORMS), key=lot, default=None)
        return None if best is None else best[0]

    def _set(self, name: CredentialName, credential: ScramCredential | None) -> None:
        """Set a credential in memory; None removes it."""
        held = self._users.setdefault(name.user, {})
        self._count(held, -1)
        if credential is None:
            held.pop(name.mechanism, None)
        else:
            held[name.mechanism] = credential
        self._count(held, 1)
        if not held:
            del self._users[name.user]

    def _count(self, held: Mapping[str, ScramCredential], change: int) -> None:
        """Count one user's credentials in the numbers of forms, or take them out."""
        for mechanism, credential in held.items():
            _add(self._forms[mechanism], _form_of(credential), change)
        if held:
            _add(self._checked_by, next(mechanism for mechanism in MECHANISMS if mechanism in held), change)

    def change(
        self, removed: Iterable[CredentialName], set_to: Mapping[CredentialName, ScramCredential]
    ) -> Ticket[None]:
        """Remove and set credentials; durable once the ticket settles. It fails with UnacceptableCredential if there
        would be more than MAX_USERS users, and as `AccessEntries` says.
        """
        changes: dict[str, bytes | None] = dict.fromkeys(name.key for name in removed)
        changes |= {name.key: value.encode() for name, value in set_to.items()}

        def compute() -> EntryChanges:
            more = {name.user for name in set_to} - self._users.keys()
            if more and len(self) + len(more) > MAX_USERS:
                raise UnacceptableCredential(f"there are {len(self)} users; {MAX_USERS} are allowed")
            return {**changes, _DECOY_KEY: self._decoy_key}

        return self._entries.change(compute)


def _form_of(credential: ScramCredential) -> _Form:
    is_base_36 = all(byte in _BASE_36 for byte in credential.salt)
    return _Form(credential.iterations, len(credential.salt), is_base_36)


def _add(numbers: Counter[T], counted: T, change: int) -> None:
    """Count; what has come down to 0 is no longer in the numbers."""
    numbers[counted] += change
    if not numbers[counted]:
        del numbers[counted]
