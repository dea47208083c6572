"""What a reader of chunks shows: pieces that continue what it has, of the text and then of each call."""

import pytest

from schemas.chunk import AnswerChunk, CallHead, Shown, digest
from schemas.query import ToolCall

FIRST, SECOND = CallHead(index=0, id="c-1", name="add"), CallHead(index=1, id="c-2", name="add")


def chunk(call: CallHead | None, offset: int, before: tuple[str, ...], text: str) -> AnswerChunk:
    return AnswerChunk(query_id="q", call=call, offset=offset, before=digest(*before), text=text)


PIECES = [
    chunk(None, 0, (), "I "),
    chunk(None, 2, ("I ",), "add."),
    chunk(FIRST, 0, ("I add.", "c-1", "add"), '{"a"'),
    chunk(FIRST, 4, ("I add.", "c-1", "add", '{"a"'), ": 1}"),
    chunk(SECOND, 0, ("I add.", "c-1", "add", '{"a": 1}', "c-2", "add"), "{}"),
]


def whole() -> Shown:
    calls = [
        ToolCall(id="c-1", name="add", arguments='{"a": 1}'),
        ToolCall(id="c-2", name="add", arguments="{}"),
    ]
    return Shown(text="I add.", calls=calls)


def test_pieces_add_up_to_the_answer() -> None:
    shown = Shown()
    assert [shown.add(piece) for piece in PIECES] == [piece.text for piece in PIECES]
    assert shown == whole()


def test_a_repeat_adds_nothing() -> None:
    shown = Shown()
    for piece in PIECES:
        shown.add(piece)
        assert not shown.add(piece)
    assert not any(shown.add(piece) for piece in PIECES)
    assert shown == whole()


@pytest.mark.parametrize("lost", range(len(PIECES) - 1))
def test_nothing_follows_a_piece_that_is_lost(lost: int) -> None:
    shown = Shown()
    for piece in (*PIECES[:lost], *PIECES[lost + 1 :]):
        shown.add(piece)
    before = Shown()
    for piece in PIECES[:lost]:
        before.add(piece)
    assert shown == before


def test_a_longer_piece_adds_what_is_new() -> None:
    shown = Shown(text="I add.")
    shown.add(PIECES[2])
    assert shown.add(chunk(FIRST, 0, ("I add.", "c-1", "add"), '{"a": 1}')) == ": 1}"


@pytest.mark.parametrize(
    "other",
    [
        chunk(None, 6, ("I add.",), " Well."),
        chunk(CallHead(index=0, id="c-9", name="add"), 0, ("I add.", "c-9", "add"), "{}"),
        chunk(FIRST, 0, ("I add.", "c-1", "add"), '{"b": 1}'),
        chunk(FIRST, 4, ("Add.", "c-1", "add", '{"a"'), ": 1}"),
    ],
    ids=["text after a call", "another call", "other arguments", "after another text"],
)
def test_what_does_not_continue_is_dropped(other: AnswerChunk) -> None:
    shown = Shown(text="I add.")
    shown.add(PIECES[2])
    assert not shown.add(other)
    assert shown == Shown(text="I add.", calls=[ToolCall(id="c-1", name="add", arguments='{"a"')])
