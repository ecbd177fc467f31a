"""The settings of a tier: what is accepted, and what a refusal says."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from logstore.config import add_arguments, parse
from logstore.errors import ConfigError, InvalidConfig
from logstore.log.topics import TopicConfig, parse_config, require_tier
from logstore.refusals import refuse_other_kind
from logstore.tier.settings import HdfsPlace, parse_tier, parse_url

VALUES: dict[str, Any] = {
    "tier_url": "webhdfs://namenode:9870/cairn",
    "tier_user": "cairn",
    "tier_replicas": 3,
    "tier_uploads": 2,
    "tier_cache_bytes": 1 << 25,
    "tier_coordinator": "",
    "tier_coordinator_token_file": "",
    "tier_coordinator_ca_file": "",
    "tier_coordinator_certificate_file": "",
    "tier_host": "",
    "tier_plans": "",
    "tier_plan_token_file": "",
}


def test_an_url_names_host_port_and_directory() -> None:
    """webhdfs://HOST:PORT/DIRECTORY is the NameNode's HTTP address and a directory."""
    assert parse_url("webhdfs://namenode:9870/a/b/") == HdfsPlace("http://namenode:9870", "/a/b")


@pytest.mark.parametrize(
    "text", ["hdfs://h:1/a", "webhdfs://h/a", "webhdfs://h:1", "webhdfs://h:1/", "webhdfs://h:x/a"]
)
def test_another_url_is_refused(text: str) -> None:
    """The error names the value and the form."""
    with pytest.raises(ConfigError, match="must be webhdfs://NAMENODE:PORT/DIRECTORY"):
        parse_url(text)


def test_peace_needs_all_its_parts() -> None:
    """A coordinator without a plan table, or the other way round, is refused; without both there is no plan."""
    found = parse_tier(VALUES)
    assert found is not None
    assert found.planned is None
    with pytest.raises(ConfigError, match="give all of them"):
        parse_tier({**VALUES, "tier_coordinator": "http://c:1"})


def test_a_host_of_a_cluster_may_have_a_tier(tmp_path: Path) -> None:
    """It has the settings of both."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = ["--tier-url", VALUES["tier_url"], "--cluster", "sqlite:m", "--host-name", "a", "--node-id", "1"]
    settings = parse(parser.parse_args([*flags, "--peer-listen", "127.0.0.1:1", "--data-dir", str(tmp_path)]))
    refuse_other_kind(settings)
    assert settings.tier is not None
    assert settings.store.has_tier


def test_a_topic_needs_a_tier() -> None:
    """remote.storage.enable is refused without a tier, and takes Kafka's spellings."""
    config = parse_config({"remote.storage.enable": "TRUE"})
    assert config.is_tiered
    assert require_tier(config, has_tier=True) is config
    with pytest.raises(InvalidConfig, match="--tier-url"):
        require_tier(config, has_tier=False)


def test_local_retention_is_a_part_of_the_retention() -> None:
    """-2 is the topic's retention; more than that, or no limit within a limit, is refused by name."""
    config = TopicConfig(retention_ms=5000, retention_bytes=100)
    assert (config.kept_local_ms, config.kept_local_bytes) == (5000, 100)
    assert parse_config({"local.retention.ms": "1000"}, config).kept_local_ms == 1000
    for text in ("5001", "-1"):
        with pytest.raises(InvalidConfig, match=r"local\.retention\.ms"):
            parse_config({"local.retention.ms": text}, config)
    assert parse_config({"local.retention.bytes": "-1"}).kept_local_bytes == -1
