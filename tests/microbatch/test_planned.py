"""What Spark planned, as the log notes it: compared, written, read, and made files again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.errors import CorruptBatch, UnknownFormatVersion
from spe_adapter.errors import CheckpointRefused
from spe_adapter.spark_checkpoint.files import LocalCheckpoint, local_checkpoint, planned_in
from spe_adapter.spark_checkpoint.planned import (
    MAX_OFFSETS_CHARACTERS,
    Planned,
    following_problem,
    planned_of,
    repeated_problem,
)
from spe_adapter.tools.rebuild import planned_of_positions, rebuild

METADATA = '{"batchWatermarkMs":7,"batchTimestampMs":1795344875731,"conf":{"spark.sql.shuffle.partitions":"2"}}'
BEFORE = f'v1\n{METADATA}\n{{"in": {{"0": 20, "1": 5}}}}\n-'
TEXT = f'v1\n{METADATA}\n{{"in": {{"0": 40, "1": 9}}}}\n17'
PLANNED = planned_of(3, TEXT, BEFORE, notes={"1/0": "v1\n1795344875000"})
GOLDEN = (
    '{"batch": 3, "start": "%s", "end": "%s", "version": "v1", '
    '"metadata": "{\\"batchWatermarkMs\\":7,\\"batchTimestampMs\\":1795344875731}", '
    '"offsets": ["{\\"in\\": {\\"0\\": 40, \\"1\\": 9}}", "17"], "notes": {"1/0": "v1\\n1795344875000"}}'
)


def test_planned_input_as_it_is_written() -> None:
    """Field by field; and what is written comes back."""
    expected = GOLDEN % ("892e9a13db53d5f84de61381d380f432", "47082e94ba1479945203eea1f4c975e9")
    assert json.dumps(PLANNED.to_fields()) == expected
    assert Planned.from_fields(json.loads(expected)) == PLANNED
    counted = replace(PLANNED, files="f", offsets=None, notes={})
    assert Planned.from_fields(counted.to_fields()) == counted


def test_times_settings_and_layout_do_not_count() -> None:
    """The same offsets planned at another time, with other settings, written another way, are the same input."""
    again = (
        TEXT.replace("1795344875731", "9")
        .replace('"2"', '"200"')
        .replace('{"in": {"0": 40, "1": 9}}', '{"in":{"1":9,"0":40}}')
    )
    assert again != TEXT
    assert planned_of(3, again, BEFORE).is_same_input(PLANNED)
    assert repeated_problem(PLANNED, planned_of(3, again, BEFORE)) is None


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (planned_of(3, TEXT.replace("40", "41"), BEFORE), r'lost batch 3.*"0": 41.*the log has it up to .*"0": 40'),
        (planned_of(3, TEXT.replace("17", "18"), BEFORE), "lost batch 3"),
        (planned_of(3, TEXT, BEFORE.replace("20", "21")), "from different offsets"),
        (planned_of(3, TEXT, BEFORE, files=["a"]), "different lists of files"),
    ],
)
def test_other_input_is_seen_and_said(other: Planned, said: str) -> None:
    """Whatever differs: the end of one source, the start, the files that offsets count."""
    problem = repeated_problem(PLANNED, other)
    assert problem is not None

    assert re.search(said, problem)


def test_a_batch_follows_where_the_log_ends() -> None:
    """By the offsets where it starts; nothing is said where the log does not say."""
    following = planned_of(4, TEXT.replace("40", "60"), TEXT)
    assert following_problem(PLANNED, following) is None
    assert following_problem(None, following) is None
    assert "does not begin where batch 3 ended" in str(following_problem(PLANNED, planned_of(4, TEXT, BEFORE)))
    assert "did not record inputs" in str(repeated_problem(None, PLANNED))


def test_offsets_too_long_to_be_noted_are_compared_all_the_same() -> None:
    """A digest says whether they are the same; a checkpoint cannot be made of it."""

    def long(last: int) -> Planned:
        offsets = json.dumps({"in": {str(partition): 10**12 + last for partition in range(10_000)}})
        assert len(offsets) > MAX_OFFSETS_CHARACTERS
        return planned_of(0, f"v1\n{METADATA}\n{offsets}", None)

    assert long(1).offsets is None
    assert len(json.dumps(long(1).to_fields())) < 400
    assert repeated_problem(long(1), long(1)) is None
    assert "digest" in str(repeated_problem(long(1), long(2)))
    with pytest.raises(CheckpointRefused, match="too long"):
        rebuild("nowhere", "q", long(1))


@pytest.mark.parametrize("text", ["", "v1", "{}\n{}", "x1\n{}\n5"])
def test_a_file_of_offsets_that_is_none_is_named(text: str) -> None:
    """A later Spark may write something else: nothing is guessed."""
    with pytest.raises(UnknownFormatVersion, match="file of offsets"):
        planned_of(0, text, None)


@pytest.mark.parametrize("name", sorted(PLANNED.to_fields()))
def test_every_field_is_checked(name: str) -> None:
    """A damaged note is CorruptBatch, which names the field."""
    for wrong in (5.5, {"a": 1}):
        with pytest.raises(CorruptBatch, match=name):
            Planned.from_fields({**PLANNED.to_fields(), name: wrong})
    with pytest.raises(CorruptBatch):
        Planned.from_fields([])
    assert planned_of_positions("") is None
    assert planned_of_positions("{}") is None
    with pytest.raises(CorruptBatch):
        planned_of_positions("{")


@pytest.mark.parametrize(
    "name", ["../escaped", "/tmp/escaped", "0/../../../escaped", "0/1", "0", "", "1/0/0", "1/0\n", "\u0661/0", "-1/0"]
)
def test_a_note_leads_nowhere_but_to_a_sources_first_file(name: str) -> None:
    """Any client of the log may write notes, and `rebuild` makes files of them: other names are refused, and are not
    noted.
    """
    with pytest.raises(CorruptBatch, match="field notes"):
        planned_of_positions(json.dumps({"input": {**PLANNED.to_fields(), "notes": {name: "text"}}}))
    assert planned_of(3, TEXT, BEFORE, notes={name: "text", "1/0": "kept"}).notes == {"1/0": "kept"}


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[1]", '{"batchWatermarkMs":', '{"batchWatermarkMs":"soon"}', "[" * 10**5]
)
def test_metadata_that_spark_did_not_write_is_named(text: str) -> None:
    """The files that `rebuild` makes are made of it."""
    with pytest.raises(CorruptBatch, match="field metadata"):
        Planned.from_fields({**PLANNED.to_fields(), "metadata": text})


def test_a_checkpoint_is_made_of_what_was_noted(tmp_path: Path) -> None:
    """Files as Spark writes them; the settings are those of the newest file of offsets that is left."""
    rebuild(tmp_path / "empty", "q", PLANNED)
    made = LocalCheckpoint(tmp_path / "empty")
    assert made.read("metadata") == '{"id":"q"}'
    assert made.read("sources/1/0") == "v1\n1795344875000"
    assert made.read("commits/3") == 'v1\n{"nextBatchWatermarkMs": 7}'
    for batch in (2, 3):
        text = made.read(f"offsets/{batch}")
        assert text is not None
        assert text.replace("{}", '{"spark.sql.shuffle.partitions":"2"}') == TEXT
    assert rebuild(tmp_path / "empty", "q", PLANNED) == (3, (), ())
    (tmp_path / "empty/sources/1/0").write_text("other")
    again = rebuild(tmp_path / "empty", "q", PLANNED)
    assert (again.written, again.replaced) == (("sources/1/0",), ("sources/1/0",))
    assert made.read("replaced/0/sources/1/0") == "other"
    older = tmp_path / "older"
    (older / "offsets").mkdir(parents=True)
    (older / "offsets/2").write_text(BEFORE)
    (older / "offsets/.3.crc").write_text("of the file that was")
    rebuild(older, "q", PLANNED)
    assert (older / "offsets/2").read_text() == BEFORE
    assert (older / "offsets/3").read_text() == TEXT
    assert not (older / "offsets/.3.crc").exists()
    found = planned_in(LocalCheckpoint(older), 3)
    assert found is not None
    assert repeated_problem(PLANNED, found) is None


def test_lists_of_files_count_and_are_not_made_up(tmp_path: Path) -> None:
    """A file source's offset is the number of its newest list: the same number with other files is other input, and
    without the list no checkpoint is made, for Spark would leave out or repeat files.
    """
    place = LocalCheckpoint(tmp_path)
    for name, text in {
        "metadata": '{"id":"q"}',
        "offsets/0": f'v1\n{METADATA}\n{{"logOffset":0}}',
        "offsets/1": f'v1\n{METADATA}\n{{"logOffset":1}}',
        "sources/0/0": "v1\n{a}",
        "sources/0/1": "v1\n{b}",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    noted = planned_in(place, 1)
    assert noted is not None
    assert noted.notes == {}
    (tmp_path / "sources/0/1").write_text("v1\n{c}")
    replanned = planned_in(place, 1)
    assert replanned is not None
    assert "different lists of files" in str(repeated_problem(noted, replanned))
    for missing in (False, True):
        if missing:
            (tmp_path / "sources/0/1").unlink()
        with pytest.raises(CheckpointRefused, match="sources/0/1"):
            rebuild(tmp_path, "q", noted)
    (tmp_path / "sources/0/1.compact").write_text("v1\n{b}")
    (tmp_path / "offsets/1").unlink()
    assert rebuild(tmp_path, "q", noted).written == ("offsets/1", "commits/1")


def test_whose_checkpoint_a_directory_is(tmp_path: Path) -> None:
    """A directory counts only with the metadata of the query that is meant."""
    assert local_checkpoint(str(tmp_path)) is None
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for location in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        found = local_checkpoint(location, "q")
        assert found is not None
        assert found.root == tmp_path
    assert local_checkpoint(str(tmp_path), "another") is None
    assert local_checkpoint("hdfs://name/checkpoints/q") is None
