"""Reads recorded traffic from a file: queries and the times they were sent, row by row, in constant memory.

A row is a question in a form that `questions.py` reads, with a `timestamp`: seconds or milliseconds since the epoch, or
ISO 8601 (UTC if it has no time zone). Each format has its own function to yield rows (`_FORMATS`); everything else is
shared.
"""

import csv
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orjson

from schemas.query import Query
from streams.client.questions import QUESTION_FIELDS, QuestionError, json_lines, query_of

TIMESTAMP = "timestamp"

_FIRST_MS = 1e11  # as seconds, the year 5138; as milliseconds, 1973
_ROWS = 1000

Row = tuple[str, Mapping[str, Any]]
"""A row's location, for error messages, and its non-empty fields."""


class Recorded(NamedTuple):
    """A query and the time it was sent, in seconds since the epoch."""

    at_s: float
    query: Query


def read_recorded(path: Path) -> Generator[Recorded, None, None]:
    """Yield the queries in a file of JSON lines (`.jsonl`), CSV (`.csv`) or Parquet (`.parquet`), in order.

    Raises:
        QuestionError: the file has no rows, or a row is not a question, has no readable timestamp, has an unknown field
            or is earlier than the previous row; the message names the line and the field.
        OSError: the file cannot be read.
    """
    known = {*QUESTION_FIELDS, TIMESTAMP}
    before_s, name = -math.inf, path.stem
    for number, (where, fields) in enumerate(rows_of(path), 1):
        if unknown := sorted(fields.keys() - known):
            close = get_close_matches(unknown[0], known, 1)
            meant = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"
            raise QuestionError(f"{where}: {unknown[0]}: is not a field of a recorded query{meant}")
        at_s = _seconds(fields.get(TIMESTAMP), where)
        if at_s < before_s:
            raise QuestionError(
                f"{where}: {TIMESTAMP}: is earlier than in the row before; sort the file by it"
            )
        before_s = at_s
        asked = {field: value for field, value in fields.items() if field != TIMESTAMP}
        yield Recorded(at_s, query_of(asked, where=where, default_id=f"{name}-{number}"))
    if before_s == -math.inf:
        raise QuestionError(f"{path}: holds no query; write one row for each, with {TIMESTAMP} and text")


def rows_of(path: Path) -> Iterator[Row]:
    """Yield the rows in a file of JSON lines, CSV or Parquet.

    Raises:
        QuestionError: the file has an unsupported format, or a row cannot be read; the message names it.
        OSError: the file cannot be read.
    """
    rows = _FORMATS.get(path.suffix.lower())
    if rows is None:
        raise QuestionError(f"{path}: is not one of {', '.join(_FORMATS)}; convert it")
    yield from rows(path)


def _seconds(value: Any, where: str) -> float:
    if value is None:
        raise QuestionError(f"{where}: {TIMESTAMP}: is missing; say when the query was asked")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                value = None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise QuestionError(
            f"{where}: {TIMESTAMP}: cannot be read; write seconds or milliseconds since the epoch, or ISO 8601"
        )
    return value / 1000 if value >= _FIRST_MS else float(value)


def _json_lines(path: Path) -> Iterator[Row]:
    for _, where, entry in json_lines(path):
        yield where, {field: value for field, value in entry.items() if value is not None}


def _csv(path: Path) -> Iterator[Row]:
    """Yield the rows of a CSV file with a header. Fields that are not text in a Query, such as `messages`, are JSON."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, restkey="", strict=True)
        try:
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if "" in row:
                    raise QuestionError(f"{where}: has more values than the header has columns")
                yield where, {field: _typed(field, value, where) for field, value in row.items() if value}
        except (csv.Error, UnicodeDecodeError) as error:
            raise QuestionError(f"{path}, line {reader.line_num + 1}: not CSV in UTF-8 ({error})") from None


def _typed(field: str, value: str, where: str) -> Any:
    if field not in _NO_TEXT:
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise QuestionError(f"{where}: {field}: values in this column must be JSON ({error})") from None


_NO_TEXT = {
    field.name for field in msgspec.structs.fields(Query) if "str" not in str(field.type).replace("[str", "")
}  # a grader is a name or an object: `questions` parses both


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise QuestionError(
            f"{path}: Parquet is read by pyarrow, which is not installed: pip install 'uniscale-streams[experiments]'"
        ) from None
    try:
        number = 0
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield (
                        f"{path}, row {number}",
                        {name: each for name, each in row.items() if each is not None},
                    )
    except pa.ArrowException as error:
        raise QuestionError(f"{path}: not Parquet ({error})") from None


_FORMATS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}
