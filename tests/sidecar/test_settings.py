"""Settings from flags and a TOML file: what is taken, which wins, what is refused and in which words."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from logstore.config import SidecarConfig, add_arguments, parse
from logstore.errors import ConfigError
from logstore.kafka.server import Listener
from logstore.settings_table import SETTINGS, Setting


def settings_of(*flags: str) -> SidecarConfig:
    """What `cairn serve` with these flags is told."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parse(parser.parse_args(flags))


def with_file(tmp_path: Path, content: str, *flags: str) -> SidecarConfig:
    """The same, with a settings file."""
    path = tmp_path / "cairn.toml"
    path.write_text(content, encoding="utf-8")
    return settings_of("--data-dir", "data", "--config", str(path), *flags)


OTHER_TEXTS = {
    "super-users": '"User:admin"',
    "cluster": '"etcd://127.0.0.1:2"',
    "peer-listen": '"127.0.0.1:3"',
    "peer-advertise": '"127.0.0.1:4"',
    "tier-url": '"webhdfs://127.0.0.1:5/other"',
}
"""Values of texts that may not be any text."""
CLUSTER = {
    "cluster": "etcd://127.0.0.1:1", "host-name": "a", "node-id": "5", "peer-listen": "127.0.0.1:1",
    "peer-certificate": "host.pem", "peer-ca": "all.pem", "etcd-ca": "etcd.pem", "etcd-certificate": "client.pem",
}  # fmt: skip
"""What a host of a cluster must say."""
TIER = {
    "tier-url": "webhdfs://127.0.0.1:1/cairn", "tier-coordinator": "http://127.0.0.1:1", "tier-host": "a",
    "tier-plans": "http://127.0.0.1:2", "tier-plan-token-file": "token",
}  # fmt: skip
"""What a sidecar must say whose tier is planned."""
NEEDED = {"cluster": CLUSTER, "tier": TIER}


def other_value(setting: Setting) -> str:
    """A value that is allowed and not the default, in TOML."""
    if isinstance(setting.default, bool):
        return str(not setting.default).lower()
    if setting.name == "sasl-mechanisms":
        return '"PLAIN"'
    if setting.name in ("http", "coordinator"):
        return '"127.0.0.1:9644"'
    if isinstance(setting.default, str):
        return f'"{setting.choices[-1]}"' if setting.choices else OTHER_TEXTS.get(setting.name, '"json"')
    if setting.name in ("peer-certificate", "peer-ca"):
        return '"peer.pem"'
    if setting.name == "node-id":
        return "6"
    if setting.name == "copy-max-bytes-per-s":  # not below the lower rate
        return str(setting.default * 2)
    return str(setting.minimum if setting.default != setting.minimum else setting.minimum + 1)


def field_values(config: object) -> list[object]:
    """Every value in a configuration, however deep."""
    names = getattr(type(config), "__dataclass_fields__", None)
    if names is None:
        return [config]
    return [value for name in names for value in field_values(getattr(config, name))]


def test_defaults_are_enough() -> None:
    """A data directory is all that must be given: loopback, port 9092, no advertised address, logfmt."""
    config = settings_of("--data-dir", "data")
    assert config.data_dir == Path("data")
    assert config.listeners == (Listener("127.0.0.1", 9092),)
    assert not config.log_as_json


@pytest.mark.parametrize(("tail_mib", "unwritten_mib"), [(4, 3), (16, 12), (1_024, 12)])
def test_what_no_chunk_has_takes_less_where_the_tail_does(tail_mib: int, unwritten_mib: int) -> None:
    """Who sets the memory of the tail sets that of the batches beside it, which have a bound of their own too."""
    store = settings_of("--data-dir", "data", "--tail-bytes", str(tail_mib << 20)).store
    assert (store.tail_bytes, store.journal.max_unwritten_bytes) == (tail_mib << 20, unwritten_mib << 20)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_works_as_flag_and_in_the_file(tmp_path: Path, setting: Setting) -> None:
    """The same value by flag or by file makes the same configuration, one that differs from the default."""
    value = other_value(setting)
    needed = NEEDED.get(setting.table, {})
    flags = [f"--{name}={text}" for name, text in needed.items() if name != setting.name]
    by_file = with_file(tmp_path, f"[{setting.table}]\n{setting.name} = {value}\n", *flags)
    by_flag = settings_of("--data-dir", "data", f"--{setting.name}={value.strip(chr(34))}", *flags)
    others = [f"--{name}={text}" for name, text in needed.items()]
    assert by_file == by_flag != settings_of("--data-dir", "data", *others)


def test_a_file_may_have_every_setting(tmp_path: Path) -> None:
    """One file with every setting, listeners and all, is accepted."""
    lines = ['data-dir = "elsewhere"', "insecure = true"]
    for table in dict.fromkeys(setting.table for setting in SETTINGS):
        lines.append(f"[{table}]")
        if table == "kafka":
            lines += ['listeners = ["127.0.0.1:1", "0.0.0.0:2"]', 'advertise = ["a:3", "b:4"]']
        lines += [f"{setting.name} = {other_value(setting)}" for setting in SETTINGS if setting.table == table]
    path = tmp_path / "cairn.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    config = settings_of("--config", str(path))
    assert config.data_dir == Path("elsewhere")
    assert config.listeners == (Listener("127.0.0.1", 1, "a", 3), Listener("0.0.0.0", 2, "b", 4))
    others = [f"--{name}={text}" for name, text in {**CLUSTER, **TIER}.items()]
    defaults = settings_of("--data-dir", "elsewhere", *others)
    assert sum(a != b for a, b in zip(field_values(config), field_values(defaults), strict=True)) >= len(SETTINGS)


def test_flags_win(tmp_path: Path) -> None:
    """A flag overrides the file, for settings, addresses and the data directory alike."""
    content = 'data-dir = "from-file"\n[kafka]\nlisteners = ["127.0.0.1:1"]\nidle-s = 5\n'
    config = with_file(tmp_path, content, "--kafka", "127.0.0.1:2", "--idle-s", "7")
    assert (config.data_dir, config.listeners[0].port, config.broker.idle_s) == (Path("data"), 2, 7.0)
    config = with_file(tmp_path, content)
    assert (config.listeners[0].port, config.broker.idle_s) == (1, 5.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("io-window = 8", ["unknown setting 'io-window'; did you mean log.io-window?"]),
        ("[kafka]\nio-window = 8", ["unknown setting 'kafka.io-window'; did you mean log.io-window?"]),
        ("[log]\nio_window = 8", ["unknown setting 'log.io_window'; did you mean log.io-window?"]),
        ("[logs]\n", ["unknown setting 'logs'; did you mean log?"]),
        ("[process]\nx = 8", ["unknown setting 'process.x'; known are process.log-format, process.log-level"]),
        ("log = 5", ["unknown setting 'log'; known are log.disk-reserve-bytes, log.io-window, "]),
        ("[quux]\n", ["unknown setting 'quux'; known are access, cluster, ", "data-dir", "insecure, kafka, log, "]),
        ("[log]\nio-window = 0", ["log.io-window=0", "from 1 to 64"]),
        ("[log]\nio-window = 65", ["log.io-window=65", "from 1 to 64"]),
        ('[log]\nio-window = "many"', ["log.io-window='many'", "whole number"]),
        ("[log]\nio-window = 1.5", ["log.io-window=1.5", "whole number"]),
        ("[log]\nio-window = true", ["log.io-window=True", "whole number"]),
        ("[log]\nio-window = [8]", ["log.io-window=[8]", "whole number"]),
        ("[kafka]\nauto-create-topics = 1", ["kafka.auto-create-topics=1", "true or false"]),
        ('[http]\nhttp = "9644"', ["'9644'", "HOST:PORT"]),
        ('[http]\nhttp = "0.0.0.0:9644"', ["--http 0.0.0.0:9644", "127.0.0.1", "--insecure"]),
        ('[http]\nhttp = "ftp://127.0.0.1:9644"', ["ftp://127.0.0.1:9644", "http or https"]),
        ('[coordinator]\ncoordinator = "x://127.0.0.1:1"', ["--coordinator x://127.0.0.1:1", "http or https"]),
        ('[process]\nlog-format = "xml"', ["process.log-format='xml'", "logfmt, json"]),
        ("[kafka]\nlisteners = 9092", ["kafka.listeners=9092", "HOST:PORT"]),
        ("[kafka]\nlisteners = [9092]", ["kafka.listeners=[9092]", "HOST:PORT"]),
        ('[kafka]\nadvertise = ["a:1", "b:2"]', ["2 advertised addresses for 1 listeners"]),
        ('insecure = "yes"', ["insecure='yes'", "true or false"]),
        ('[cluster]\nhost-name = "a"', ["--cluster URL"]),
        ('[cluster]\ncluster = "etcd://127.0.0.1:1"', ["--host-name NAME", "--node-id NUMBER", "--peer-listen"]),
        ("[log\nio-window = 8", ["cairn.toml", "line 1"]),
        ("\udcff", ["cairn.toml"]),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: str, words: Sequence[str]) -> None:
    """What is wrong, where, and what is allowed: all in the message."""
    path = tmp_path / "cairn.toml"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        settings_of("--data-dir", "data", "--config", str(path))
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing settings file is named, as is a directory in its place; nothing is assumed instead."""
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        settings_of("--data-dir", "data", "--config", str(tmp_path / "nowhere.toml"))
    with pytest.raises(ConfigError, match="Is a directory"):
        settings_of("--data-dir", "data", "--config", str(tmp_path))


def test_a_data_directory_must_be_named(tmp_path: Path) -> None:
    """Without a data directory, and with one that is not a path, nothing starts."""
    with pytest.raises(ConfigError, match="--data-dir DIR"):
        settings_of()
    path = tmp_path / "cairn.toml"
    path.write_text("data-dir = 5", encoding="utf-8")
    with pytest.raises(ConfigError, match="data-dir=5"):
        settings_of("--config", str(path))


@pytest.mark.parametrize(
    "text", ["", "9092", "localhost", ":9092", "localhost:", "localhost:port", "localhost:65536", "localhost:-1", "h:²"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """An address is HOST:PORT; everything else is shown back with an example."""
    for flag in ("--kafka", "--advertise"):
        with pytest.raises(ConfigError, match=r"is not an address: use HOST:PORT, such as 127\.0\.0\.1:9092"):
            settings_of("--data-dir", "data", "--insecure", f"{flag}={text}")


@pytest.mark.parametrize("text", ["0.0.0.0:9092", "[::]:9092", "192.168.1.2:9092", "example.org:9092"])
def test_addresses_beyond_loopback_need_a_word(text: str) -> None:
    """Without authentication, an address others can reach is refused unless --insecure says that this is meant."""
    with pytest.raises(ConfigError, match="--insecure"):
        settings_of("--data-dir", "data", "--kafka", text)
    assert settings_of("--data-dir", "data", "--kafka", text, "--insecure").listeners[0].port == 9092


@pytest.mark.parametrize(
    ("text", "host"),
    [("127.0.0.1:1", "127.0.0.1"), ("127.8.9.1:1", "127.8.9.1"), ("[::1]:1", "::1"), ("localhost:1", "localhost")],
)
def test_loopback_addresses_need_none(text: str, host: str) -> None:
    """Every way to say loopback is taken as it is."""
    assert settings_of("--data-dir", "data", "--kafka", text).listeners == (Listener(host, 1),)


def test_super_users_are_named_one_by_one() -> None:
    """Principals are separated by semicolons; what is no user, or stands for everybody, is refused by name."""
    found = settings_of("--data-dir", "data", "--super-users", "User:admin; User:CN=ops,O=x;").super_users
    assert found == {"User:admin", "User:CN=ops,O=x"}
    assert settings_of("--data-dir", "data").super_users == frozenset()
    for text in ("admin", "User:*", "User:a;Group:b", "User:"):
        with pytest.raises(ConfigError, match="super-users"):
            settings_of("--data-dir", "data", "--super-users", text)


SAFE = [
    ("SASL_SSL://0.0.0.0:1", ()),
    ("sasl_ssl://queue.example.org:1", ()),
    ("SSL://0.0.0.0:1", ("--tls-client-auth", "required", "--tls-client-ca", "ca.pem")),
    ("SSL://127.0.0.1:1", ()),
    ("SASL_PLAINTEXT://127.0.0.1:1", ()),
]
UNSAFE = [
    ("PLAINTEXT://0.0.0.0:1", ()),
    ("SASL_PLAINTEXT://0.0.0.0:1", ()),
    ("SSL://0.0.0.0:1", ()),
    ("SSL://0.0.0.0:1", ("--tls-client-auth", "requested", "--tls-client-ca", "ca.pem")),
]


@pytest.mark.parametrize(("listen", "flags"), SAFE)
def test_listeners_with_tls_and_authentication_may_be_anywhere(listen: str, flags: tuple[str, ...]) -> None:
    """Encrypted, and with a login or a required certificate, an address needs no --insecure."""
    config = settings_of("--data-dir", "data", "--kafka", listen, "--tls-certificate", "server.pem", *flags)
    assert config.listeners[0].protocol.value == listen.partition(":")[0].upper()


def test_metrics_with_tls_and_certificates_of_clients_may_be_anywhere() -> None:
    """Encrypted, and with a required certificate, the HTTP listener needs no --insecure either."""
    files = ("--tls-certificate", "server.pem", "--tls-client-ca", "ca.pem", "--tls-client-auth", "required")
    config = settings_of("--data-dir", "data", "--http", "https://0.0.0.0:9644", *files)
    assert config.http is not None
    assert config.needs_tls
    assert not settings_of("--data-dir", "data", "--coordinator", "https://127.0.0.1:1").needs_tls, "none is wanted"


@pytest.mark.parametrize(("listen", "flags"), UNSAFE)
def test_listeners_that_lack_one_of_both_stay_on_loopback(listen: str, flags: tuple[str, ...]) -> None:
    """Without TLS, or without clients that must say who they are, --insecure is needed in so many words."""
    words = ("--data-dir", "data", "--kafka", listen, "--tls-certificate", "server.pem", *flags)
    with pytest.raises(ConfigError, match=r"SASL_SSL://0\.0\.0\.0:1"):
        settings_of(*words)
    assert settings_of(*words, "--insecure").listeners[0].host == "0.0.0.0"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--kafka", "SSL://127.0.0.1:1"), "--tls-certificate"),
        (("--http", "https://127.0.0.1:1"), "--tls-certificate"),
        (("--coordinate", "network.toml", "--coordinator", "https://127.0.0.1:1"), "--tls-certificate"),
        (("--http", "https://0.0.0.0:1", "--tls-certificate", "s"), "--tls-client-auth required"),
        (("--kafka", "TLS://127.0.0.1:1"), "no protocol 'TLS'"),
        (
            ("--kafka", "SSL://127.0.0.1:1", "--tls-certificate", "s", "--tls-client-auth", "required"),
            "--tls-client-ca",
        ),
        (("--sasl-mechanisms", "GSSAPI"), "SCRAM-SHA-512"),
        (("--sasl-mechanisms", ","), "SCRAM-SHA-512"),
    ],
)
def test_security_that_cannot_be_is_refused_at_the_start(flags: tuple[str, ...], says: str) -> None:
    """The error names what is missing or wrong."""
    with pytest.raises(ConfigError, match=says):
        settings_of("--data-dir", "data", *flags)
