"""What the audit reads of hostile values: each in bounded time."""

import time

import orjson
import zstandard

from streams.audit.reading import Plain, _boxed


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


def test_a_grade_is_worked_out_again_only_where_the_default_grader_compared_the_last_box() -> None:
    def rules(*rules: str) -> list[bool]:
        return [_boxed({"grader": "boxed 2", "rule": rule}) for rule in rules]

    assert all(rules("", "box/number", "box/text", "box/math-verify", "no-box", "box/too-long"))
    assert not any(rules("last-line/number", "box/exact", "text/regex", "no-number", "text/json"))
    assert _boxed({"grader": "boxed 2"}), "of before the rule was kept"
    assert not _boxed({"grader": "", "rule": "no-box"})
