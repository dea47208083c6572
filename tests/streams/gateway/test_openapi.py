"""docs/openapi.json describes the gateway that runs: its routes, what they take, and what they return."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.support import openapi
from tests.support.gateway_deployment import ASK, PLAIN, QUESTION, GatewayDeployment

DOCUMENT: dict[str, Any] = json.loads(Path("docs/openapi.json").read_text(encoding="utf-8"))
PATHS, COMPONENTS = DOCUMENT["paths"], DOCUMENT["components"]
OPERATIONS = {(method.upper(), path): each for path, held in PATHS.items() for method, each in held.items()}


def resolved(held: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference stands for, or what is no reference."""
    if "$ref" not in held:
        return held
    place: Any = DOCUMENT
    for name in held["$ref"].removeprefix("#/").split("/"):
        place = place[name]
    return dict(place)


def closed(held: Any) -> Any:
    """Return schemas in which an object has no fields but those that are described."""
    if isinstance(held, list):
        return [closed(each) for each in held]
    if not isinstance(held, dict):
        return held
    found = {name: closed(each) for name, each in held.items()}
    return (
        {"additionalProperties": False, **found}
        if held.get("type") == "object" and "properties" in held
        else found
    )


CLOSED = closed(COMPONENTS)


def validate(value: Any, schema: dict[str, Any]) -> None:
    """Demand that a value meets a schema, and that the schema names all its fields."""
    Draft202012Validator({**schema, "components": CLOSED}).validate(value)


def ask(client: httpx.Client, method: str, path: str, body: Any = None, status: int = 200, **of: Any) -> Any:
    """Return a reply that is as the document says; so is the request, unless it is refused."""
    operation = OPERATIONS[method, path]
    if status < 400 and body is not None:
        validate(body, operation["requestBody"]["content"]["application/json"]["schema"])
    answer = client.request(method, path.format(**of), json=body)
    assert answer.status_code == status, answer.text[:500]
    validate(
        answer.json(), resolved(operation["responses"][str(status)])["content"]["application/json"]["schema"]
    )
    return answer.json()


def events(answer: httpx.Response) -> list[tuple[str, Any]]:
    found = re.findall(r"(?:event: (\w+)\n)?data: ({.*})\n", answer.text)
    return [(name, json.loads(data)) for name, data in found]


def test_every_route_is_described_and_nothing_else() -> None:
    listed = {(method, path.replace(":path}", "}")) for method, path, _ in openapi.operations()}
    assert set(OPERATIONS) == listed == {tuple(each.split()) for each in openapi.BODIES}
    names = [each["operationId"] for each in OPERATIONS.values()]
    assert len(names) == len(set(names))


def test_every_reference_resolves_and_every_component_is_used() -> None:
    used = set(re.findall(r'"\$ref": "#/components/(\w+)/([^"]+)"', json.dumps(DOCUMENT)))
    made = {(kind, name) for kind, held in COMPONENTS.items() for name in held if kind != "securitySchemes"}
    assert used == made


def test_every_schema_is_a_json_schema() -> None:
    parameters = [
        resolved(each)["schema"] for held in OPERATIONS.values() for each in held.get("parameters", ())
    ]
    for schema in [*COMPONENTS["schemas"].values(), *parameters]:
        Draft202012Validator.check_schema(schema)


def test_every_status_that_the_code_raises_is_described() -> None:
    described = {int(status) for each in OPERATIONS.values() for status in each["responses"]} - {200, 202}
    assert described == set(openapi.codes()) - {405}


@pytest.fixture(scope="module")
def made(site: GatewayDeployment, client: httpx.Client) -> str:
    """A graded question and its paired baseline."""
    asked = {**PLAIN, "session_id": "s", "uniscale": {"reference": "5", "objective": "careful"}}
    query_id = ask(client, "POST", ASK, asked)["id"]
    pinned = {"reference": "5", "metadata": {"baseline_of": query_id}}
    baseline = ask(client, "POST", ASK, {**PLAIN, "model": "small/1/1/1", "uniscale": pinned})["id"]
    site.closing(query_id, baseline)
    return str(query_id)


def test_models_and_objectives(client: httpx.Client) -> None:
    listed = ask(client, "GET", "/v1/models")["data"]
    for each in (listed[0], listed[-1]):
        assert ask(client, "GET", "/v1/models/{id}", id=each["id"]) == each
        assert ask(client, "GET", "/v1/models/{id}", id=each["id"].replace("/", "%2F")) == each
    named = ask(client, "GET", "/v1/objectives")
    assert {each["name"] for each in named["data"]} > {named["default"], "quality-priority"}
    for body in ({"weights": {"correct": 1, "cost": 1}}, {"mean_cost": 1e12}, {"accuracy": 0.9}):
        ask(client, "PUT", "/v1/objectives/{name}", body, 202, name="mine")
    ask(client, "PUT", "/v1/objectives/{name}", {}, 400, name="mine")


def test_the_three_protocols(client: httpx.Client) -> None:
    ask(client, "POST", "/v1/decide", PLAIN)
    response = ask(client, "POST", "/v1/responses", {"model": "auto", "input": QUESTION[0]["content"]})
    ask(client, "GET", "/v1/responses/{id}", id=response["id"])
    ask(client, "POST", "/v1/messages", {**PLAIN, "max_tokens": 100})
    ask(client, "POST", "/v1/messages/count_tokens", PLAIN)
    streamed = events(client.post(ASK, json={**PLAIN, "stream": True}))
    validate(streamed[-1][1]["uniscale"], {"$ref": "#/components/schemas/AnswerDetails"})


def test_one_query_and_its_events(client: httpx.Client, made: str) -> None:
    found = ask(client, "GET", "/v1/queries/{id}", id=made)
    assert set(found) >= {"decision", "answer", "search", "reward"}
    held = OPERATIONS["GET", "/v1/queries/{id}/events"]["responses"]["200"]["content"]["text/event-stream"]
    sent = events(client.get(f"/v1/queries/{made}/events"))
    assert {name for name, _ in sent} >= {"decision", "answer", "reward"}
    for name, data in sent:
        validate(data, held["x-events"][name])


def test_feedback(client: httpx.Client, made: str) -> None:
    for value in (True, 0.5):
        ask(
            client,
            "POST",
            "/v1/feedback",
            {"id": made, "value": value, "comment": "so", "graded_by": "judge"},
        )
    ask(client, "POST", "/v1/feedback", {"id": made, "value": 2}, 400)


def test_lists_and_statistics(client: httpx.Client, made: str) -> None:
    assert made in {each["id"] for each in ask(client, "GET", "/v1/queries")["data"]}
    now = ask(client, "GET", "/v1/now")
    assert now["uplift"]["over_time"]
    assert now["by"]["session"]
    assert now["series"]["policy"]
    assert now["services"]


def test_dead_letters(site: GatewayDeployment, client: httpx.Client) -> None:
    site.produce(site.topics.query, b"q", b"no record")
    site.until(lambda: bool(client.get("/v1/dead-letters").json()["data"]), "a dead letter")
    origin = ask(client, "GET", "/v1/dead-letters")["data"][0]["origin"]
    for _ in range(2):
        ask(client, "POST", "/v1/dead-letters/retry", {"origin": origin})


def test_probes(client: httpx.Client) -> None:
    for path in ("/health/live", "/health/ready"):
        ask(client, "GET", path)


def test_errors(client: httpx.Client) -> None:
    unknown = {"model": "none such", "max_tokens": 9, "messages": QUESTION}
    for path in (ASK, "/v1/messages", "/v1/decide"):
        ask(client, "POST", path, unknown, 404)
    ask(client, "GET", "/v1/models/{id}", None, 404, id="none such")
    ask(client, "POST", "/v1/responses", {**PLAIN}, 400)


@pytest.mark.parametrize("path", ["/v1/queries", "/v1/now", "/v1/dead-letters"])
def test_query_parameters(client: httpx.Client, path: str) -> None:
    described = {each["name"]: each["schema"] for each in OPERATIONS["GET", path]["parameters"]}
    if path != "/v1/dead-letters":  # it ignores others
        said = client.get(path, params={"no": "such"}).json()["error"]["message"]
        assert set(said.partition("give ")[2].split(", ")) == set(described)
    for name, schema in described.items():
        valid = {"integer": [1, schema.get("maximum")], "array": ["ok", "ok,failed"]}.get(
            schema["type"], ["x"]
        )
        assert [client.get(path, params={name: each}).status_code for each in valid] == [200] * len(valid)
        if schema["type"] == "integer":
            wrong = [client.get(path, params={name: each}).status_code for each in (0, schema["maximum"] + 1)]
            assert wrong == [400, 400]


def test_fields_without_effect_are_taken_and_others_refused(client: httpx.Client) -> None:
    fields = COMPONENTS["schemas"]["ChatCompletionRequest"]["properties"]
    told = {name: held["enum"][0] for name, held in fields.items() if set(held) == {"enum"}}
    assert told.keys() > {"audio", "functions"}
    ask(client, "POST", "/v1/decide", {**PLAIN, **told})
    ask(client, "POST", "/v1/decide", {**PLAIN, "no_such_field": 1}, 400)
