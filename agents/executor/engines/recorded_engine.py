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
        return Drafted(
            text=node.step.text,
            finish=node.step.finish,
            tokens=node.step.tokens,
            prompt_tokens=node.prompt_tokens,
        )
