"""The settings of a sidecar in one table, from which flags, the TOML file and docs/settings.md follow.

Invariants: a name is unique; a default is a value that the setting may have; where listeners are is no setting of the
table (`logstore.config`). Nothing here reads a file or a flag.
"""

from typing import NamedTuple

from logstore.base.events import LEVELS
from logstore.base.fields import Boolean, Integer, String, Type
from logstore.base.tls import CLIENT_CERTIFICATES, VERSIONS
from logstore.cluster.copies.copy_pace import DEFAULT_GRACE_S, DEFAULT_MAX_RATE, DEFAULT_MIN_RATE
from logstore.log.chunks import MAX_APPEND_BYTES
from logstore.log.journal import DEFAULT_FILE_BYTES
from logstore.log.space import DEFAULT_RESERVE
from logstore.log.store import DEFAULT_TAIL_BYTES

STATE_DIRECTORY = "/dev/shm/cairn-{uid}"  # noqa: S108  its owner is checked before anything in it is touched
"""`{uid}` is replaced by the numeric id of the user that runs the sidecar."""
_DAY_MS = 24 * 3_600_000
_LARGEST = (1 << 63) - 1
MAX_TEXT_CHARACTERS = 4096
"""Longest value of a text setting: the longest path of Linux."""
_MIB = 1 << 20


class Setting(NamedTuple):
    """One setting: `--name` on the command line, `name` in `[table]` of the file."""

    table: str
    name: str
    default: int | bool | str
    minimum: int
    maximum: int
    help: str
    choices: tuple[str, ...] = ()
    """The allowed values of a text setting; empty: any text."""

    @property
    def field(self) -> str:
        """The setting's name in Python."""
        return self.name.replace("-", "_")

    @property
    def type(self) -> Type:
        """The type of its values."""
        if isinstance(self.default, bool):
            return Boolean()
        if isinstance(self.default, int):
            return Integer(self.minimum, self.maximum)
        return String(MAX_TEXT_CHARACTERS, 0, self.choices)


SETTINGS: tuple[Setting, ...] = (
    Setting("log", "io-window", 8, 1, 64, "disk jobs in flight at a time, and threads that run them"),
    Setting(
        *("log", "journal-bytes", DEFAULT_FILE_BYTES, 0, 1 << 34),
        "size of a file of the shared journal, of which there are up to three; 0: every append goes to its own chunk",
    ),
    Setting(
        *("log", "tail-bytes", DEFAULT_TAIL_BYTES, _MIB, 1 << 40),
        "memory for the newest batches of all streams; requests on their way get up to half of it",
    ),
    Setting(
        "log",
        "retention-ms",
        7 * _DAY_MS,
        -1,
        _LARGEST,
        "how long records stay at least, from their append; -1: no limit",
    ),
    Setting("log", "retention-bytes", -1, -1, _LARGEST, "size of a stream beyond which it is trimmed; -1: no limit"),
    Setting("log", "retention-check-interval-ms", 300_000, 10, 366 * _DAY_MS, "how often retention is applied"),
    Setting(
        "log",
        "disk-reserve-bytes",
        DEFAULT_RESERVE,
        DEFAULT_RESERVE,
        _LARGEST,
        "bytes of the disk that appends leave free; -1: 5 % of it, at most 1 GiB; 0: none",
    ),
    Setting(
        "log", "reader-hold-bytes", 10 << 30, 0, _LARGEST, "bytes of a stream that a registered reader keeps at most"
    ),
    Setting(
        "log",
        "reader-hold-ms",
        7 * _DAY_MS,
        0,
        _LARGEST,
        "how long a registered reader keeps records without an acknowledgement",
    ),
    Setting("log", "segment-bytes", 64 * _MIB, 1024, 1 << 30, "size at which a chunk is sealed"),
    Setting(
        "log", "segment-ms", 7 * _DAY_MS, 1, _LARGEST, "age of a chunk's first append at which the chunk is sealed"
    ),
    Setting("log", "message-timestamp-before-max-ms", _LARGEST, 0, _LARGEST, "how old a new record may be"),
    Setting("log", "message-timestamp-after-max-ms", 3_600_000, 0, _LARGEST, "how far in the future a record may be"),
    Setting(
        "log",
        "max-message-bytes",
        1_048_588,
        0,
        MAX_APPEND_BYTES,
        "largest batch that is accepted; max-frame-bytes must hold it",
    ),
    Setting("log", "producer-expiry-ms", _DAY_MS, 1000, _LARGEST, "when an idle idempotent producer is forgotten"),
    Setting("kafka", "auto-create-topics", True, 0, 1, "create a topic when it is first used"),
    Setting("kafka", "default-partitions", 1, 1, 10_000, "partitions of a topic that does not ask for a number"),
    Setting("kafka", "max-frame-bytes", 16 * _MIB, 64 * 1024, 100 * _MIB, "largest request"),
    Setting("kafka", "max-connections", 10_000, 1, 1_000_000, "clients at a time; then the longest idle gives way"),
    Setting("kafka", "max-connections-per-address", 100, 1, 1_000_000, "of these from one address but loopback"),
    Setting("kafka", "connection-in-flight-bytes", 8 * _MIB, 1024, 1 << 40, "unanswered requests of one connection"),
    Setting(
        "kafka",
        "total-in-flight-bytes",
        32 * _MIB,
        1024,
        1 << 40,
        "unanswered requests of all connections; as much again on the way in",
    ),
    Setting(
        "kafka",
        "total-answer-bytes",
        32 * _MIB,
        _MIB,
        1 << 40,
        "unsent answers of fetches and scans; as much again of all others",
    ),
    Setting("kafka", "handshake-s", 10, 1, 3600, "how long a new connection may be silent"),
    Setting("kafka", "idle-s", 600, 1, 86_400, "how long any connection may be silent"),
    Setting(
        "access",
        "super-users",
        "",
        0,
        0,
        "principals that may do everything, separated by semicolons, such as User:admin;User:ops",
    ),
    Setting("security", "tls-certificate", "", 0, 0, "PEM file with the sidecar's certificate and its chain"),
    Setting("security", "tls-key", "", 0, 0, "PEM file with its key; empty: it is in tls-certificate"),
    Setting("security", "tls-key-password-file", "", 0, 0, "file with the password of that key; empty: it has none"),
    Setting("security", "tls-client-ca", "", 0, 0, "PEM file with the authorities of clients' certificates"),
    Setting(
        "security",
        "tls-client-auth",
        "none",
        0,
        0,
        "whether TLS clients show a certificate: none, requested, required",
        tuple(CLIENT_CERTIFICATES),
    ),
    Setting("security", "tls-min-version", "1.2", 0, 0, "oldest version of TLS: 1.2 or 1.3", tuple(VERSIONS)),
    Setting(
        "security",
        "sasl-mechanisms",
        "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        0,
        0,
        "how clients log in to SASL listeners; PLAIN over TLS only",
    ),
    Setting("security", "login-failure-delay-ms", 100, 0, 10_000, "how long a wrong login waits for its answer"),
    Setting("groups", "min-session-timeout-ms", 6_000, 1, _LARGEST, "shortest session a group member may ask for"),
    Setting("groups", "max-session-timeout-ms", 1_800_000, 1, _LARGEST, "longest session a group member may ask for"),
    Setting("groups", "initial-rebalance-delay-ms", 100, 0, 60_000, "wait for more members of a new group"),
    Setting("groups", "max-group-members", 1_000, 1, 100_000, "members of one group"),
    Setting("groups", "offsets-retention-ms", 7 * _DAY_MS, 1, _LARGEST, "when an unused group is forgotten"),
    Setting("cluster", "cluster", "", 0, 0, "metadata store of the cluster: etcd://HOST:PORT,…; empty: a host alone"),
    Setting("cluster", "host-name", "", 0, 0, "name of this host in the cluster; stays with its data directory"),
    Setting("cluster", "node-id", -1, -1, (1 << 31) - 1, "number of this host, as Kafka's clients see it"),
    Setting("cluster", "peer-listen", "", 0, 0, "HOST:PORT where the other hosts of the cluster connect"),
    Setting("cluster", "peer-advertise", "", 0, 0, "HOST:PORT that other hosts are told; empty: peer-listen"),
    Setting("cluster", "peer-certificate", "", 0, 0, "PEM file with this host's certificate, which has its host-name"),
    Setting("cluster", "peer-key", "", 0, 0, "PEM file with its key; empty: it is in peer-certificate"),
    Setting("cluster", "peer-ca", "", 0, 0, "PEM file with the authorities of all hosts' certificates"),
    Setting("cluster", "etcd-user", "", 0, 0, "user of etcd; empty: none"),
    Setting("cluster", "etcd-password-file", "", 0, 0, "file with that user's password"),
    Setting("cluster", "etcd-ca", "", 0, 0, "PEM file with the authority of etcd's certificate, for etcds://"),
    Setting("cluster", "etcd-certificate", "", 0, 0, "PEM file with this host's certificate for etcd; empty: none"),
    Setting("cluster", "etcd-key", "", 0, 0, "its key; empty: in the same file"),
    Setting("cluster", "rack", "", 0, 0, "fault domains of this host, such as /zone1/rack3; empty: topology's"),
    Setting("cluster", "disk-rate", 0, 0, (1 << 53) - 1, "bytes per second that its disk takes; 0: topology's"),
    Setting("cluster", "topology", "", 0, 0, "file that says where hosts are: docs/cluster.md"),
    Setting("cluster", "topology-script", "", 0, 0, "Hadoop's rack script, which is asked for this host"),
    Setting("cluster", "lease-s", 3, 2, 3600, "how long a silent host counts as alive, if its machine is gone"),
    Setting("cluster", "copy-min-bytes-per-s", DEFAULT_MIN_RATE, 1 << 16, 1 << 40, "rate of copies at the least"),
    Setting("cluster", "copy-max-bytes-per-s", DEFAULT_MAX_RATE, 1 << 16, 1 << 40, "rate of copies at the most"),
    Setting("cluster", "copy-grace-s", DEFAULT_GRACE_S, 0, 86_400, "how long chunks wait for a host that has gone"),
    Setting("cluster", "default-replication-factor", 3, 1, 5, "copies of topics that ask for no number of their own"),
    Setting("tier", "tier-url", "", 0, 0, "webhdfs://NAMENODE:PORT/DIRECTORY for sealed chunks; empty: no tier"),
    Setting("tier", "tier-user", "cairn", 0, 0, "user of HDFS who owns the tier's files"),
    Setting("tier", "tier-replicas", 3, 1, 16, "replicas of the tier's files in HDFS"),
    Setting("tier", "tier-uploads", 2, 1, 64, "chunks that are stored in the tier at a time"),
    Setting("tier", "tier-cache-bytes", 32 * _MIB, 8 * _MIB, 1 << 40, "memory for what was read from the tier"),
    Setting("tier", "tier-coordinator", "", 0, 0, "URL of the tier's coordinator, or several, with commas"),
    Setting("tier", "tier-coordinator-token-file", "", 0, 0, "file with that coordinator's token; empty: it has none"),
    Setting("tier", "tier-coordinator-ca-file", "", 0, 0, "authorities of its certificate, PEM; empty: the system's"),
    Setting("tier", "tier-coordinator-certificate-file", "", 0, 0, "PEM file with certificate and key to show it"),
    Setting("tier", "tier-host", "", 0, 0, "name of this host in that coordinator's network"),
    Setting("tier", "tier-plans", "", 0, 0, "URL of the plan table in the NameNode that follows these plans"),
    Setting("tier", "tier-plan-token-file", "", 0, 0, "file with the token of that plan table"),
    Setting("epochs", "staging-bytes", 4 << 30, _MIB, 1 << 50, "staged output that is not committed yet"),
    Setting(
        "epochs", "staged-age-ms", _DAY_MS, 1000, _LARGEST, "the age at which uncommitted staged output is dropped"
    ),
    Setting("state", "state-directory", STATE_DIRECTORY, 0, 0, "where streaming queries keep state; empty: not tidied"),
    Setting("state", "state-idle-ms", 600_000, 1000, _LARGEST, "how long unused state stays there"),
    Setting("coordinator", "coordinate", "", 0, 0, "file with the network to plan writes in; empty: no coordinator"),
    Setting("coordinator", "coordinator", "127.0.0.1:9880", 0, 0, "[https://]HOST:PORT of the coordinator"),
    Setting(
        "coordinator", "coordinator-advertise", "", 0, 0, "HOST:PORT where clients reach it; empty: where it listens"
    ),
    Setting("coordinator", "coordinator-token-file", "", 0, 0, "file with a text that its clients must know"),
    Setting("http", "http", "", 0, 0, "[https://]HOST:PORT of metrics, health and the status page; empty: none"),
    Setting("process", "log-format", "logfmt", 0, 0, "logfmt or json", ("logfmt", "json")),
    Setting(
        "process", "log-level", "info", 0, 0, "least level of lines that are written: info, warning, error", LEVELS
    ),
)
