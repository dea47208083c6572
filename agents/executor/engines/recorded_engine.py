"""The engine of a recording: it returns drafts at once, without a model."""

from collections.abc import Sequence

from agents.executor.engine import Drafted, EngineCounts, Prefix, check_seeds
from agents.serving.recording import Recording, question_of
from agents.space.models import Sampling
from schemas.search import Served


class RecordedEngine:
    """Looks up drafts in a recording.

    Args:
        recording: The recording.
        model: The model whose drafts to return.
    """

    def __init__(self, recording: Recording, model: str) -> None:
        self.model = model
        self.served = Served(name="recorded", model=model)
        self.counts = EngineCounts()
        self._recording = recording

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` recorded drafts for each prefix; `sampling` was fixed when they were recorded.

        A recording says how many tokens a step has, and not where they end. So a step that is longer than the prefix's
        `max_tokens` is cut after the same share of its characters, at least one.

        Raises:
            RecordingError: The recording has no such draft.
        """
        check_seeds(prefixes, n, seeds)
        return [
            self._draft(prefix, seeds[index * n + k])
            for index, prefix in enumerate(prefixes)
            for k in range(n)
        ]

    async def close(self) -> None:
        """Do nothing: a recording has no connection."""

    def _draft(self, prefix: Prefix, seed: int) -> Drafted:
        node = self._recording.draw(question_of(prefix.messages), self.model, prefix.steps, seed)
        assert node.step is not None  # only a root has none, and a root follows nothing
        text, finish, tokens = node.step.text, node.step.finish, node.step.tokens
        if prefix.max_tokens is not None and tokens > prefix.max_tokens:
            text, finish = text[: max(1, len(text) * prefix.max_tokens // tokens)], "length"
            tokens = prefix.max_tokens
        return Drafted(text=text, finish=finish, tokens=tokens, prompt_tokens=node.prompt_tokens)
