"""etcd's JSON: whatever comes is decoded, or is a BadAnswer; settings are checked by name."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.base.errors import FieldError, TlsError
from logstore.base.metadata.etcd import messages
from logstore.base.metadata.etcd.messages import BadAnswer, EtcdError
from logstore.base.metadata.etcd.settings import EtcdSettings, EtcdTls
from logstore.base.metadata.interface import Changes, Entry, Event

LINE = (
    b'{"result":{"header":{"cluster_id":"6","member_id":"13","revision":"3","raft_term":"2"},"events":[{"kv":{"key":'
    b'"L24vYQ==","create_revision":"2","mod_revision":"2","version":"1","value":"MQ==","lease":"7"}},'
    b'{"type":"DELETE","kv":{"key":"L24vYg==","mod_revision":"3"}}]}}'
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("result", "error", "header", "events", "kv", "key", "value", "kvs", "responses", "revision")
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def decode_everything(data: bytes) -> None:
    """Every decoder; what is wrong is a BadAnswer or an EtcdError."""
    for decode in (
        lambda: messages.watch_answer("/n/", data),
        lambda: messages.stream_answer(data),
        lambda: messages.error_of(500, data),
        lambda: messages.header_of(messages.parse(data)),
        lambda: messages.entries_of("/n/", messages.parse(data)),
        lambda: messages.conflict_entries("/n/", messages.parse(data)),
    ):
        with suppress(BadAnswer, EtcdError):
            decode()


def test_a_message_of_a_watch() -> None:
    """Events with their revisions; the namespace is taken off."""
    found = messages.watch_answer("/n/", LINE)
    assert found.events == ((2, Event("a", Entry("a", b"1", 2, 7))), (3, Event("b", None)))
    assert messages.grouped(found.events)[1] == Changes(3, (Event("b", None),))
    with pytest.raises(BadAnswer, match="is outside"):
        messages.watch_answer("/other/", LINE)


def test_damaged_messages_are_bad_answers() -> None:
    """Cut anywhere, or with any bit flipped: decoded to something, or a BadAnswer."""
    for cut in range(len(LINE)):
        with pytest.raises(BadAnswer):
            messages.watch_answer("/n/", LINE[:cut])
    for position in range(len(LINE)):
        for bit in range(8):
            decode_everything(LINE[:position] + bytes([LINE[position] ^ (1 << bit)]) + LINE[position + 1 :])


@given(st.binary(max_size=40) | JSON.map(lambda found: json.dumps(found).encode()))
def test_any_bytes_are_bad_answers(data: bytes) -> None:
    """Other people's servers answer too."""
    decode_everything(data)


@pytest.mark.parametrize(
    ("code", "message", "perhaps"),
    [
        (5, "etcdserver: requested lease not found", False),
        (8, "etcdserver: mvcc: database space exceeded", False),
        (14, "etcdserver: no leader", False),
        (14, "etcdserver: leader changed", True),
        (14, "etcdserver: request timed out", True),
        (4, "context deadline exceeded", True),
        (2, "anything", True),
    ],
)
def test_errors_say_whether_it_was_made(code: int, message: str, perhaps: bool) -> None:
    """Only what etcd refuses before it proposes anything was surely not made."""
    assert EtcdError(code, message).made_perhaps is perhaps


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"endpoints": ()}, "etcd-endpoints: 0 given"),
        ({"endpoints": ("localhost:2379",)}, "etcd-endpoints='localhost:2379': must be http://HOST:PORT"),
        ({"endpoints": ("http://h",)}, "must be http://HOST:PORT"),
        ({"endpoints": ("http://h:x",)}, "must be http://HOST:PORT"),
        ({"endpoints": ("http://u:p@h:1",)}, "must be http://HOST:PORT"),
        ({"endpoints": ("http://h:1/path",)}, "must be http://HOST:PORT"),
        ({"namespace": "with space/"}, "etcd-namespace='with space/'"),
        ({"namespace": ""}, "etcd-namespace=''"),
        ({"attempt_s": 0.0}, "etcd-attempt_s=0.0: must be above 0"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, object], said: str) -> None:
    """A wrong setting is refused before anything is sent."""
    with pytest.raises(FieldError) as caught:
        EtcdSettings(**{"endpoints": ("http://127.0.0.1:2379",), **changes})  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """A missing or wrong file is a TlsError with its name."""
    with pytest.raises(TlsError, match="etcd-ca"):
        EtcdTls(str(tmp_path / "none.pem")).context()
