"""Texts to token ids, each step encoded once: what it takes to render hundreds of thousands of paths.

A path is encoded as its text is. Where no token reaches over the end of a step, that is its steps' ids in a
row, and of steps there are few; where one could, the whole text is encoded, as the product does.
"""

from collections.abc import Sequence
from functools import lru_cache

from agents.serving.engine import Continuer, Prefix
from agents.serving.prompts import ChatPrompts
from agents.verifier.formats import Rendered, StepTagFormat
from experiments.sampler.decoder import Ids

STEPS = 200_000
_MOST_PIECES = 10_000  # a larger vocabulary is not tried piece by piece


class Reencoding(Continuer):
    """Continue paths from their text alone; what was sampled is not remembered.

    Args:
        model: Named in errors.
        prompts: The model's chat template and tokenizer.
        context_tokens: Its longest prompt plus output.
        delimiter: Of the steps that are mostly met.
    """

    def __init__(self, model: str, prompts: ChatPrompts, context_tokens: int, delimiter: str) -> None:
        super().__init__(model, prompts, context_tokens, remembered=0)
        self._encode = lru_cache(STEPS)(prompts.encode)
        self._delimiter = delimiter if closes(prompts, delimiter) else None

    def _answer_ids(self, prefix: Prefix) -> Ids:
        if self._delimiter is None or not all(step.endswith(self._delimiter) for step in prefix.steps):
            return self._encode("".join(prefix.steps)) if prefix.steps else ()
        return tuple(token for step in prefix.steps for token in self._encode(step))


def closes(prompts: ChatPrompts, delimiter: str) -> bool:
    """Return whether a text that ends in the delimiter is encoded alike, whichever token of the vocabulary follows."""
    vocabulary = prompts.tokenizer.get_vocab().values()
    if len(vocabulary) > _MOST_PIECES:
        return False
    alone = prompts.encode(delimiter)
    return all(
        prompts.encode(delimiter + piece) == alone + prompts.encode(piece)
        for piece in map(prompts.piece, vocabulary)
    )


class Stepwise:
    """Render what another format renders, each step once.

    Args:
        format: Ends each step with a special token, which no other token reaches over.
    """

    def __init__(self, format: StepTagFormat) -> None:
        self._format = format
        self._first = lru_cache(STEPS)(self._render_first)
        self._later = lru_cache(STEPS)(self._render_later)

    def render(self, question: str, steps: Sequence[str]) -> Rendered:
        """Return the prompt of a path."""
        ids, end = self._first(question, steps[0])
        positions = [len(ids) - 1]
        for step in steps[1:]:
            ids += self._later(step)
            positions.append(len(ids) - 1)
        return Rendered(ids + end, tuple(positions))

    def _render_first(self, question: str, step: str) -> tuple[Ids, Ids]:
        whole = self._format.render(question, (step,))
        after = whole.positions[0] + 1
        return whole.token_ids[:after], whole.token_ids[after:]

    def _render_later(self, step: str) -> Ids:
        whole = self._format.render("", ("", step))
        return whole.token_ids[whole.positions[0] + 1 : whole.positions[1] + 1]
