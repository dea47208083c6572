"""The latency of live queries by component: the paper's latency table for them, next to the lab's.

The lab runs one query after another in one process, on its own recording (`docs/results`). A live query's latency has
the same components, plus admission and transport between services.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from agents.catalogue.file import load_catalogue
from bench.streams import BenchFailed, running
from streams.client.client import Client
from streams.client.events import Timelines, read_timelines
from streams.client.questions import read_questions
from streams.demo.run import QUESTIONS
from streams.demo.summary import thirds
from streams.settings import Settings
from streams.timeline import Timeline

TABLES: Final = Path("docs/results/tables.json")

OBJECTIVE: Final = "quality-priority"
"""The lab's objective."""

_NAMES: Final = {
    "admission_s": "admission",
    "embed_s": "query_embedding",
    "decide_s": "bandit",
    "queue_s": "queue",
    "generate_s": "generation",
    "verify_s": "verification",
    "transit_s": "transit",
    "control_s": "rest_of_search",
}
"""Row names, keyed by `Spent` component. Rows shared with `experiments.rerun.latency_table` have the same names."""


def ask(settings: Settings, queries: int, folder: Path, say: Callable[[str], None]) -> list[Timeline]:
    """Return the timelines of questions answered one after another by a separate deployment.

    Args:
        settings: The deployment's settings, with a running broker. The catalogue's engines answer.
        queries: How many of the demo's questions to send.
        folder: Folder for the deployment's state and log.
        say: Called with progress messages.

    Raises:
        ServiceFailed: a service did not become ready.
        BenchFailed: there are not enough questions.
        NoAnswer: a question was not answered.
    """
    asked = thirds(list(read_questions(QUESTIONS)), queries, settings.policy.seed)
    if len(asked) < queries:
        raise BenchFailed(
            f"--queries is {queries}; {QUESTIONS} has {len(asked)} questions, ask at most so many"
        )
    with running(settings.replace(engine_threads=1), folder, None) as (settings, catalogue, _):
        say("all services are ready")
        with Client(settings) as client:
            for at, query in enumerate(asked, 1):
                client.ask(msgspec.structs.replace(query, objective=OBJECTIVE))
                if at % 20 == 0:
                    say(f"{at} of {queries} answered")
        timelines = read_timelines(settings, catalogue.groups)
    return _answered(timelines)


def latest(settings: Settings, queries: int) -> list[Timeline]:
    """Return the timelines of the queries most recently answered by a running deployment."""
    groups = load_catalogue(Path(settings.catalogue)).groups
    answered = _answered(read_timelines(settings, groups))
    return sorted(answered, key=lambda each: each.at_ms["answer"])[-queries:]


def _answered(timelines: Timelines) -> list[Timeline]:
    """Return the timelines of the queries answered by a search."""
    return [
        each
        for each in timelines.by_id.values()
        if each.answer is not None and each.answer.trace and each.total_s is not None
    ]


def table(timelines: Sequence[Timeline]) -> dict[str, dict[str, float]]:
    """Return the seconds and percentage for each component, the remainder (`between_services`), and the total.

    Raises:
        BenchFailed: there is no query.
    """
    if not timelines:
        raise BenchFailed("no query was answered by a search; ask some, and look at the services' logs")
    seconds = dict.fromkeys(_NAMES.values(), 0.0)
    total_s = 0.0
    for each in timelines:
        assert each.answer is not None
        assert each.total_s is not None
        total_s += each.total_s
        for name, its_s in msgspec.structs.asdict(each.answer.spent).items():
            seconds[_NAMES[name]] += its_s
    seconds["between_services"] = total_s - sum(seconds.values())
    seconds["total"] = total_s
    return {
        name: {"seconds": round(its_s, 4), "percent": round(100 * its_s / total_s, 3)}
        for name, its_s in seconds.items()
    }


def beside_lab(timelines: Sequence[Timeline], tables: Path = TABLES) -> dict[str, Any]:
    """Return the tables for the live queries and for the lab, each with its number of queries."""
    lab = orjson.loads(tables.read_bytes())
    rounds = lab["latency_run"]["rounds"]
    return {
        "live": {"queries": len(timelines), "table": table(timelines)},
        "lab": {"queries": rounds, "table": lab["latency"]},
    }


def in_words(found: Mapping[str, Any]) -> str:
    """Return both tables as lines of text, in milliseconds per query and percentages."""
    live, lab = found["live"], found["lab"]
    lines = [
        f"{'':16}  {'live, ms a query':>16} {'%':>6}  {'lab, ms a query':>16} {'%':>6}",
        *(
            f"{name:16}  {_cells(row, live['queries'])}  {_cells(lab['table'].get(name), lab['queries'])}"
            for name, row in live["table"].items()
        ),
        f"{live['queries']} queries live, {lab['queries']} in the lab",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Mapping[str, float] | None, queries: int) -> str:
    if row is None:
        return f"{'–':>16} {'–':>6}"
    return f"{1000 * row['seconds'] / queries:16.2f} {row['percent']:6.2f}"
