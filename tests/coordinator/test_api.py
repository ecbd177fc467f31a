"""The interface: what the tables say is what is answered, and the OpenAPI document says the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import permutations
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.base.fields import Field, Object
from logstore.base.http.messages import HttpRequest
from logstore.testing.reports import RecordedReports
from scheduler.coordinator.api import ROUTES
from scheduler.coordinator.dispatch import ApiCall, ClientCheck, Dispatch, Reply, may_wait
from scheduler.coordinator.log_events import REQUEST_CRASHED
from scheduler.coordinator.openapi import document
from scheduler.coordinator.routes import ERRORS
from scheduler.coordinator.testing import running
from scheduler.errors import PlanInvalid
from scheduler.topology import racks
from tests.coordinator.support import Answer, ask, conforms, raw

DOCUMENT = document()


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[str]:
    """A coordinator that is asked for anything."""
    with running(racks([4, 4], 4), planner="paper") as found:
        yield found


@pytest.fixture
def url() -> Iterator[str]:
    """A coordinator of the test's own."""
    with running(racks([4, 4], 4), planner="paper") as found:
        yield found


def checked(url: str, method: str, path: str, template: str, value: object = None, **more: Any) -> Answer:
    """Ask, and hold the answer against the document: the status is listed, the body fits its schema."""
    answer = ask(url, method, path, value, **more)
    operation = DOCUMENT["paths"][template][method.lower()]
    response = operation["responses"].get(str(answer.status))
    assert response is not None, f"{method} {template} answered {answer.status}, which it does not document"
    ((kind, content),) = response["content"].items()
    assert answer.headers["Content-Type"] == kind
    if kind == "application/json":
        assert not (broken := conforms(answer.json(), content["schema"], DOCUMENT)), broken
    return answer


def test_the_table_says_which_requests_wait() -> None:
    """Whether the server watches for a client that goes away is the route's `waits`, whatever a request is called."""
    for route in ROUTES:
        for value in ("go", "a%2Fgo", "7"):
            target = re.sub(r"\{\w+\}", value, route.path)
            assert may_wait(HttpRequest(route.method, target, {}, b"", "")) is route.waits
    assert not may_wait(HttpRequest("GET", "/v1/%ff/go", {}, b"", ""))
    assert not may_wait(HttpRequest("DELETE", "/v1/requests/x/go", {}, b"", ""))


def submit(url: str, **fields: object) -> Answer:
    """Submit a request."""
    return checked(url, "POST", "/v1/requests", "/v1/requests", fields)


def test_the_document_has_every_route_and_every_error() -> None:
    """Each route's statuses are all in it, described, with a schema; every reference leads somewhere."""
    assert {(path, method.upper()) for path, item in DOCUMENT["paths"].items() for method in item} == {
        (route.path, route.method) for route in ROUTES
    }
    for route in ROUTES:
        operation = DOCUMENT["paths"][route.path][route.method.lower()]
        assert {int(status) for status in operation["responses"]} == route.statuses()
        assert all(response["description"] for response in operation["responses"].values())
        assert route.statuses() - set(route.answers) <= set(ERRORS)
        assert {one["name"] for one in operation.get("parameters", [])} == {*route.parameters, *route.query.fields}
    assert len({route.operation for route in ROUTES}) == len(ROUTES)
    text = json.dumps(DOCUMENT)
    for part in text.split('"$ref": "#/components/schemas/')[1:]:
        assert part.split('"')[0] in DOCUMENT["components"]["schemas"]
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema["additionalProperties"] is False or schema["properties"] == {}, name
        assert all(one["description"] for one in schema["properties"].values()), name


def test_the_document_is_served(url: str) -> None:
    """GET /openapi.json is the document."""
    assert checked(url, "GET", "/openapi.json", "/openapi.json").json() == DOCUMENT


def test_a_request_from_beginning_to_end(url: str) -> None:
    """Submit, go, failed, go again, done, finished; every answer fits its schema."""
    first = submit(url, name="a/b c", writer="r1h1", chunks=1, replicas=2)
    assert first.status == 201
    assert submit(url, name="a/b c", writer="r1h1", chunks=1, replicas=2).status == 200
    view = first.json()
    assert (view["state"], view["done"], view["last_event"]) == ("running", 0, 1)
    (go,) = view["go"]
    assert (go["number"], go["chunk"], go["attempt"], go["hosts"][0], len(go["hosts"])) == (1, 0, 1, "r1h1", 3)
    path, template = f"/v1/requests/{quote('a/b c', safe='')}", "/v1/requests/{name}"
    assert checked(url, "GET", path, template).json()["go"] == [go]
    report = template + "/chunks/{chunk}/"
    failed = checked(url, "POST", f"{path}/chunks/0/failed", report + "failed", {"attempt": 1, "suspects": ["r1h2"]})
    assert failed.json()["counted"] is True
    events = checked(url, "GET", f"{path}/go?after=1", template + "/go").json()["events"]
    assert [(one["number"], one["event"], one["attempt"]) for one in events] == [(2, "go", 2)]
    assert "r1h2" not in events[0]["hosts"]
    stale = checked(url, "POST", f"{path}/chunks/0/done", report + "done", {"attempt": 1})
    assert stale.json()["counted"] is False
    for counted in (True, False):
        done = checked(url, "POST", f"{path}/chunks/0/done", report + "done", {"attempt": 2}).json()
        assert (done["counted"], done["state"]) == (counted, "finished")
    view = checked(url, "GET", path, template).json()
    assert (view["done"], view["go"], view["place"]) == (1, [], None)
    ended = checked(url, "GET", f"{path}/go?after=2", template + "/go").json()
    assert (ended["state"], [one["event"] for one in ended["events"]]) == ("finished", ["finished"])
    assert checked(url, "GET", f"{path}/go?after=3&wait_s=60", template + "/go").json()["events"] == []
    assert checked(url, "DELETE", path, template).json()["state"] == "finished"
    assert checked(url, "PUT", path, template, {"chunks": 2}).status == 409


def test_only_what_has_lists_may_be_large(url: str) -> None:
    """Sources of a submission and files of a checkpoint need room; any other large body is refused unread."""
    large = b"{" + b" " * 100_000 + b"}"
    assert "chunks: is missing" in ask(url, "POST", "/v1/requests", body=large).text
    assert "sink: is missing" in ask(url, "PUT", "/v1/units/a/checkpoints/1", body=large).text
    for method, path in (("POST", "/v1/hosts"), ("PUT", "/v1/requests/a"), ("POST", "/v1/requests/a/chunks/0/failed")):
        answer = ask(url, method, path, body=large)
        assert (answer.status, "at most 65536" in answer.text) == (413, True), answer
    assert ask(url, "POST", "/v1/requests", body=b"{" + b" " * (1 << 20) + b"}").status == 413


def test_a_large_read_is_checked_beside_everything_else(url: str) -> None:
    """16,384 chunks from a few hosts are taken; more different sets of hosts than one event can plan are refused."""
    hosts = [f"r{rack}h{number}" for rack in (1, 2) for number in (1, 2, 3, 4)]
    sources = [[hosts[number % 8], hosts[(number + 1) % 8]] for number in range(16_384)]
    answer = submit(url, name="large", writer="r1h1", kind="read", chunks=16_384, sources=sources)
    assert answer.status == 201
    several = [list(one) for size in (4, 5, 6) for one in permutations(hosts, size)][: 4096 + 1]
    refused = submit(url, writer="r1h1", kind="read", chunks=len(several), sources=several)
    assert (refused.status, refused.json()["field"]) == (400, "sources")
    assert "4097 different sets of hosts; at most 4096" in refused.text
    refused = submit(url, writer="r1h1", kind="read", chunks=1, sources=[["r1h2"] * 17])
    assert refused.status == 400


def test_a_writer_that_must_wait_is_told_its_place(url: str) -> None:
    """A busy writer's second request waits behind the first; it can change its size and be given up."""
    first = submit(url, writer="r1h2", chunks=3).json()
    assert len(first["go"]) == 2
    second = submit(url, name="later", writer="r1h2", chunks=5).json()
    assert (second["state"], second["go"]) == ("waiting", [])
    assert second["place"]["requests_ahead"] == 1
    path, template = "/v1/requests/later", "/v1/requests/{name}"
    assert checked(url, "PUT", path, template, {"chunks": 2}).json()["chunks"] == 2
    queue = checked(url, "GET", "/v1/status", "/v1/status").json()["queue"]
    assert [one["request"] for one in queue] == [first["request"], "later"]
    assert checked(url, "DELETE", path, template).json()["state"] == "cancelled"
    assert checked(url, "DELETE", f"/v1/requests/{first['request']}", template).json()["state"] == "cancelled"
    events = checked(url, "GET", f"/v1/requests/{first['request']}/go", template + "/go").json()["events"]
    assert [one["event"] for one in events] == ["go", "go", "revoked", "revoked", "cancelled"]
    assert checked(url, "GET", "/v1/status", "/v1/status").json()["capacities"] == []


def test_hosts_come_go_and_come_back(url: str) -> None:
    """Register, keep alive, leave: what was under way there is planned again; addresses reach the writers."""
    host, template = "/v1/hosts", "/v1/hosts/{name}"
    registered = checked(url, "POST", host, host, {"name": "r2h1", "address": "10.0.0.9:50010"})
    assert 9_000 < registered.json()["deadline_ms"] <= 10_000
    assert checked(url, "PUT", f"{host}/r2h1/alive", template + "/alive").status == 200
    assert checked(url, "PUT", f"{host}/r2h2/alive", template + "/alive").status == 409
    assert checked(url, "PUT", f"{host}/r2h9/alive", template + "/alive").status == 404
    rule = ["other-rack:0"]
    views = [submit(url, writer=f"r1h{n}", chunks=1, replicas=1, placement=rule).json() for n in (1, 2, 3, 4)]
    used = {view["request"]: view["go"][0]["hosts"][1] for view in views}
    lost = next(iter(used.values()))
    if lost != "r2h1":
        checked(url, "POST", host, host, {"name": lost, "address": None})
    assert checked(url, "DELETE", f"{host}/{lost}", template).json()["lost"] is True
    for name, target in used.items():
        events = checked(url, "GET", f"/v1/requests/{name}/go?after=1&wait_s=0", "/v1/requests/{name}/go").json()[
            "events"
        ]
        assert [one["event"] for one in events] == (["revoked", "go"] if target == lost else [])
    assert submit(url, writer=lost, chunks=1).status == 409
    assert checked(url, "POST", host, host, {"name": lost}).json()["lost"] is False
    for name in used:
        checked(url, "DELETE", f"/v1/requests/{name}", "/v1/requests/{name}")


@pytest.mark.parametrize(
    ("fields", "field", "hint"),
    [
        ({"writer": "r1h1"}, "chunks", "is missing"),
        ({"writer": "r1h1", "chunks": 0}, "chunks", "from 1 to"),
        ({"writer": "r1h1", "chunks": 1.5}, "chunks", "whole number"),
        ({"writer": "r1h1", "chunks": True}, "chunks", "whole number"),
        ({"writer": "r1h1", "chunks": 10**400}, "chunks", "from 1 to"),
        ({"writer": "r1h9", "chunks": 1}, "writer", "r1h9"),
        ({"writer": 5, "chunks": 1}, "writer", "text"),
        ({"chunks": 1}, "writer", ""),
        ({"writer": "r1h1", "chunks": 1, "replica": 2}, "replica", "did you mean 'replicas'"),
        ({"writer": "r1h1", "chunks": 1, "replicas": 17}, "replicas", "from 1 to 16"),
        ({"writer": "r1h1", "chunks": 1, "replicas": 16}, "replicas", "ask for less"),
        ({"writer": "r1h1", "chunks": 1, "placement": ["nearby:0"]}, "placement", "nearby:0"),
        ({"writer": "r1h1", "chunks": 1, "placement": ["anywhere"] * 9}, "placement", "ask for less"),
        ({"writer": "r1h1", "chunks": 1, "placement": "same-rack:0"}, "placement", "list"),
        ({"writer": "r1h1", "chunks": 1, "placement": ["same-rack:0", 3]}, "placement[1]", "text"),
        ({"writer": "r1h1", "chunks": 1, "priority": 10}, "priority", "from 0 to 9"),
        ({"writer": "r1h1", "chunks": 1, "kind": "wriet"}, "kind", "did you mean 'write'"),
        ({"writer": "r1h1", "chunks": 1, "kind": "read"}, "sources", ""),
        ({"writer": "r1h1", "chunks": 1, "kind": "read", "sources": [["r2h7"]]}, "sources", "r2h7"),
        ({"writer": "r1h1", "chunks": 1, "name": "a\nb"}, "name", "control characters"),
        ({"writer": "r1h1", "chunks": 1, "name": ""}, "name", "1 to 200"),
    ],
)
def test_a_bad_field_is_named(url: str, fields: dict[str, object], field: str, hint: str) -> None:
    """400 with the field to change, and what it may be."""
    answer = submit(url, **fields)
    assert answer.status == 400
    assert answer.json().get("field") == field
    assert hint in answer.json()["error"]
    assert len(answer.json()["error"]) < 400


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/v2/requests", None, {}, 404),
        ("GET", "/v1/requests/none", None, {}, 404),
        ("GET", "/v1/requests/none/go", None, {}, 404),
        ("POST", "/v1/requests/none/chunks/0/done", b'{"attempt":1}', {}, 404),
        ("PATCH", "/v1/requests", None, {}, 405),
        ("POST", "/v1/status", b"{}", {}, 405),
        ("POST", "/v1/requests", None, {}, 411),
        ("POST", "/v1/requests", b"{}", {"Content_Type": "text/plain"}, 415),
        ("POST", "/v1/requests", b"{", {}, 400),
        ("POST", "/v1/requests", b"[]", {}, 400),
        ("POST", "/v1/requests", b'{"writer":"r1h1","chunks":1,"chunks":2}', {}, 400),
        ("POST", "/v1/requests", b'{"writer":"r1h1","chunks":1,"priority":NaN}', {}, 400),
        ("POST", "/v1/requests", b"[" * 100_000, {}, 400),
        ("POST", "/v1/requests", b'{"chunks":' + b"9" * 5000 + b"}", {}, 400),
        ("POST", "/v1/requests", b"\xff\xfe", {}, 400),
        ("POST", "/v1/requests", b'{"\\ud800":1}', {}, 400),
        ("POST", "/v1/requests", b'{"\\ud800":1,"\\ud800":2}', {}, 400),
        ("POST", "/v1/requests", b'{"writer":"\\ud800","chunks":1}', {}, 400),
        ("GET", "/v1/requests/none/go?after=x", None, {}, 400),
        ("GET", "/v1/requests/none/go?wait_s=61", None, {}, 400),
        ("GET", "/v1/requests/none/go?wait_s=nan", None, {}, 400),
        ("GET", "/v1/requests/none/go?wait_s=1e0000000000000000000000000009", None, {}, 400),
        ("GET", "/v1/requests/none/go?after=1&after=2", None, {}, 400),
        ("GET", "/v1/requests/none/go?afer=1", None, {}, 400),
        ("GET", "/v1/requests/%ff/go", None, {}, 400),
        ("POST", "/v1/requests/none/chunks/-1/done", b'{"attempt":1}', {}, 400),
    ],
)
def test_what_cannot_be_is_refused(
    url: str, method: str, path: str, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    """The right 4xx, in JSON, whatever is wrong with method, path, query or body."""
    answer = ask(url, method, path, body=body, **headers)
    assert answer.status == status, answer.text
    assert not conforms(answer.json(), {"$ref": "#/components/schemas/Error"}, DOCUMENT)
    if status == 405:
        assert set(answer.headers["Allow"].split(", ")) <= {"GET", "HEAD", "POST"}


def test_a_body_that_says_nothing_of_json_is_told_what_to_add(url: str) -> None:
    """What `curl -d` sends without more: the header to add, word for word."""
    answer = ask(url, "POST", "/v1/requests", body=b"{}", Content_Type="application/x-www-form-urlencoded")
    assert (answer.status, answer.json()["field"]) == (415, "Content-Type")
    assert "-H 'Content-Type: application/json'" in answer.json()["error"]
    assert "x-www-form-urlencoded" in answer.json()["error"]


async def test_a_planners_bug_is_not_the_clients_fault() -> None:
    """A plan that breaks a promise is a 500 with a line in the log, not a 400."""

    async def broken(call: ApiCall) -> Reply:
        raise PlanInvalid("no link left at 3")

    reports = RecordedReports()
    dispatch = Dispatch({route.operation: broken for route in ROUTES}, reports, ClientCheck())
    answer = await dispatch(HttpRequest("GET", "/v1/status", {}, b"", "x"))
    assert (answer.status, reports.names()) == (500, [REQUEST_CRASHED.name])


def test_a_chunk_that_waits_again_is_not_to_be_written(url: str) -> None:
    """A failed chunk whose turn has not come again: its old go does not hold any more, and is not shown."""
    first = submit(url, name="first", writer="r1h1", chunks=2).json()
    assert [one["chunk"] for one in first["go"]] == [0, 1]
    submit(url, name="urgent", writer="r1h1", chunks=4, priority=9)
    path = "/v1/requests/first"
    assert ask(url, "POST", f"{path}/chunks/0/failed", {"attempt": 1}).json()["counted"] is True
    assert [one["chunk"] for one in ask(url, "GET", path).json()["go"]] == [1]
    ask(url, "DELETE", "/v1/requests/urgent")
    assert [(one["chunk"], one["attempt"]) for one in ask(url, "GET", path).json()["go"]] == [(0, 2), (1, 1)]


def test_a_change_may_be_sent_twice(url: str) -> None:
    """The same number of chunks again, after a lost answer, is no conflict, whatever was started meanwhile."""
    for name, chunks in (("first", 2), ("second", 3)):
        submit(url, name=name, writer="r1h1", chunks=chunks)
    path, template = "/v1/requests/second", "/v1/requests/{name}"
    assert checked(url, "PUT", path, template, {"chunks": 1}).json()["state"] == "waiting"
    ask(url, "DELETE", "/v1/requests/first")
    again = checked(url, "PUT", path, template, {"chunks": 1})
    assert (again.status, again.json()["state"], again.json()["chunks"]) == (200, "running", 1)
    assert checked(url, "PUT", path, template, {"chunks": 2}).status == 409


def test_sources_that_are_lost_are_a_conflict(url: str) -> None:
    """409, as for a writer: it can be done as soon as one of them is back."""
    for host in ("r2h1", "r2h2"):
        ask(url, "DELETE", f"/v1/hosts/{host}")
    fields = {"writer": "r1h1", "chunks": 2, "kind": "read", "sources": [["r2h3"], ["r2h1", "r2h2"]]}
    answer = submit(url, **fields)
    assert (answer.status, answer.json()["field"]) == (409, "sources[1]")
    ask(url, "POST", "/v1/hosts", {"name": "r2h2"})
    assert submit(url, **fields).status == 201


def test_the_same_name_for_something_else_is_a_conflict(url: str) -> None:
    """409 that names the field; the first request is not touched."""
    assert submit(url, name="taken", writer="r1h3", chunks=1).status == 201
    answer = submit(url, name="taken", writer="r1h3", chunks=2)
    assert (answer.status, answer.json()["field"]) == (409, "name")
    checked(url, "DELETE", "/v1/requests/taken", "/v1/requests/{name}")


def test_events_of_the_future_are_refused(url: str) -> None:
    """`after` beyond the last event is a mistake, not a reason to wait for ever."""
    submit(url, name="young", writer="r1h4", chunks=1)
    answer = checked(url, "GET", "/v1/requests/young/go?after=50", "/v1/requests/{name}/go")
    assert (answer.status, answer.json()["field"]) == (400, "after")
    checked(url, "DELETE", "/v1/requests/young", "/v1/requests/{name}")


def test_it_still_serves_after_garbage(url: str) -> None:
    """Raw bytes of all kinds on real connections; afterwards it is well."""
    for sent in (
        b"\x00" * 5000,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000,
        b"\r\n" * 20_000,
        b"POST / HTTP/1.1\r\n\r\n",
    ):
        raw(url, sent)
    assert checked(url, "GET", "/health", "/health").json() == {"status": "ok"}


def values(field: Field) -> st.SearchStrategy[Any]:
    """Values for a field: some that are right, some that are near, some that are nothing like it."""
    right = {
        "writer": st.sampled_from(["r1h1", "r2h2", "r9h9"]), "name": st.sampled_from(["x", "y", "r1h1", "r2h2"]),
        "kind": st.sampled_from(["write", "read", "copy", "?"]), "placement": st.just(["anywhere"]),
        "sources": st.just([["r2h1"]]), "suspects": st.just(["r2h1"]),
    }  # fmt: skip
    wrong = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists, max_leaves=4)
    name = next(key for key, part in _named(field) if part is field)
    return st.one_of(right.get(name, st.integers(0, 5)), right.get(name, st.integers(0, 5)), wrong)


def _named(field: Field) -> list[tuple[str, Field]]:
    records = [route.body for route in ROUTES if route.body is not None]
    return [(key, part) for record in records for key, part in record.fields.items()]


def bodies(record: Object) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of a record's fields, and now and then a stranger."""
    known = {name: values(part) for name, part in record.fields.items()}
    return st.fixed_dictionaries({}, optional={**known, "stranger": st.integers()})


CALLS = st.one_of(
    [
        st.tuples(
            st.just(route),
            st.tuples(
                *(st.sampled_from(["x", "y", "r1h1", "r2h2", "0", "1", "%00", "a%2Fb"]) for _ in route.parameters)
            ),
            st.none() if route.body is None else bodies(route.body),
        )
        for route in ROUTES
    ]
)


@settings(max_examples=60)
@given(st.lists(CALLS, min_size=1, max_size=6))
def test_any_call_gets_a_documented_answer(fuzzed: str, calls: list[tuple[Any, tuple[str, ...], Any]]) -> None:
    """Any sequence of calls with right, near and absurd values: only documented statuses and bodies, never a 500."""
    for route, parameters, body in calls:
        path = route.path
        for name, given_text in zip(route.parameters, parameters, strict=True):
            path = path.replace("{" + name + "}", given_text)
        query = "?wait_s=0" if route.waits else ""
        assert checked(fuzzed, route.method, path + query, route.path, body).status != 500
    for name in ("x", "y"):
        ask(fuzzed, "DELETE", f"/v1/requests/{name}")
