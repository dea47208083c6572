"""docs/records: the JSON Schema of every record, made from its struct, and the page that says which topic holds it.

`WRITE_GOLDEN=1 pytest tests/schemas/test_json_schemas.py` writes the schemas again.
"""

import json
import os
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

from schemas.record import Record, encode, load
from streams.settings import Settings
from streams.topics import HOUR_MS, Topic, Topics
from tests.support.json_schemas import json_schema

RECORDS = Path(__file__).parents[2] / "docs" / "records"


def path_of(kind: type[Record]) -> Path:
    return RECORDS / f"{kind.schema()}.json"


def test_the_schema_of_a_record_is_that_of_its_struct(kind: type[Record]) -> None:
    text = json.dumps(json_schema(kind), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("WRITE_GOLDEN"):
        path_of(kind).write_text(text, encoding="utf-8")
    assert path_of(kind).read_text(encoding="utf-8") == text, (
        f"{kind.__name__} has changed: WRITE_GOLDEN=1 pytest tests/schemas/test_json_schemas.py writes its schema again"
    )


def test_every_record_meets_its_schema_and_a_broken_one_does_not(sample: Record) -> None:
    schema = json.loads(path_of(type(sample)).read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    plain = load(encode(sample))
    validator.validate(plain)
    for field in msgspec.structs.fields(sample):
        held = field.encode_name
        if field.required:
            missing = {name: value for name, value in plain.items() if name != held}
            assert not validator.is_valid(missing), f"without {held}"
        broken: object = True if held == "reference" else [[]]  # a reference may be a list of anything
        assert not validator.is_valid({**plain, held: broken}), f"{held} is {broken}"
    assert not validator.is_valid({**plain, "schema": "another.v1"})


def test_every_schema_is_of_a_record(samples: tuple[Record, ...]) -> None:
    assert set(RECORDS.glob("*.json")) == {path_of(type(each)) for each in samples}


def kept(topic: Topic) -> str:
    if topic.compacted:
        return "compacted"
    days, hours = divmod(topic.retention_ms // HOUR_MS, 24)
    return f"{days} days" if days > 1 else f"{days * 24 + hours} h"


@pytest.mark.parametrize("topic", Topics(Settings()).declared(["<group>"]), ids=lambda topic: topic.name)
def test_the_page_says_which_topic_holds_which_record(topic: Topic) -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (RECORDS / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| `{topic.name.removeprefix('uniscale.')}` |")
    ]
    assert len(rows) == 1, topic.name
    [_, record, key, retention] = rows[0]
    assert (key, retention) == (topic.key, kept(topic))
    named = {each.__name__: each.schema() for each in Record.__subclasses__()} | {
        "Context": "context.v1",
    }
    if topic.record in named:
        assert record == f"[{named[topic.record]}]({named[topic.record]}.json)"
    elif topic.record == "control records":
        entries = [schema for name, schema in named.items() if name.endswith("Entry")]
        assert sorted(record.split(", ")) == sorted(f"[{each}]({each}.json)" for each in entries)
    else:
        assert "json" not in record, "rows of a service's own"
