"""Reads questions from a file, with one JSON object per line in any of the usual shapes, as Query records.

A line may already be a Query (`query_id`, `text` or `messages`, …), or have the text in `question`, `problem` or
`prompt` and the right answer in `reference`, `answer` or `solution`. Only the part after the last `####` of a
GSM8K-style solution is used.
"""

import codecs
import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson

from schemas.errors import InvalidField, UniscaleError
from schemas.grader import Grader, NamedGrader
from schemas.query import GATEWAY, MAX_METADATA, Query
from schemas.record import invalid_field

_TEXT = ("text", "question", "problem", "prompt")
_REFERENCE = ("reference", "answer", "solution")
_KEPT = ("family", "level", "domain", "subject", "source", "id", "split")

QUESTION_FIELDS = frozenset(
    {*(each.name for each in msgspec.structs.fields(Query)), *_TEXT, *_REFERENCE, *_KEPT}
)
"""The fields of a line that are read; others are ignored."""


class QuestionError(UniscaleError):
    """A line in a question file is not a valid question; the message names the file, line and field."""


def read_questions(path: Path) -> Iterator[Query]:
    """Yield the queries in a file, in order. The id of a query without one is the file's name and the line number.

    Args:
        path: A file of JSON lines.

    Raises:
        QuestionError: a line is not an object, or has no question.
        OSError: the file cannot be read.
    """
    # Keep only characters allowed in an id, and leave room for a line number and the name of a run.
    name = re.sub(r"[^!-~]+", "-", path.stem)[:140]
    if name != path.stem:  # a different file's name may map to the same text
        name += "-" + hashlib.sha256(path.stem.encode(errors="surrogateescape")).hexdigest()[:8]
    for number, where, entry in json_lines(path):
        yield query_of(entry, where=where, default_id=f"{name}-{number}")


def json_lines(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the objects in a file of JSON lines, each with its line number and its location for error messages.

    Raises:
        QuestionError: a line is not a JSON object; the message names it.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                entry = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise QuestionError(f"{where}: not JSON ({error}); write one object per line") from None
            if not isinstance(entry, dict):
                raise QuestionError(f"{where}: a {type(entry).__name__}, not an object")
            yield number, where, entry


def query_of(entry: Mapping[str, Any], *, where: str, default_id: str) -> Query:
    """Return the query described by a line.

    Raises:
        QuestionError: the line is not a valid question; the message names the line and the field.
    """
    fields = {f.name for f in msgspec.structs.fields(Query)}
    values = {name: value for name, value in entry.items() if name in fields and value is not None}
    if "messages" not in values:
        text = next((entry[name] for name in _TEXT if entry.get(name)), None)
        if not isinstance(text, str):
            raise QuestionError(f"{where}: no question: give one of {', '.join(_TEXT)}, or messages")
        values["text"] = text
    reference = next((entry[name] for name in _REFERENCE if entry.get(name) is not None), None)
    if reference is not None:
        values["reference"] = _final(reference) if isinstance(reference, str) else reference
    values.setdefault("query_id", default_id)
    try:
        if isinstance(grader := values.get("grader"), str):
            values["grader"] = msgspec.to_builtins(grader_from(grader))
        query = msgspec.convert(values, Query)
        kept = {name: entry[name] for name in _KEPT if name in entry}
        return msgspec.structs.replace(query, metadata={**kept, **query.metadata}) if kept else query
    except (msgspec.ValidationError, UniscaleError) as error:
        raise QuestionError(f"{where}: {error}") from None


def grader_from(text: str) -> NamedGrader:
    """Return the grader that some text names, or describes as a JSON object.

    Raises:
        QuestionError: the object is not a grader; the message names the field.

    >>> grader_from("exact"), grader_from('{"name": "json", "fields": ["total"]}')
    ('exact', Grader(name='json', schema=None, fields=('total',)))
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        return msgspec.json.decode(text, type=Grader)
    except (msgspec.DecodeError, RecursionError) as error:
        raise QuestionError(
            f'grader: {error}; write a name, or an object such as {{"name": "json"}}'
        ) from None


def renamed(queries: Iterable[Query], run: str) -> Iterator[Query]:
    """Yield the queries with new ids that start with the run's name, so that replays and originals never mix.

    The gateway's metadata is removed, so that a replay is not charged to the original API key. Metadata that leaves no
    room for the old id is removed too.
    """
    for query in queries:
        query_id = f"{run}:{query.query_id}"
        if len(query_id) > 200:
            query_id = f"{run}:{hashlib.sha256(query.query_id.encode()).hexdigest()[:32]}"
        metadata = {name: each for name, each in query.metadata.items() if name != GATEWAY}
        replay_of = {"replay_of": query.query_id}
        if len(msgspec.json.encode({**metadata, **replay_of})) > MAX_METADATA:
            metadata = {}
        yield msgspec.structs.replace(query, query_id=query_id, metadata={**metadata, **replay_of})


def _final(answer: str) -> str:
    return answer.rpartition("####")[2].strip() if "####" in answer else answer


def query_from(question: str | Query, *, prefix: str = "ask", **fields: Any) -> Query:
    """Return a Query with a new id for some text, or an existing Query with some fields replaced.

    Args:
        question: The text, or a complete Query.
        prefix: What a new id starts with.
        **fields: Fields of the Query; None leaves a field as it is. A grader may be a mapping.

    Raises:
        InvalidField: a field is invalid; the message names it.

    >>> query_from("What is 2 + 3?", query_id="q-1", reference="5").reference
    '5'
    """
    given = {name: value for name, value in fields.items() if value is not None}
    if isinstance(grader := given.get("grader"), Mapping):
        try:
            given["grader"] = msgspec.convert(grader, Grader)
        except msgspec.ValidationError as error:
            found = invalid_field("Grader", error)
            raise InvalidField(
                "Query", f"grader.{found.field}" if found.field else "grader", found.why
            ) from None
    if isinstance(question, Query):
        return msgspec.structs.replace(question, **given)
    return Query(**{"query_id": f"{prefix}-{uuid.uuid4().hex[:16]}", "text": question, **given})
