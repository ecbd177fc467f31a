"""What a sidecar does not start on: a data directory with files of others, or of a sidecar of another kind.

Invariant: each refusal names what was found, and says what to do; nothing is changed.
"""

import re
from pathlib import Path

from logstore.base.directory import LOCK_FILE
from logstore.cluster.members.own_files import ADOPTED_FILE, ADOPTION_FILE, LABEL_FILE
from logstore.config import SidecarConfig
from logstore.epochs.staging import DIRECTORY as STAGING_DIRECTORY
from logstore.errors import ConfigError
from logstore.kafka.security.stores import CallerStores
from logstore.log.data_directory import IDENTITY_FILE, STREAMS_DIRECTORY
from logstore.log.journal import DIRECTORY as JOURNAL_DIRECTORY
from logstore.log.ledger import DIRECTORY as LEDGER_DIRECTORY
from logstore.log.replica_chunk import DIRECTORY as REPLICAS_DIRECTORY
from logstore.log.space import SPARE_FILE
from logstore.log.whole_files import temporary_name

COORDINATOR_DIRECTORY = "coordinator"
NAMES_SHOWN = 5
OWN_NAMES = frozenset(
    {
        LOCK_FILE,
        IDENTITY_FILE,
        temporary_name(IDENTITY_FILE),
        LEDGER_DIRECTORY,
        JOURNAL_DIRECTORY,
        STREAMS_DIRECTORY,
        REPLICAS_DIRECTORY,
        STAGING_DIRECTORY,
        SPARE_FILE,
        COORDINATOR_DIRECTORY,
        LABEL_FILE,
        temporary_name(LABEL_FILE),
        ADOPTED_FILE,
        temporary_name(ADOPTED_FILE),
        ADOPTION_FILE,
        temporary_name(ADOPTION_FILE),
    }
)
"""What a data directory may hold."""
MOUNT_NAME = "lost+found"
"""What a fresh ext4 file system holds."""
OWN_STREAMS = re.compile(r".+\.[0-9a-f]{32}")


def refuse_foreign_files(data_dir: Path) -> None:
    """Raises ConfigError if a data directory holds files that no sidecar has written.

    Hidden files are passed over; file systems and backup programs leave such.
    """
    for directory, is_own in (
        (data_dir, OWN_NAMES.__contains__),
        (data_dir / STREAMS_DIRECTORY, OWN_STREAMS.fullmatch),
    ):
        names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
        foreign = [name for name in names if not is_own(name) and not name.startswith(".") and name != MOUNT_NAME]
        if foreign:
            more = f" and {len(foreign) - NAMES_SHOWN} more" if len(foreign) > NAMES_SHOWN else ""
            raise ConfigError(
                f"{directory} holds files that are not a sidecar's: {', '.join(map(repr, foreign[:NAMES_SHOWN]))}{more}"
                "; choose another --data-dir, or move them away"
            )


def refuse_adopted(data_dir: Path, why: str) -> None:
    """Raises ConfigError if a cluster has what a data directory has; `why`: what that means for who asks."""
    if (data_dir / ADOPTED_FILE).exists():
        raise ConfigError(
            f"{data_dir / ADOPTED_FILE}: the log of this data directory was adopted by a cluster, or `cairn adopt` was "
            f"interrupted: run it again, and start the host on the directory that it creates. {why}; remove the file "
            "only if that cluster is given up"
        )


def refuse_other_kind(settings: SidecarConfig) -> None:
    """Raises ConfigError if a host of a cluster would start alone on its data directory."""
    refuse_adopted(settings.data_dir, "Records appended here would be missing there")
    if (settings.data_dir / ADOPTION_FILE).exists():
        raise ConfigError(
            f"{settings.data_dir / ADOPTION_FILE}: `cairn adopt` has not completed this directory: run it again"
        )
    label = settings.data_dir / LABEL_FILE
    if settings.cluster is None and label.exists():
        raise ConfigError(
            f"{label}: the data directory belongs to a host of a cluster: give --cluster URL as before, or another "
            "--data-dir"
        )


def refuse_own_callers(data_dir: Path, own: CallerStores) -> None:
    """Raises ConfigError if the data directory of a host of a cluster has users, ACLs or quotas of its own."""
    users = own.users.names()
    if users:
        more = f" and {len(users) - NAMES_SHOWN} more" if len(users) > NAMES_SHOWN else ""
        raise ConfigError(
            f"{data_dir} has its own users, {', '.join(users[:NAMES_SHOWN])}{more}, but the users of a cluster are in "
            f"its metadata store: add them there with `cairn user add NAME --cluster URL`, and remove them here with "
            f"`cairn user remove NAME --data-dir {data_dir}`"
        )
    if not own.is_empty:
        raise ConfigError(
            f"{data_dir} has {len(own.acls.index)} ACLs, and quotas of {len(own.quotas.quotas)} users and clients, of "
            "a single sidecar, which a cluster does not use: give an empty --data-dir"
        )
