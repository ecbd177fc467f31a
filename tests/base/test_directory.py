"""A data directory has one owner."""

import os
from pathlib import Path

import pytest

from logstore.base.directory import LOCK_FILE, locked_directory
from logstore.base.errors import DirectoryInUse


def test_a_directory_is_made_and_locked_once(tmp_path: Path) -> None:
    """The second owner is told who the first one is and what to do; after its end the directory is free."""
    path = tmp_path / "new" / "data"
    with locked_directory(path, "sidecar"):
        assert (path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
        assert path.stat().st_mode & 0o777 == 0o700
        with (
            pytest.raises(DirectoryInUse, match=rf"another sidecar \(process {os.getpid()}\); stop it or choose"),
            locked_directory(path, "sidecar"),
        ):
            pass
    with locked_directory(path, "coordinator"):
        pass


def test_a_lock_without_a_name_is_refused_as_well(tmp_path: Path) -> None:
    """A lock file that holds nothing yet belongs to an unknown process."""
    with locked_directory(tmp_path, "coordinator"):
        (tmp_path / LOCK_FILE).write_text("")
        with (
            pytest.raises(DirectoryInUse, match=r"another coordinator \(process unknown\)"),
            locked_directory(tmp_path, "coordinator"),
        ):
            pass
