"""The recording as one Parquet file: rows in a fixed order, small types, questions and settings in its metadata."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.outcomes import OutcomeError
from experiments.record.questions import Question

WORDS = pa.dictionary(pa.int16(), pa.string())
SCHEMA = pa.schema(
    [
        ("question", WORDS),
        ("model", WORDS),
        ("qp", pa.int16()),
        ("cp", pa.int16()),
        ("bs", pa.int16()),
        ("sample", pa.int16()),
        ("verifier", WORDS),
        ("early_exit", pa.bool_()),
        ("derived", pa.bool_()),
        ("correct", pa.bool_()),
        ("complete", pa.bool_()),
        ("score", pa.float32()),
        ("eflops", pa.float32()),
        ("prefill_eflops", pa.float32()),
        ("decoding_eflops", pa.float32()),
        ("verifier_eflops", pa.float32()),
        ("compute_flops", pa.float32()),
        ("memory_bytes", pa.float32()),
        ("depth", pa.int16()),
        ("steps", pa.int16()),
        ("completed", pa.int16()),
        ("drafts", pa.int32()),
        ("tokens", pa.int32()),
        ("verifier_tokens", pa.int32()),
        ("prompt_tokens", pa.int32()),
        ("seconds", pa.float32()),
        ("answer", pa.string()),
    ]
)
KEY = ("sample", "verifier", "early_exit", "model", "qp", "cp", "question")


def write(
    path: Path, rows: Iterable[dict[str, Any]], questions: Sequence[Question], settings: dict[str, Any]
) -> int:
    """Write the file, whole or not at all; return its bytes. The same rows in any order give the same file."""
    ordered = sorted(rows, key=lambda row: tuple(row[name] for name in KEY))
    metadata = {
        "uniscale.questions": orjson.dumps([asdict(question) for question in questions]),
        "uniscale.settings": orjson.dumps(settings, option=orjson.OPT_SORT_KEYS),
    }
    table = pa.Table.from_pylist(ordered, schema=SCHEMA.with_metadata(metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    pq.write_table(table, partial, compression="zstd", compression_level=19, use_dictionary=True)
    partial.replace(path)
    return path.stat().st_size


def settings_of(recording: Path) -> dict[str, Any]:
    """Return a recording's settings.

    Raises:
        OutcomeError: no recording of ours.
    """
    metadata = (pq.read_schema(recording).metadata or {}) if recording.is_file() else {}
    if b"uniscale.settings" not in metadata:
        raise OutcomeError(f"{recording}: is no recording of ours; `python -m experiments record` makes one")
    settings: dict[str, Any] = orjson.loads(metadata[b"uniscale.settings"])
    return settings


def questions_in(recording: Path) -> list[Question]:
    """Return a recording's questions."""
    metadata = pq.read_schema(recording).metadata
    return [Question(**entry) for entry in orjson.loads(metadata[b"uniscale.questions"])]


def rows_of(recording: Path) -> list[dict[str, Any]]:
    """Return a recording's rows."""
    rows: list[dict[str, Any]] = pq.read_table(recording).to_pylist()
    return rows
