"""The OpenAPI 3.1 document of the interface, written from the tables of `api`.

Invariant: this module adds no content of its own to the tables.
"""

from typing import Any

from logstore.base.fields import Field, Object, Type, records_in
from logstore.base.http.messages import JSON
from scheduler.coordinator.api import ROUTES
from scheduler.coordinator.routes import ERROR, ERRORS, Route, RouteAnswer

OPENAPI_VERSION = "3.1.0"
API_VERSION = "1"


def document() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "Cairn coordinator",
            "version": API_VERSION,
            "summary": "Who writes which chunk where and when.",
        },
        "paths": paths,
        "components": {
            "schemas": {record.name: record.definition() for record in _records()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": route.operation, "summary": route.says}
    parameters = [_parameter("path", name, part) for name, part in route.parameters.items()]
    parameters += [_parameter("query", name, part) for name, part in route.query.fields.items()]
    if parameters:
        found["parameters"] = parameters
    if route.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": route.body.schema()}}}
    responses = {str(status): _response(answer) for status, answer in route.answers.items()}
    for status in sorted(route.statuses() - set(route.answers)):
        responses[str(status)] = {"description": ERRORS[status], "content": {JSON: {"schema": ERROR.schema()}}}
    if 503 in route.answers:  # the two kinds of 503 differ in shape
        content = responses["503"]["content"][JSON]
        content["schema"] = {"anyOf": [content["schema"], ERROR.schema()]}
    found["responses"] = responses
    if route.free:
        found["security"] = [{}]
    return found


def _parameter(place: str, name: str, part: Field) -> dict[str, Any]:
    schema = part.schema()
    says = schema.pop("description")
    return {"name": name, "in": place, "required": place == "path", "description": says, "schema": schema}


def _response(answer: RouteAnswer) -> dict[str, Any]:
    schema = {"type": "string"} if answer.type is None else _schema(answer.type)
    return {"description": answer.says, "content": {answer.content_type: {"schema": schema}}}


def _schema(kind: Type) -> dict[str, Any]:
    return kind.schema() if isinstance(kind, Object) else {"type": "object"}


def _records() -> list[Object]:
    """Every record that a body or an answer is made of, by name."""
    kinds: list[Type] = [ERROR]
    for route in ROUTES:
        kinds += [answer.type for answer in route.answers.values() if answer.type is not None]
        kinds += [route.body] if route.body is not None else []
    named = {record.name: record for kind in kinds for record in records_in(kind)}
    return [named[name] for name in sorted(named)]
