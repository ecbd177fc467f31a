"""The directory keeps a sink's promises; URLs name sinks or are refused with what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.errors import CheckpointUrlRefused
from spe_adapter.checkpoint.hdfs_sink import HdfsSink
from spe_adapter.checkpoint.settings import CheckpointSettings, open_sink, parse_sink_url, settings_of
from tests.checkpoint.sink_contract import CONTRACTS, Contract


@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_directory_is_a_sink(contract: Contract, tmp_path: Path) -> None:
    """Each promise of the contract; the root is made when it is needed."""
    sink = DirectorySink(tmp_path / "deep" / "root")
    assert sink.names() == []
    assert not sink.is_there()
    contract(sink)


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("file:///a/b", ("", "/a/b")),
        ("file:///a%20b/", ("", "/a b")),
        ("hdfs://name:9870/checkpoint", ("http://name:9870", "/checkpoint")),
        ("webhdfs://[::1]:9870/c/d", ("http://[::1]:9870", "/c/d")),
    ],
)
def test_urls_name_sinks(url: str, parsed: tuple[str, str]) -> None:
    """A directory, or HDFS by its WebHDFS address; the sink says the URL again."""
    assert parse_sink_url(url) == parsed
    sink = open_sink(CheckpointSettings(url))
    assert isinstance(sink, HdfsSink if parsed[0] else DirectorySink)
    assert parse_sink_url(sink.url) == parsed


@pytest.mark.parametrize(
    "url", ["", "/a/b", "file://host/a", "file:///", "hdfs://name/a", "hdfs://name:1/", "s3://x/y", "hdfs://n:x/a",
            "hdfs://n:1/a?b", "file:relative"]
)  # fmt: skip
def test_other_urls_are_refused(url: str) -> None:
    """The message has the URL and says what to write."""
    with pytest.raises(CheckpointUrlRefused, match=r"file:///DIRECTORY|without|Port"):
        CheckpointSettings(url)


def test_settings_come_back_and_bad_ones_are_named(tmp_path: Path) -> None:
    """Settings as texts give the same settings; a coordinator needs a host; token files must be readable."""
    settings = CheckpointSettings("file:///a", coordinator="http://x:1", host="h", replicas=2)
    assert settings_of(settings.described()) == settings
    with pytest.raises(CheckpointUrlRefused, match="name of this host"):
        CheckpointSettings("file:///a", coordinator="http://x:1")
    with pytest.raises(CheckpointUrlRefused, match="replicas=0"):
        CheckpointSettings("file:///a", replicas=0)
    with pytest.raises(CheckpointUrlRefused, match="unknown"):
        settings_of({"sink": "file:///a", "unknown": 1})
    with pytest.raises(CheckpointUrlRefused, match="nowhere"):
        missing = str(tmp_path / "nowhere")
        open_sink(CheckpointSettings("hdfs://n:1/a", plans="http://n:2", plans_token_file=missing))
