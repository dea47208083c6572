"""What the audit reads of hostile values: each in bounded time."""

import time

import orjson
import zstandard

from streams.audit.reading import Plain


def test_millions_of_empty_lists_in_a_small_frame_are_no_record_and_take_no_time() -> None:
    bomb = zstandard.ZstdCompressor().compress(b"[" + b"[]," * 4_000_000 + b"[]]")
    assert len(bomb) < 10_000
    began_s = time.process_time()
    assert Plain()(bomb) is None
    assert time.process_time() - began_s < 0.5, "seconds before"


def test_a_text_may_hold_as_many_commas_as_it_likes() -> None:
    said = {"text": ',[{"' * 300_000, "n": [1, 2]}
    assert Plain()(orjson.dumps(said)) == said


def test_a_string_that_does_not_end_takes_time_linear_in_its_length() -> None:
    began_s = time.process_time()
    assert Plain()(b"[" + b"," * 300_000 + b'"' + b'\\"' * 100_000) is None
    assert time.process_time() - began_s < 5.0, "minutes before"
