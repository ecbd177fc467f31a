"""The OpenAPI document is true, as a foreign tool sees it: schemathesis asks what the document allows, and what not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from scheduler.coordinator.openapi import document
from scheduler.coordinator.testing import running
from scheduler.topology import racks
from tests.coordinator.support import ask

schemathesis = pytest.importorskip("schemathesis", reason="a development dependency: ./run setup installs it")

OPERATIONS = {found.ok().label: found.ok() for found in schemathesis.openapi.from_dict(document()).get_all_operations()}
EXAMPLES = 10
WITH_RULES = (
    "POST /v1/requests",
    "GET /v1/requests/{name}/go",
    "PUT /v1/units/{unit}/checkpoints/{seq}",
)
"""Their fields have rules between each other, or against what is there, that no schema says: 400 is an answer too."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A coordinator that is asked for anything."""
    with running(racks([4, 4], 4), planner="paper") as found:
        yield found


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_the_document_is_true(url: str, label: str, allowed: bool) -> None:
    """What it allows is taken, what it does not is refused; statuses, types and bodies are those that it names."""
    operation = OPERATIONS[label]
    if not allowed and not (list(operation.path_parameters) + list(operation.query) + list(operation.body)):
        return  # nothing about it could be wrong
    mode = schemathesis.GenerationMode.POSITIVE if allowed else schemathesis.GenerationMode.NEGATIVE
    names = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
    names += [] if label in WITH_RULES else ["positive_data_acceptance"]
    wanted = schemathesis.checks.CHECKS.get_by_names(names)

    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def asked(case: Any) -> None:
        if allowed and label.endswith("/go"):
            case.query = {**(case.query or {}), "wait_s": 0}  # nobody waits here for news that do not come
        case.validate_response(case.call(base_url=url), checks=wanted)

    asked()


def test_whole_numbers_are_whole_however_they_are_written(url: str) -> None:
    """98.0 is a whole number in JSON Schema, in bodies and in queries; 98.5, null and an empty text are none."""
    body = {"name": "a", "writer": "r1h1", "replicas": 2.0, "chunks": 2.0}
    assert ask(url, "POST", "/v1/requests", body).status == 201
    assert ask(url, "POST", "/v1/requests", {**body, "chunks": 2, "replicas": 2}).status == 200, "the same again"
    assert ask(url, "GET", "/v1/requests/a/go?after=0.0&wait_s=0").status == 200
    assert ask(url, "POST", "/v1/requests/a/chunks/0.0/done", {"attempt": 1.0}).status == 200
    for wrong in (2.5, None, "", "2", True):
        assert ask(url, "POST", "/v1/requests", {**body, "name": "b", "chunks": wrong}).status == 400
    for wrong_text in ("", "null", "0.5", "-1", "1e0"):
        assert ask(url, "GET", f"/v1/requests/a/go?wait_s=0&after={wrong_text}").status == 400


def test_names_have_a_pattern(url: str) -> None:
    """What would hide in a log or a page is refused, as the document says; blanks, umlauts and signs are welcome."""
    for name in ("a b", "Prüfung №7 — 検査点", "a/b?c#d", "🚀"):
        assert ask(url, "POST", "/v1/requests", {"name": name, "writer": "r1h2", "chunks": 1}).status == 201
    for name in ("a\nb", "a\x7f", "a\u202eb", "a\u200bb", "\ufeffa", "a\u2028", "\ud800"):
        answer = ask(url, "POST", "/v1/requests", {"name": name, "writer": "r1h2", "chunks": 1})
        assert (answer.status, answer.json()["field"]) == (400, "name"), repr(name)
