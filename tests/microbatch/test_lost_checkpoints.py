"""A real Spark whose checkpoint does not say what the log says; test_checkpoints.py has all the ways it may differ."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import functions as sf

from logstore.cli import main
from tests.microbatch.operators import Model, Row, Visits, rows_of
from tests.microbatch.world import World, by_key, parsed

pytestmark = [pytest.mark.spark]


def lose(checkpoint: Path, *batches: int) -> None:
    """The files of these batches, as a power cut or an old copy loses them."""
    for batch in batches:
        for folder in ("offsets", "commits"):
            for name in (str(batch), f".{batch}.crc"):
                (checkpoint / folder / name).unlink(missing_ok=True)


def test_lost_batches_and_a_lost_checkpoint(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint one batch behind the log, then none at all: refused with the command that makes it anew from the
    log; with it the query goes on, and every row counts once.
    """
    epochs = rows_of(9, 20, 8)
    model = Model()

    def feed(rows_per_epoch: list[list[Row]]) -> None:
        for rows in rows_per_epoch:
            world.feed(rows)
            model.epoch(rows)
        model.pause()

    feed(epochs[:3])
    query = world.run(world.query(rows_per_batch=20))
    feed(epochs[3:6])
    lose(world.checkpoint, 2)
    with pytest.raises(Exception, match=r"CheckpointDiffers.*lost batch 2") as refused:
        world.run(world.query(rows_per_batch=30))
    command = f"cairn checkpoint rebuild CHECKPOINT --query {query.id}"
    assert command in str(refused.value)
    words = command.replace("CHECKPOINT", str(world.checkpoint)).split()[1:]
    assert main([*words, "--servers", world.address]) == 0
    world.run(world.query(rows_per_batch=20))
    assert by_key(world.told()) == by_key(model.told)

    feed(epochs[6:])
    shutil.rmtree(world.checkpoint)
    with pytest.raises(Exception, match=f"TopicTaken.*of query {query.id}"):
        world.run(world.query())
    shutil.rmtree(world.checkpoint)
    assert main(["checkpoint", "show", world.topic, "--servers", world.address]) == 0
    assert f"{query.id}  keeps its state here" in capsys.readouterr().out
    assert main([*words, "--servers", world.address]) == 0
    assert world.run(world.query(rows_per_batch=20)).id == query.id
    assert by_key(world.told()) == by_key(model.told)


def test_a_query_over_files_knows_its_files(world: World, tmp_path: Path) -> None:
    """Offsets of a file source count lists of files in the checkpoint: batch N with the same offsets and other files is
    refused.
    """
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    frame = world.spark.readStream.schema("value string").option("maxFilesPerTrigger", "1").text(str(inbox))
    epochs = rows_of(3, 5, 3)

    def put(number: int) -> None:
        lines = "\n".join(row.encoded().decode() for row in epochs[number])
        (tmp_path / "fresh").write_text(lines)
        (tmp_path / "fresh").rename(inbox / f"{number}.txt")

    def run() -> None:
        world.run(world.over(parsed(frame.withColumn("topic", sf.lit("files"))), Visits()))

    put(0)
    run()
    put(1)
    run()
    lose(world.checkpoint, 1)
    for name in ("1", ".1.crc"):
        (world.checkpoint / "sources/0" / name).unlink(missing_ok=True)
    (inbox / "1.txt").unlink()
    put(2)
    with pytest.raises(Exception, match=r"CheckpointDiffers.*different lists of files"):
        run()
