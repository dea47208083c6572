"""How a path is put to a process reward model: which tokens, and where the scores stand.

StepTagFormat    Qwen2.5-Math-PRM and the mini PRMs: a chat whose assistant turn is every step followed by a
tag SkyworkFormat    Skywork-o1-Open-PRM: question and lines of text; a step's score stands at its last
newline

Steps lose their trailing blank line first, which is a matter of the search and not of the verifier.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from agents.serving.errors import EngineStartError
from agents.serving.prompts import ChatPrompts


class Rendered(Struct, frozen=True):
    """A path as a prompt.

    Attributes:
        token_ids: The prompt.
        positions: Index of the token where each step's score stands, in order.
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]


class Format(Protocol):
    """A way to put paths to a process reward model."""

    def render(self, question: str, steps: Sequence[str]) -> Rendered:
        """Return the prompt of a path; one position a step."""
        ...


class StepTagFormat:
    """A chat: the question, then all steps in one assistant turn, each followed by the step tag.

    Args:
        prompts: The verifier's tokenizer and chat template.
        tag: The step tag's text, one token.
        tag_id: Its id, when the catalogue states it: it must be the tokenizer's.
        system: A system message, where the model was trained with one.
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
        # A question that spells the tag out would otherwise add a score of its own.
        told = "".join(self._without_tag(step.rstrip("\n")) + self._tag for step in steps)
        dialogue = [*self._system, ("user", self._without_tag(question)), ("assistant", told)]
        ids = self._prompts.encode(self._prompts.dialogue(dialogue))
        positions = tuple(index for index, token in enumerate(ids) if token == self.tag_id)
        return Rendered(ids, positions)

    def _without_tag(self, text: str) -> str:
        return text.replace(self._tag, self._harmless)


class SkyworkFormat:
    """Skywork's own input: beginning-of-text, the question, a newline; then every line and its newline.

    Skywork scores lines, the search takes steps: a step's score is that of its last line.

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
            # A step of blank lines alone still has its newline, or it would have no place for a score.
            for line in [line for line in step.split("\n") if line] or [""]:
                ids += [*self._prompts.encode(line), self._newline]
            positions.append(len(ids) - 1)
        return Rendered(tuple(ids), tuple(positions))
