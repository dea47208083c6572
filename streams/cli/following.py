"""`follow`: print the records on any topics, one per line, as they arrive or starting at a given time."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import msgspec
import orjson
from msgspec import Struct

from schemas.errors import UniscaleError, closest
from streams.client.events import RECORDS, EventFollower, Kind, QueryEvent, executor_groups
from streams.settings import Settings

# Conditions on records, such as `price.cost=1e9`. Their fields are checked before the first record is read.

_ID = ("query_id",)
"""The field that every event has, whether its record contains the id itself or in a nested record."""


class WrongCondition(UniscaleError):
    """A condition names a field that the records do not have, or is not of the form FIELD=VALUE."""


class Condition(Struct, frozen=True):
    """The condition that one of a record's fields has a given value.

    Attributes:
        path: The names of the enclosing fields, outermost first, followed by the field's name.
        text: The value, as JSON or as text without quotation marks.
    """

    path: tuple[str, ...]
    text: str

    @classmethod
    def parse(cls, said: str, kinds: Iterable[Kind]) -> "Condition":
        """Parse a condition of the form `FIELD=VALUE`.

        Args:
            said: The condition. A nested field is written `price.cost`; in a list, any element may match.
            kinds: The kinds of records to match. Each must have the field.

        Raises:
            WrongCondition: the condition is not of this form, or a kind has no such field.
        """
        field, equals, text = said.partition("=")
        if not (field and equals):
            raise WrongCondition(f"--where {said}: write FIELD=VALUE, for instance status=ok")
        path = tuple(field.split("."))
        for kind in kinds:
            check_field(kind, path)
        return cls(path, text)

    def holds(self, event: QueryEvent) -> bool:
        """Return whether an event's record meets the condition."""
        try:
            wanted = msgspec.json.decode(self.text)
        except msgspec.DecodeError:
            wanted = self.text
        return any(value == wanted or str(value) == self.text for value in values_of(event, self.path))


def values_of(event: QueryEvent, path: tuple[str, ...]) -> Iterator[Any]:
    """Yield the values of a field, from every element of any list on the path.

    Yields None if a field on the path is null or missing.
    """
    if path == _ID:
        yield event.query_id
        return
    found: list[Any] = [event.record]
    for name in path:
        found = [each for outer in found for each in _elements(_inside(outer, name))]
    yield from found


def check_field(kind: Kind, path: tuple[str, ...]) -> None:
    """Raise an error if records of some kind do not have a field.

    Raises:
        WrongCondition: there is no such field; the message suggests one.
    """
    if path == _ID:
        return
    types = [msgspec.inspect.type_info(RECORDS[kind])]
    for depth, name in enumerate(path):
        types = [each for outer in types for each in _opened(outer)]
        if any(isinstance(each, msgspec.inspect.AnyType) for each in types):
            return  # a free-form field may contain anything
        fields = {field.encode_name: field.type for each in types for field in getattr(each, "fields", ())}
        if name not in fields:
            where = f"{kind}, field {'.'.join(path[:depth])}" if depth else kind
            hint = closest(name, fields) if fields else "there is nothing below it"
            raise WrongCondition(f"--where {'.'.join(path)}: {where} has no field {name!r}; {hint}")
        types = [fields[name]]


def _opened(kind: Any) -> Iterator[Any]:
    """Yield the types inside a type: members of a union, elements of a list, values of a mapping."""
    if isinstance(kind, msgspec.inspect.UnionType):
        for each in kind.types:
            yield from _opened(each)
    elif isinstance(kind, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
        yield from _opened(kind.item_type)
    elif isinstance(kind, msgspec.inspect.DictType):
        yield kind.value_type
    else:
        yield kind


def _inside(outer: Any, name: str) -> Any:
    if isinstance(outer, dict):
        return outer.get(name)
    return getattr(outer, name, None)


def _elements(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)


SHOWN: Final[dict[Kind, tuple[str, ...]]] = {
    "query": ("tenant", "objective", "text", "messages.content"),
    "context": ("encoder",),
    "decision": ("action", "reason", "objective.name", "mean", "width", "propensity"),
    "step": ("group", "forest.step"),
    "verification": ("search.group", "search.forest.step", "scores.score", "verify_s"),
    "attempt-failed": ("answer.attempt", "answer.action", "answer.fault", "answer.cause", "answer.error"),
    "answer": ("status", "action", "score", "extracted", "steps", "by", "error"),
    "feedback": ("correct", "graded_by", "source"),
    "reward": ("kind", "status", "action", "correct", "score", "price.cost", "reward", "graded_by"),
    "dead-letter": ("service", "error", "field", "reason"),
    "answer-chunk": ("attempt", "call.name", "offset", "text"),
    "due": ("kind",),
    "cancel": ("by", "reason"),
    "control": (
        "op",
        "factor",
        "prices",
        "weights",
        "mean_cost",
        "accuracy",
        "cost_range",
        "tenant",
        "scopes",
    ),
    "heartbeat": ("models", "in_flight", "stopping"),
}
"""The fields shown on a record's line, by kind."""

_TOPICS: Final[dict[str, Kind]] = {
    "action-decision": "decision",
    "search-step": "step",
    **{kind: kind for kind in RECORDS},
}
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MOST_TEXT: Final = 80


class SinceTime(click.ParamType):
    """A time in milliseconds since the epoch, given as a duration before now or as a date and time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time, or raise a usage error if the value is not a time."""
        if isinstance(value, int):
            return value
        if ago := re.fullmatch(r"(\d{1,6})([smhd])", value):
            at = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                self.fail(f"{value!r}: write 30s, 10m, 2h or 7d ago, or a time such as 2026-11-27T09:30Z")
        return int(at.timestamp() * 1000)


@click.command()
@click.argument("topics", nargs=-1, required=True, type=click.Choice(sorted(_TOPICS)), metavar="TOPIC...")
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only records whose field has this value, such as status=ok or price.unit=usd; repeatable.",
)
@click.option(
    "--since",
    type=SinceTime(),
    help="Start with records appended since: 30s, 10m, 2h, 7d ago, or a time such as 2026-11-27T09:30Z. [now]",
)
@click.option("--wait/--no-wait", default=True, help="Keep waiting for more, or stop at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print whole records as JSON lines.")
@click.pass_obj
def follow(
    settings: Settings,
    topics: tuple[str, ...],
    conditions: tuple[str, ...],
    since: int | None,
    wait: bool,
    as_json: bool,
) -> None:
    """Print the records on topics, one per line, as they are appended.

    TOPIC is any of query, context, action-decision (or decision), search-step (or step), verification, answer,
    answer-chunk, feedback, reward, dead-letter, due, cancel, control, heartbeat. docs/records describes their fields.
    Reading does not affect the services. Records of one query on one topic are in order. Press Ctrl-C to stop.
    """
    kinds = list(dict.fromkeys(_TOPICS[name] for name in topics))
    wanted = [Condition.parse(said, kinds) for said in conditions]
    groups = executor_groups(settings) if {"verification", "cancel"} & set(kinds) else ()
    with EventFollower(settings, kinds, groups=groups, since_ms=since) as follower:
        for event in follower if wait else follower.catch_up():
            if all(condition.holds(event) for condition in wanted):
                click.echo(orjson.dumps(msgspec.to_builtins(event)) if as_json else line_of(event))


def line_of(event: QueryEvent) -> str:
    """Return a readable line for an event, with its time, kind, query and main fields."""
    at = datetime.fromtimestamp(event.at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    about = event.query_id or getattr(event.record, "key", "")
    return " ".join([f"{at}Z", event.kind, _in_a_line(about), *_told(event)])


def _told(event: QueryEvent) -> Iterator[str]:
    for path in SHOWN[event.kind]:
        values = values_of(event, tuple(path.split(".")))
        words = [_in_words(value) for value in values if value is not None and value != ""]
        if words:
            yield f"{path.rpartition('.')[2]}={','.join(words)}"


def _in_words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        text = _in_a_line(value)
        return orjson.dumps(text).decode() if " " in text else text
    return _in_a_line(str(value))


def _in_a_line(text: str) -> str:
    """Return the start of some text, with line breaks and other control characters replaced by spaces."""
    short = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
    return "".join(each if each.isprintable() else " " for each in short)


COMMANDS = [follow]
