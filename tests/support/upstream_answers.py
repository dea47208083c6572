"""Answers whose upstream returned more than a text."""

from typing import Any

from schemas.action import Action
from schemas.answer import Answer
from schemas.chat import UpstreamChoice
from schemas.forest import Draft
from schemas.prices import Billed

CALLS = [
    {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
    {"id": "call-2", "type": "function", "function": {"name": "look", "arguments": "not JSON"}},
]


def returned(text: str, *, logprobs: str = "", **message: Any) -> Answer:
    """Return the Answer to a request whose upstream returned a message."""
    draft = Draft(parent=-1, depth=1, tokens=19, finish="eos", fate="finished")
    said = {"role": "assistant", "content": text or None, **message}
    return Answer(
        query_id="resp_1",
        status="ok",
        by="executor",
        action=Action(model="hosted", qp=1, cp=1, bs=1),
        text=text,
        complete=True,
        path=(0,),
        trace=(draft,),
        prompt_tokens=57,
        billed=Billed(input=57, cached_input=20, output=19, reasoning=4),
        upstream=UpstreamChoice(message=said, logprobs=logprobs),
    )
