"""Send queries with progress, and wait for their ends: what `produce` and `replay` share."""

import time
from collections import Counter
from collections.abc import Sequence

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from schemas.answer import Answer
from schemas.base import decode
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.query import Query
from streams.client.send import Pace, send_queries
from streams.runtime.kafka import connections
from streams.settings import Settings
from streams.topics import Topics

# How long after the last deadline an Answer may still come.
_MARGIN_S = 60.0


def send_and_wait(settings: Settings, queries: Sequence[Query], pace: Pace, *, wait: bool) -> int:
    """Send queries, wait for their Answers when asked, say how they ended, and return the exit code.

    0 when all were sent and, waited for, have an Answer; 1 when one has none in time, or its id was in use.
    """
    topics = Topics(settings)
    connections.require_topics(settings, [topics.query])
    # From before the first is sent, so that no end is missed.
    reader = connections.at_end(settings, [topics.answer, topics.dead_letter]) if wait else None
    ends: dict[str, str] = {}
    left = {query.query_id for query in queries}
    with _bar() as bar:
        sent = bar.add_task("sent", total=len(queries))
        send_queries(settings, queries, pace, lambda n: bar.update(sent, completed=n))
        if reader is not None:
            answered = bar.add_task("answered", total=len(queries))
            longest = max(query.timeout_s or settings.timeout_s for query in queries)
            deadline = time.monotonic() + longest + _MARGIN_S
            while left and time.monotonic() < deadline:
                for records in reader.poll(timeout_ms=300).values():
                    for record in records:
                        query_id, end = _end(record.topic == topics.answer, record.value)
                        if query_id in left:
                            left.discard(query_id)
                            ends[query_id] = end
                bar.update(answered, completed=len(ends))
            reader.close()
    if reader is None:
        return 0
    told = ", ".join(f"{end} {n}" for end, n in Counter(ends.values()).most_common())
    click.echo(f"{len(queries)} queries: {told or 'none ended'}", err=True)
    if taken := [query_id for query_id, end in ends.items() if end == _TAKEN]:
        click.echo(f"error: the ids of {len(taken)} queries, e.g. {taken[0]}, were sent before and keep their first "
                   "Answer; give --run NAME to send them as new ones", err=True)  # fmt: skip
    if left:
        click.echo(
            f"error: {len(left)} queries have no Answer, e.g. {min(left)}; are the rooms running?", err=True
        )
    return 1 if left or taken else 0


_TAKEN = "id taken"


def _end(is_answer: bool, value: bytes) -> tuple[str, str]:
    """Return whose end a record tells, and which; of other dead letters an Answer tells."""
    try:
        if is_answer:
            answer = decode(value, Answer)
            return answer.query_id, answer.status
        letter = decode(value, DeadLetter)
    except UniscaleError:
        return "", ""
    return (letter.query_id or "", _TAKEN) if letter.error == "DuplicateQuery" else ("", "")


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
