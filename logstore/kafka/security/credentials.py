"""SCRAM credentials: what is kept of a password, how it is made, written down and checked (RFC 5802, RFC 7677).

Invariants: a password is kept nowhere; a credential lets nobody log in who reads it, though it must stay secret,
because passwords can be guessed with it. Secrets are compared in constant time and have no part in any repr.
"""

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final

from logstore.errors import CairnError, CorruptFile

SCRAM_ROOM: Final = "logstore.kafka.security.scram"
"""Loaded only where there are users: with the packages that it needs it takes 4 MB."""
MECHANISMS: Final = {"SCRAM-SHA-512": "sha512", "SCRAM-SHA-256": "sha256"}
"""The mechanisms and their hashes, the stronger one first."""
MECHANISM_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's numbers of them (KIP-554)."""
MIN_ITERATIONS: Final = 4096
"""RFC 7677's, and Kafka's."""
MAX_ITERATIONS: Final = 1_000_000
"""Half a second of a client's time, and of the sidecar's for a PLAIN login."""
SALT_BYTES: Final = 32
MIN_SALT_BYTES: Final = 12
"""A shorter one is refused: scramp accepts none, and clients choose some 26."""
MAX_SALT_BYTES: Final = 1024
MAX_NAME_BYTES: Final = 255
"""Of a user's name in UTF-8, so that a full ledger of users stays within memory."""
TAKEN_NAMES: Final = frozenset(("*", "ANONYMOUS"))
"""As principals they mean somebody else: everybody, and clients that have not logged in."""
MAX_PASSWORD_BYTES: Final = 1024


class WrongLogin(Exception):
    """A message that does not lead to a login; the text has no secret."""


class UnacceptableCredential(CairnError):
    """A name, a password or a credential that cannot be used; the message never holds a secret."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What is kept of one user's password for one mechanism."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The ledger's value: JSON, with its bytes in base 64."""
        secrets = {"salt": self.salt, "stored_key": self.stored_key, "server_key": self.server_key}
        texts = {name: base64.b64encode(value).decode() for name, value in secrets.items()}
        return json.dumps({"iterations": self.iterations, **texts}).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> "ScramCredential":
        """What `encode` has written. Raises CorruptFile, which names `where` and no secret."""
        try:
            values = json.loads(data)
            secrets = [base64.b64decode(values[name], validate=True) for name in ("salt", "stored_key", "server_key")]
            return cls(int(values["iterations"]), *secrets)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise CorruptFile(f"ledger users: the entry of {where} is damaged; restore it from a copy") from None


def credential_of_password(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """The credential for a password. Raises UnacceptableCredential."""
    if not password:
        raise UnacceptableCredential("an empty password is not allowed")
    if len(password.encode()) > MAX_PASSWORD_BYTES:
        raise UnacceptableCredential(f"the password is longer than {MAX_PASSWORD_BYTES} bytes")
    if _prepared(password) != password:
        # Some clients would normalise it before they hash it, and others not.
        raise UnacceptableCredential("the password has characters that clients write in different ways; use others")
    salted = hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password.encode(), salt, iterations)
    return credential_of_salted_password(mechanism, salted, salt, iterations)


def credential_of_salted_password(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential for a password that is hashed already. Raises UnacceptableCredential."""
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise UnacceptableCredential(f"{iterations} iterations; allowed are {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    if not MIN_SALT_BYTES <= len(salt) <= MAX_SALT_BYTES:
        raise UnacceptableCredential(f"a salt of {len(salt)} bytes; allowed are {MIN_SALT_BYTES} to {MAX_SALT_BYTES}")
    hash_name = MECHANISMS[mechanism]
    if len(salted) != hashlib.new(hash_name).digest_size:
        raise UnacceptableCredential(f"a salted password of {len(salted)} bytes does not fit {mechanism}")
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    return ScramCredential(iterations, salt, stored_key, hmac.digest(salted, b"Server Key", hash_name))


def is_password_of(mechanism: str, credential: ScramCredential, password: bytes) -> bool:
    """Whether a password is the credential's; takes as long whether it is or not, and blocks for that long."""
    hash_name = MECHANISMS[mechanism]
    salted = hashlib.pbkdf2_hmac(hash_name, password, credential.salt, credential.iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    return hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), credential.stored_key)


def check_name(name: str) -> str:
    """The name of a user, if it is allowed. Raises UnacceptableCredential."""
    if not name:
        raise UnacceptableCredential("a user's name must not be empty")
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        raise UnacceptableCredential(f"a user's name may have {MAX_NAME_BYTES} bytes at most")
    if name in TAKEN_NAMES:
        raise UnacceptableCredential(f"User:{name} means others than one user; choose another name")
    if _prepared(name) != name:
        raise UnacceptableCredential(f"the user's name {name!r} has characters that clients write in different ways")
    return name


def _prepared(text: str) -> str | None:
    """The text as SASLprep (RFC 4013) writes it; None: it may not be used."""
    prepared: str | None = import_module(SCRAM_ROOM).prepared(text)
    return prepared
