"""The token that a coordinator's clients must know: as new as its file, with a time in which the former is taken too.

Invariant: see `logstore.base.accepted_secrets`; SIGHUP is the operator's way to have the file looked at at once.
"""

from pathlib import Path
from typing import Final

from logstore.base.accepted_secrets import AcceptedSecrets
from scheduler.coordinator.errors import StartError

MIN_TOKEN_CHARACTERS: Final = 16
SETTING: Final = "token-file"
"""Both `coordinator-token-file` of a sidecar and `--token-file` of `cairn coordinate`."""


class AcceptedTokens(AcceptedSecrets):
    """The tokens of a file. Raises StartError if the file cannot be used now. Reads the file, so it blocks."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _read, setting=SETTING)


def _read(path: Path) -> bytes:
    return read_token(path).encode()


def read_token(path: Path) -> str:
    """A token from its file. Raises StartError."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"token file {path}: {getattr(error, 'strerror', None) or 'must be ASCII'}") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise StartError(f"token file {path}: a token has at least {MIN_TOKEN_CHARACTERS} characters and no blanks")
    return token
