"""Golden files: the bytes of every record and version must decode forever, and must not change unnoticed.

A new version gets a new file: `WRITE_GOLDEN=1 pytest tests/schemas/test_golden.py` writes what is missing.
"""

import os
from pathlib import Path

import pytest
import zstandard

from schemas.record import Record, decode, encode, load

GOLDEN = Path(__file__).parent.parent / "golden" / "records"


def path_of(sample: Record, samples: tuple[Record, ...]) -> Path:
    """Return `<schema>[-n].json`, or `.zst` for a frame."""
    alike = [each for each in samples if type(each) is type(sample)]
    number = next(at for at, each in enumerate(alike) if each is sample)
    suffix = "zst" if sample.framed else "json"
    return GOLDEN / f"{sample.schema()}{f'-{number + 1}' if number else ''}.{suffix}"


def test_golden_file_decodes_to_the_record_it_was_made_from(
    sample: Record, samples: tuple[Record, ...]
) -> None:
    path = path_of(sample, samples)
    if not path.exists() and os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(sample))
    assert path.exists(), f"{path} is missing: write it with WRITE_GOLDEN=1"
    assert decode(path.read_bytes(), type(sample)) == sample


def test_what_is_written_today_is_what_the_golden_file_holds(
    sample: Record, samples: tuple[Record, ...]
) -> None:
    assert load(encode(sample)) == load(path_of(sample, samples).read_bytes()), (
        "the wire format of this version changed: give a new field a default, or make a new version"
    )


def test_every_golden_file_belongs_to_a_record(samples: tuple[Record, ...]) -> None:
    assert {path_of(each, samples) for each in samples} == set(GOLDEN.iterdir())


def test_every_record_class_has_a_golden_file(samples: tuple[Record, ...]) -> None:
    ours = {each for each in Record.__subclasses__() if each.__module__.startswith("schemas.")}
    assert {type(each) for each in samples} == ours


@pytest.mark.parametrize("name", ["search-step.v1", "verification.v1", "answer.v1"])
def test_big_values_are_zstd_frames_that_other_tools_can_open(name: str) -> None:
    value = (GOLDEN / f"{name}.zst").read_bytes()
    assert zstandard.ZstdDecompressor().decompress(value).startswith(b'{"schema":"')
