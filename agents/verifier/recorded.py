"""The verifier of a recording: scores at once, no model."""

from collections.abc import Sequence

from agents.serving.recording import Recording
from agents.verifier.prm import VerifierCounts
from schemas.search import Scored, Served


class RecordedVerifier:
    """Score paths by looking them up.

    Args:
        recording: What was recorded.
    """

    def __init__(self, recording: Recording) -> None:
        self.served = Served(name="recorded")
        self.counts = VerifierCounts()
        self._recording = recording

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        """Return the recorded score of each path's last step.

        Raises:
            RecordingError: A path was not recorded.
        """
        return [self._scored(question, path) for path in paths]

    async def close(self) -> None:
        """Do nothing: a recording holds no connection."""

    def _scored(self, question: str, path: Sequence[str]) -> Scored:
        node = self._recording.scored(question, path)
        assert node.step is not None  # a path has at least one step
        return Scored(score=node.step.score, tokens=node.prompt_tokens + node.step.tokens)
