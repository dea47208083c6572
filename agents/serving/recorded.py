r"""Recorded searches: the steps of models and the scores of a verifier, looked up instead of computed.

They are used to replay recorded outcomes and to measure the control plane without an engine. The file consists of JSON
lines, with one sampled path per line and any number of paths per question and model:

    {"question": "2+3?", "model": "mini-m", "path": 0, "prompt_tokens": 9, "steps": [
        {"text": "2+3=5\n\n", "tokens": 6, "score": 0.97, "finish": "separator"},
        {"text": "\\boxed{5}", "tokens": 4, "score": 0.91, "finish": "eos"}]}

Paths with common first steps are merged into a tree, so independent samples and whole recorded beam searches
are read the same way. A draft is one of the recorded continuations of its prefix, drawn by its seed with the
frequencies at which they were recorded.
"""

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from agents.catalogue.models import Sampling
from agents.serving.engine import Drafted, Prefix, check_seeds
from agents.serving.errors import ServingError
from schemas.forest import Finish, Unit
from schemas.query import Message
from schemas.search import Served

__all__ = ["RecordedEngine", "RecordedPath", "RecordedStep", "Recording", "write_paths"]


class RecordingError(ServingError):
    """A recording is unreadable, or does not contain what was requested. Record it, or request what was recorded."""


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a recorded path: its text with the delimiter, number of tokens, verifier score, and why it ended."""

    text: str
    tokens: int
    score: Unit
    finish: Finish = "separator"


class RecordedPath(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a recording.

    Attributes:
        question: The question as the verifier reads it: the user's messages.
        model: The model that generated the path.
        path: Number of the sample; for information only.
        steps: The steps in order, at least one; the last usually has the finish `eos`.
        prompt_tokens: Tokens of the rendered question.
    """

    question: str
    model: str
    path: int
    steps: tuple[RecordedStep, ...]
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("steps: a path has at least one")


class RecordedNode:
    """A recorded prefix and all of its continuations. `step` is None at the root."""

    def __init__(self, step: RecordedStep | None, prompt_tokens: int) -> None:
        self.step = step
        self.prompt_tokens = prompt_tokens
        self.followers: list[RecordedNode] = []  # with repetition: one entry per recorded path
        self._by_text: dict[tuple[str, Finish], RecordedNode] = {}

    def follow(self, step: RecordedStep, prompt_tokens: int) -> "RecordedNode":
        """Record one more continuation and return its node."""
        key = (step.text, step.finish)
        if key not in self._by_text:
            self._by_text[key] = RecordedNode(step, prompt_tokens)
        self.followers.append(self._by_text[key])
        return self._by_text[key]

    def child(self, text: str) -> "RecordedNode | None":
        """Return the child with a text, preferably one that has continuations."""
        finishes: tuple[Finish, ...] = ("separator", "length", "eos", "context")
        return next(
            (self._by_text[text, finish] for finish in finishes if (text, finish) in self._by_text), None
        )

    def beginning(self, text: str) -> "RecordedNode | None":
        """Return the first recorded continuation that begins with a text."""
        return next((node for node in self.followers if node.step and node.step.text.startswith(text)), None)


class Recording:
    """Recorded paths by question and model.

    Args:
        paths: The paths, in any order. So that load tests may ask any question, one that was not recorded is replaced
            by one that was; the same text is always replaced by the same question.
    """

    def __init__(self, paths: Iterable[RecordedPath]) -> None:
        self._roots: dict[str, dict[str, RecordedNode]] = {}
        for path in paths:
            self._add(path)
        self._questions = list(self._roots)
        if not self._questions:
            raise RecordingError("the recording holds no path")

    @classmethod
    def load(cls, file: Path) -> "Recording":
        """Read a recording.

        Raises:
            RecordingError: The file is unreadable. The message names the file, the line and what is wrong with it.
        """
        return cls(read_paths(file))

    def draw(self, question: str, model: str, steps: Sequence[str], seed: int) -> RecordedNode:
        """Return a recorded continuation of a prefix.

        Raises:
            RecordingError: Nothing was recorded after this prefix.
        """
        node = self._find(question, model, steps)
        if not node.followers:
            raise RecordingError(
                f"{model}: nothing was recorded after step {len(steps)} of {_shown(question)}"
            )
        return node.followers[seed % len(node.followers)]

    def scored(self, question: str, steps: Sequence[str]) -> RecordedNode:
        """Return the recorded node at the end of a path, whichever model generated the path.

        If the client's own limits cut the last step short, return the first recorded step that begins with its text.

        Raises:
            RecordingError: No model generated this path.
        """
        for model in self._of(question):
            try:
                return self._find(question, model, steps)
            except RecordingError:
                continue
        for model in self._of(question):
            try:
                before = self._find(question, model, steps[:-1])
            except RecordingError:
                continue
            if (cut := before.beginning(steps[-1])) is not None:
                return cut
        raise RecordingError(f"no score was recorded for a path of {len(steps)} steps of {_shown(question)}")

    def _add(self, path: RecordedPath) -> None:
        models = self._roots.setdefault(path.question, {})
        node = models.setdefault(path.model, RecordedNode(None, path.prompt_tokens))
        read_tokens = path.prompt_tokens
        for step in path.steps:
            node = node.follow(step, read_tokens)
            read_tokens += step.tokens

    def _of(self, question: str) -> dict[str, RecordedNode]:
        if question not in self._roots:
            question = self._questions[zlib.crc32(question.encode()) % len(self._questions)]
        return self._roots[question]

    def _find(self, question: str, model: str, steps: Sequence[str]) -> RecordedNode:
        models = self._of(question)
        node = models.get(model)
        if node is None:
            raise RecordingError(
                f"{model}: not recorded for {_shown(question)}; recorded are {', '.join(models)}"
            )
        for depth, text in enumerate(steps, 1):
            found = node.child(text)
            if found is None:
                raise RecordingError(
                    f"{model}: step {depth} of a path of {_shown(question)} was not recorded"
                )
            node = found
        return node


def read_paths(file: Path) -> list[RecordedPath]:
    """Return the paths of a recording file, in its order.

    Raises:
        RecordingError: The file is unreadable. The message names the file, the line and what is wrong with it.
    """
    decoder = msgspec.json.Decoder(RecordedPath)
    paths = []
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise RecordingError(f"{file}: cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                paths.append(decoder.decode(line))
            except msgspec.DecodeError as error:
                raise RecordingError(f"{file}, line {number}: {error}") from error
    return paths


def write_paths(file: Path, paths: Iterable[RecordedPath]) -> None:
    """Write a recording file."""
    file.write_bytes(b"".join(msgspec.json.encode(path) + b"\n" for path in paths))


def question_of(messages: Sequence[Message]) -> str:
    """Return the question of a conversation as the verifier reads it (`SearchStep.question`)."""
    users = [message.text for message in messages if message.role == "user"]
    return "\n\n".join(users or [message.text for message in messages])


def _shown(question: str) -> str:
    return repr(question if len(question) <= 60 else question[:57] + "...")


# The engine for a recording. It needs no model and returns drafts at once.


class RecordedEngine:
    """Looks up drafts in a recording.

    Args:
        recording: The recording.
        model: The model whose drafts to return.
    """

    def __init__(self, recording: Recording, model: str) -> None:
        self.model = model
        self.served = Served(name="recorded", model=model)
        self._recording = recording

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` recorded drafts for each prefix. `sampling` is ignored: it was fixed when the paths were recorded.

        A recording has the number of tokens in a step, but not where each token ends. A step longer than the prefix's
        `max_tokens` is therefore cut after the corresponding share of its characters, but at least one.

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
        assert node.step is not None  # only a root has no step, and a root follows no other node
        text, finish, tokens = node.step.text, node.step.finish, node.step.tokens
        if prefix.max_tokens is not None and tokens > prefix.max_tokens:
            text, finish = text[: max(1, len(text) * prefix.max_tokens // tokens)], "length"
            tokens = prefix.max_tokens
        return Drafted(text=text, finish=finish, tokens=tokens, prompt_tokens=node.prompt_tokens)
