"""What the audit reads of hostile values: each in bounded time."""

import time

import orjson
import zstandard

from streams.audit.reading import Plain, _boxed


def test_frame_of_millions_of_lists_is_rejected_fast() -> None:
    bomb = zstandard.ZstdCompressor().compress(b"[" + b"[]," * 4_000_000 + b"[]]")
    assert len(bomb) < 10_000
    began_s = time.process_time()
    assert Plain()(bomb) is None
    assert time.process_time() - began_s < 0.5, "seconds before"


def test_a_text_may_hold_as_many_commas_as_it_likes() -> None:
    said = {"text": ',[{"' * 300_000, "n": [1, 2]}
    assert Plain()(orjson.dumps(said)) == said


def test_endless_string_takes_linear_time() -> None:
    began_s = time.process_time()
    assert Plain()(b"[" + b"," * 300_000 + b'"' + b'\\"' * 100_000) is None
    assert time.process_time() - began_s < 5.0, "minutes before"


def test_only_boxed_grades_are_recomputed() -> None:
    def rules(*rules: str) -> list[bool]:
        return [_boxed({"grader": "boxed 2", "rule": rule}) for rule in rules]

    assert all(rules("", "box/number", "box/text", "box/math-verify", "no-box", "box/too-long"))
    assert not any(rules("last-line/number", "box/exact", "text/regex", "no-number", "text/json"))
    assert _boxed({"grader": "boxed 2"}), "of before the rule was kept"
    assert not _boxed({"grader": "", "rule": "no-box"})
