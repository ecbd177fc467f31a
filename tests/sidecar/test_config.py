"""Settings: flags over file over defaults, and a precise refusal of whatever cannot be."""

import argparse
from pathlib import Path

import pytest

from logstore.config import SETTINGS, add_arguments, parse, parse_address, parse_listeners
from logstore.errors import ConfigError
from logstore.kafka.server import Listener


def settings_of(*flags: str) -> object:
    """What these flags come to."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parse(parser.parse_args(["--data-dir", "somewhere", *flags]))


def test_defaults() -> None:
    """Without flags: loopback, port 9092, topics made on first use, every setting at the default it is listed with."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    config = parse(parser.parse_args(["--data-dir", "d"]))
    assert config.listeners == (Listener("127.0.0.1", 9092),)
    assert config.front.auto_create_topics
    assert config.data_dir == Path("d")
    listed = {setting.field: setting.default for setting in SETTINGS}
    assert config.store.io_window == listed["io_window"]
    assert config.front.max_frame_bytes == listed["max_frame_bytes"]
    assert config.store.topic_defaults.retention_ms == listed["retention_ms"]
    assert config.store.topic_defaults == config.front.topic_defaults


def test_every_setting_is_a_flag_and_an_entry_of_the_file(tmp_path: Path) -> None:
    """Each setting can be given both ways and is parsed to the same thing; flags win over the file."""
    for setting in SETTINGS:
        text = {"log-format": "json"}.get(setting.name, str(setting.default).lower())
        quoted = f'"{text}"' if isinstance(setting.default, str) else text
        file = tmp_path / f"{setting.name}.toml"
        file.write_text(f"[{setting.table}]\n{setting.name} = {quoted}\n")
        assert settings_of("--config", str(file)) == settings_of(f"--{setting.name}", text)
    file = tmp_path / "both.toml"
    file.write_text("[log]\nio-window = 3\n")
    assert settings_of("--config", str(file), "--io-window", "5") == settings_of("--io-window", "5")


def test_listeners_in_the_file(tmp_path: Path) -> None:
    """Data directory, listeners and advertised addresses may stand in the file."""
    file = tmp_path / "cairn.toml"
    file.write_text(
        'data-dir = "/var/lib/cairn"\n[kafka]\nlisteners = ["127.0.0.1:1", "[::1]:2"]\nadvertise = ["db:9"]\n'
    )
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    config = parse(parser.parse_args(["--config", str(file)]))
    assert config.data_dir == Path("/var/lib/cairn")
    assert config.listeners == (Listener("127.0.0.1", 1, "db", 9), Listener("::1", 2))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[log]\nio-windov = 3\n", "log.io-windov"),
        ("[lag]\nio-window = 3\n", "lag"),
        ("[log]\nio-window = 0\n", "from 1 to 64"),
        ("[log]\nio-window = 'many'\n", "whole number"),
        ("[kafka]\nauto-create-topics = 3\n", "true or false"),
        ("[process]\nlog-format = 'xml'\n", "logfmt, json"),
        ("[kafka]\nlisteners = 9092\n", "HOST:PORT"),
        ("[log\n", "cairn.toml"),
    ],
)
def test_what_the_file_may_not_say(tmp_path: Path, content: str, named: str) -> None:
    """A setting that is unknown, of another type or out of range is refused by name, with what is allowed."""
    file = tmp_path / "cairn.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=named):
        settings_of("--config", str(file))


def test_a_file_that_is_not_there() -> None:
    """A missing file is an error that names it."""
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        settings_of("--config", "nowhere.toml")


def test_no_data_directory() -> None:
    """Nothing is written where nobody said."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(ConfigError, match="--data-dir"):
        parse(parser.parse_args([]))


@pytest.mark.parametrize("address", ["0.0.0.0:9092", "192.168.1.5:9092", "[::]:9092", "example.org:9092"])
def test_other_machines_are_let_in_only_in_so_many_words(address: str) -> None:
    """An address beyond loopback needs --insecure, for there is no authentication yet."""
    with pytest.raises(ConfigError, match="--insecure"):
        parse_listeners([address], [], insecure=False)
    assert len(parse_listeners([address], [], insecure=True)) == 1


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.9.9.9:1", "[::1]:65535", "localhost:9092"])
def test_loopback(address: str) -> None:
    """Loopback by any name needs nothing."""
    assert parse_listeners([address], [], insecure=False)[0][:2] == parse_address(address)


@pytest.mark.parametrize(
    "address", ["", "localhost", ":9092", "localhost:", "localhost:http", "localhost:65536", "a:-1"]
)
def test_what_is_no_address(address: str) -> None:
    """A text that is not HOST:PORT is refused."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(address)


def test_more_advertised_addresses_than_listeners() -> None:
    """Each advertised address belongs to one listener."""
    with pytest.raises(ConfigError, match="2 advertised addresses for 1 listeners"):
        parse_listeners(["localhost:1"], ["a:1", "b:2"], insecure=False)
