"""The stories of replication come out as they are written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replica.stories import FOLDER, play

STORIES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_comes_out_as_written(path: Path) -> None:
    """`python -m tests.replica.stories` writes the outputs anew."""
    text = path.read_text(encoding="utf-8")
    assert play(text) == text


def test_every_story_ends_with_every_check() -> None:
    """A story that does not read the log at its end proves little."""
    assert len(STORIES) >= 8
    assert [path.stem for path in STORIES if "\n\nlog\n----\nevery promise" not in path.read_text("utf-8")] == []
