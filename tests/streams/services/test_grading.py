"""Graders through a deployment in memory: each by name, from the catalogue, and what is refused before a choice."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.catalogue.models import CatalogueError
from schemas.action import Action
from schemas.answer import Answer
from schemas.control import CatalogueEntry
from schemas.decision import Decision
from schemas.grader import Grader
from schemas.query import Query
from schemas.record import encode
from schemas.reward import Reward
from streams.control_follower import catalogue_of, check_graders
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from tests.support.cluster import Ask, Audit, InMemory, answered, read, running, send, worker_of
from tests.support.records import decision_for

AGGREGATOR = {"aggregator": SERVICES["aggregator"]}
SCHEMA = {"type": "object", "required": ["total"]}


def ended(cluster: Cluster, query: Query, text: str) -> None:
    """Decide a query and answer it with a text."""
    action = Action(model="small", qp=1, cp=1, bs=1)
    answer = Answer(query_id=query.query_id, status="ok", by="executor", text=text, score=0.5)
    for topic, record in (
        (cluster.topics.decision, decision_for(query, action=action)),
        (cluster.topics.answer, answer),
    ):
        cluster.produce(topic, query.query_id.encode(), encode(record))


async def rewards(cluster: Cluster, count: int) -> dict[str, Reward]:
    await cluster.until(lambda: len(read(cluster, cluster.topics.reward, Reward)) == count, 60)
    return {each.query_id: each for each in read(cluster, cluster.topics.reward, Reward)}


@pytest.mark.parametrize(
    ("grader", "reference", "text", "correct", "rule"),
    [
        (None, "63", r"so \boxed{63}", 1.0, "box/number"),
        ("boxed-only", ["62", "63"], "so\n63", 0.0, "no-box"),
        ("boxed", ["62", "63"], "so\n63", 1.0, "last-line/number"),
        ("last-number", 63, "63 it is", 1.0, "text/last-number"),
        ("exact", "New York", "so\nNew York.", 0.0, "last-line/exact"),
        ("contains", ["Paris", "Lyon"], "It is Lyon, in France.", 1.0, "text/contains"),
        ("regex", r"^4\d$", "42", 1.0, "text/regex"),
        (Grader(name="json", fields=("total",)), {"total": 7}, '{"total": 7, "n": 1}', 1.0, "text/json"),
        (Grader(name="json", schema=SCHEMA), None, '{"sum": 7}', 0.0, "text/schema"),
    ],
)
async def test_an_answer_is_graded_by_the_grader_that_its_query_names(
    in_memory: InMemory, grader: str | Grader | None, reference: Any, text: str, correct: float, rule: str
) -> None:
    async with running(in_memory(), AGGREGATOR) as cluster:
        ended(cluster, Query(query_id="q", text="?", grader=grader, reference=reference), text)
        reward = (await rewards(cluster, 1))["q"]
    name = grader.name if isinstance(grader, Grader) else grader
    assert (reward.kind, reward.correct, reward.graded_by, reward.rule) == (
        "final",
        correct,
        "reference",
        rule,
    )
    assert reward.grader.split()[0] == ("boxed" if name in (None, "boxed-only") else name)
    assert reward.missing == ""


@pytest.mark.seconds
async def test_slow_pattern_leaves_correctness_unknown(in_memory: InMemory) -> None:
    async with running(in_memory(), AGGREGATOR) as cluster:
        ended(cluster, Query(query_id="q", text="?", grader="regex", reference="(a+)+$"), "a" * 40 + "b")
        ended(cluster, Query(query_id="next", text="?", grader="regex", reference="b"), "b")
        found = await rewards(cluster, 2)
    assert (found["q"].correct, found["q"].rule) == (None, "")
    assert "regex: no result in 5 s" in found["q"].missing
    assert found["next"].correct == 1.0


@pytest.fixture
def other_catalogue(in_memory: InMemory, tmp_path: Path) -> Callable[..., Any]:
    """Return settings whose catalogue has a line of its own before the models."""

    def make(line: str) -> Any:
        text = Path(in_memory().catalogue).read_text(encoding="utf-8")
        path = tmp_path / "catalogue.yaml"
        path.write_text(f"{line}\n{text}", encoding="utf-8")
        return in_memory(catalogue=str(path))

    return make


async def test_grader_of_query_then_model_then_catalogue(other_catalogue: Callable[..., Any]) -> None:
    async with running(other_catalogue("grader: exact"), AGGREGATOR) as cluster:
        ended(cluster, Query(query_id="catalogue", text="?", reference="7"), "7.0")
        ended(cluster, Query(query_id="query", text="?", reference="7", grader="last-number"), "7.0")
        ended(cluster, Query(query_id="program", text="?", reference={"tests": [[[1], [4]]]}), "add 3")
        ended(cluster, Query(query_id="nothing", text="?"), "7.0")
        found = await rewards(cluster, 4)
        [small] = [m for m in _control(cluster).catalogue.models if m.name == "small"]
        entry = msgspec.to_builtins(msgspec.structs.replace(small, grader="contains"))
        record = CatalogueEntry(name="small", op="add", model=entry)
        cluster.produce(cluster.topics.control, record.key.encode(), encode(record))
        await cluster.until(
            lambda: _control(cluster).catalogue.graders.keys() == {"the catalogue", "model small"}
        )
        ended(cluster, Query(query_id="entry", text="?", reference="7"), "7, I think")
        found |= await rewards(cluster, 5)
    assert {name: each.rule for name, each in found.items()} == {
        "catalogue": "last-line/exact",
        "query": "text/last-number",
        "program": "no-box",
        "nothing": "",
        "entry": "text/contains",
    }


def _control(cluster: Cluster) -> Any:
    return worker_of(cluster, "aggregator").control


async def test_invalid_references_are_rejected_before_a_decision(in_memory: InMemory, ask: Ask) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "reference: is '(', which is not a valid regular expression": {"grader": "regex", "reference": "("},
        "reference: is an empty text": {"grader": "exact", "reference": " "},
        "reference: [1] is a dict": {"reference": ["a", {}]},
        "grader.schema: is not a JSON Schema ($.type": {
            "grader": Grader(name="json", schema={"type": "strin"})
        },
    }
    queries = [
        ask(n, query_id=f"w{n}", **{"reference": None, **each}) for n, each in enumerate(wrong.values())
    ]
    async with running(in_memory()) as cluster:
        send(cluster, *queries, ask(0, query_id="well", grader="regex", reference="[0-9]"))
        await cluster.until(lambda: len(answered(cluster)) == 5, 60)
        answers = {each.query_id: each for each in read(cluster, cluster.topics.answer, Answer)}
        decided = {each.query_id for each in read(cluster, cluster.topics.decision, Decision)}
    assert decided == {"well"}
    for n, why in enumerate(wrong):
        assert answers[f"w{n}"].status == "rejected"
        assert why in str(answers[f"w{n}"].error)


def _graders() -> set[str]:
    """Return the grading processes of this one."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {pid for pid in children if b"agents.grading.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.seconds
async def test_services_that_stop_end_their_grading_processes(in_memory: InMemory, ask: Ask) -> None:
    before = _graders()
    async with running(in_memory()) as cluster:
        send(cluster, ask(0, grader="regex", reference="[0-9]"))
        await rewards(cluster, 1)
        assert len(_graders() - before) == 2, "the embedder compiles the pattern, the aggregator looks for it"
        for service in ("embedder", "aggregator"):
            await cluster.stop(worker_of(cluster, service))
        assert _graders() <= before


@pytest.mark.seconds
async def test_a_pattern_that_takes_for_ever_to_compile_is_rejected(in_memory: InMemory, ask: Ask) -> None:
    slow = ask(0, query_id="slow", grader="regex", reference="(?i)" + "[a-\uffff]" * 790)
    async with running(in_memory()) as cluster:
        send(cluster, slow)
        await cluster.until(lambda: bool(answered(cluster)), 60)
        [answer] = read(cluster, cluster.topics.answer, Answer)
    assert answer.status == "rejected"
    assert "reference: cannot be used (check: no result in 2 s); make it simpler" in str(answer.error)


async def test_audit_accepts_the_grades_of_every_grader(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    queries = [
        ask(0, query_id="regex", grader="regex", reference="[0-9]"),
        ask(1, query_id="exact", grader="exact", reference="7 or so"),
        ask(2, query_id="list", reference=["-1", ask(2).reference]),
        ask(3, query_id="plain"),
    ]
    async with running(in_memory()) as cluster:
        send(cluster, *queries)
        await rewards(cluster, 4)
        await cluster.until(lambda: not cluster.busy)
        audited(cluster)


def test_invalid_catalogue_grader_is_refused_at_the_start(other_catalogue: Callable[..., Any]) -> None:
    with pytest.raises(CatalogueError, match=r"the catalogue, field grader\.schema: is not a JSON Schema"):
        catalogue_of(other_catalogue("grader: {name: json, schema: {type: strin}}"))
    with pytest.raises(CatalogueError, match=r"field grader: is 'exakt'; did you mean 'exact'\?"):
        catalogue_of(other_catalogue("grader: exakt"))
    found = catalogue_of(other_catalogue("grader: exact"))
    check_graders(found)
    assert found.fingerprint == catalogue_of(other_catalogue("")).fingerprint, (
        "a recording holds the same searches"
    )
