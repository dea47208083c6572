"""How a path is rendered as a prompt for a process reward model, and which tokens carry the scores.

StepTagFormat    Qwen2.5-Math-PRM and the mini PRMs: a chat whose assistant turn contains all steps, each followed by a
                 tag
SkyworkFormat    Skywork-o1-Open-PRM: the question and lines of text; a step's score is at its last newline

A step's trailing blank line, the search's delimiter, is removed first.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from agents.serving.errors import EngineStartError
from agents.serving.prompts import ChatPrompts


class Rendered(Struct, frozen=True):
    """A path as a prompt.

    Attributes:
        token_ids: The prompt's tokens.
        positions: Indices of the tokens that carry the steps' scores, in step order.
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]


class Format(Protocol):
    """The protocol for formats, which render paths as prompts for a process reward model."""

    def render(self, question: str, steps: Sequence[str]) -> Rendered:
        """Return the prompt for a path, with one position per step."""
        ...


class StepTagFormat:
    """A chat with the question, followed by all steps in one assistant turn, each with a step tag at its end.

    Args:
        prompts: The verifier's tokenizer and chat template.
        tag: Text of the step tag, which is one token.
        tag_id: Id of the step tag, if the catalogue specifies it. It must match the tokenizer's.
        system: A system message, if the model was trained with one.
    """

    def __init__(
        self, prompts: ChatPrompts, tag: str, *, tag_id: int | None = None, system: str = ""
    ) -> None:
        self._prompts = prompts
        self._tag = tag
        self.tag_id = prompts.token_id(tag)
        if tag_id is not None and tag_id != self.tag_id:
            raise EngineStartError(
                f"step tag {tag!r} has id {self.tag_id} in the tokenizer and {tag_id} in the catalogue"
            )
        self._system = [("system", system)] if system else []
        self._harmless = tag[:1] + " " + tag[1:]

    def render(self, question: str, steps: Sequence[str]) -> Rendered:
        """Return the prompt of a path."""
        # Without this, a tag inside the question or a step would add a score.
        told = "".join(self._without_tag(step.rstrip("\n")) + self._tag for step in steps)
        dialogue = [*self._system, ("user", self._without_tag(question)), ("assistant", told)]
        ids = self._prompts.encode(self._prompts.dialogue(dialogue))
        positions = tuple(index for index, token in enumerate(ids) if token == self.tag_id)
        return Rendered(ids, positions)

    def _without_tag(self, text: str) -> str:
        return text.replace(self._tag, self._harmless)


class SkyworkFormat:
    """Skywork's input format: beginning-of-text, the question and a newline, then every line with its newline.

    Skywork scores lines, whereas the search needs step scores. A step's score is that of its last line.

    Args:
        prompts: The verifier's tokenizer.
    """

    def __init__(self, prompts: ChatPrompts) -> None:
        self._prompts = prompts
        newline = prompts.encode("\n")
        if len(newline) != 1:
            raise EngineStartError(f"a newline has {len(newline)} tokens; the Skywork format needs one")
        self._newline = newline[0]

    def render(self, question: str, steps: Sequence[str]) -> Rendered:
        """Return the prompt of a path."""
        begin = self._prompts.tokenizer.bos_token or ""
        ids = list(self._prompts.encode(f"{begin}{question}\n"))
        positions = []
        for step in steps:
            # A step consisting of blank lines keeps one newline. Otherwise, no token would carry its score.
            for line in [line for line in step.split("\n") if line] or [""]:
                ids += [*self._prompts.encode(line), self._newline]
            positions.append(len(ids) - 1)
        return Rendered(tuple(ids), tuple(positions))
