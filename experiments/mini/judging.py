"""How a verifier is trained: first to read, then to compare what it would write with what is written.

Trained on step labels alone, a verifier of this size learns how hard a question is and never to compare solutions of
one question (`models/README.md`, What was tried). So its lower layers first learn to write right solutions, as the
language models under Skywork's and Qwen's verifiers did; then they are frozen, and the layers above learn to judge:
step labels, the first wrong digit of a wrong result, and how surprised the lower layers are at each token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.mini.corpus import IGNORED, POOL, Batch, batches, make_pool
from experiments.mini.inheritance import inherit, look_back
from experiments.mini.labels import first_wrong_character, split_steps
from experiments.mini.ladder import HEAD_DIM, ROPE_THETA, Rung, verifier_config
from experiments.mini.problems import DELIMITER
from experiments.mini.sampling import load_generator
from experiments.mini.tokenizer import STEP, make_tokenizer, prompt_of, token_id
from experiments.mini.train import BATCH_TOKENS, Outcome, Schedule, Trainer, device
from experiments.mini.verifier import ProcessRewardModel, save_verifier, verifier_tokens

NO_LABEL = -100
# What the first part of a training leaves for the second, under `work/<name>`.
READ = "read.pt"
# Weight of recalling the token just read while learning to write: predicting alone forgets it, and what is forgotten
# cannot be compared.
RECALL_WEIGHT = 0.3


@dataclass(frozen=True)
class Labelled:
    """One sampled solution: the question, its text, and a label a step."""

    question: str
    solution: str
    labels: tuple[bool, ...]


@dataclass(frozen=True)
class Encoded:
    """One solution as token ids, with a label at each step tag, labels of single tokens, and where it begins."""

    tokens: list[int]
    labels: list[int]
    marks: list[int]
    begin: int


@dataclass(frozen=True)
class LabelledBatch:
    """Token ids, step labels at the tags, labels of single tokens, and which tokens are the solution's (all b, t)."""

    tokens: Tensor
    labels: Tensor
    marks: Tensor
    written: Tensor


def train_verifier(
    shape: Rung,
    schedule: Schedule,
    data: Sequence[Labelled],
    work: Path,
    rows: int = 48,
    pool_size: int = POOL,
) -> tuple[ProcessRewardModel, Outcome]:
    """Train one process reward model and leave it, with its tokenizer, under `work/<name>`.

    Args:
        shape: What is trained.
        schedule: Of the second part; the first has `shape.reading_steps` at the same rate.
        data: Sampled solutions with step labels.
        work: The working folder; a generator that the verifier inherits from is there.
        rows: Solutions a batch.
        pool_size: Reference solutions of the first part.

    Raises:
        ValueError: when no layer is left above those that read.
    """
    if not 0 < shape.reading < shape.layers:
        raise ValueError(
            f"{shape.name}: reading {shape.reading} must lie between 0 and its {shape.layers} layers"
        )
    torch.manual_seed(schedule.seed)
    module = ProcessRewardModel(verifier_config(shape)).to(device())
    encoded = [encode(sample) for sample in data]
    folder = work / shape.name
    minutes = _learn_to_read(module, shape, schedule, encoded, work, pool_size)
    outcome = _learn_to_judge(module, shape, schedule, encoded, rows, folder)
    outcome = replace(outcome, minutes=outcome.minutes + minutes, steps=outcome.steps + shape.reading_steps)
    save_verifier(module, folder, outcome)
    (folder / READ).unlink()
    return module, outcome


def _learn_to_read(
    module: ProcessRewardModel,
    shape: Rung,
    schedule: Schedule,
    encoded: Sequence[Encoded],
    work: Path,
    pool_size: int,
) -> float:
    """Train the lower layers to write right solutions in a verifier's format; return the minutes it took."""
    file = work / shape.name / READ
    if file.exists():
        kept = torch.load(file, weights_only=True, map_location=device())
        module.load_state_dict(kept["module"])
        return float(kept["minutes"])
    if shape.inherits:
        sequences = [each.tokens for each in encoded[:: max(1, len(encoded) // 200)]]
        inherit(module.model, load_generator(work / shape.inherits), sequences, HEAD_DIM)
    pool = make_pool(pool_size, schedule.seed, work / "pool")
    (delimiter,) = make_tokenizer().encode(DELIMITER, add_special_tokens=False)
    pool.tokens[pool.tokens == delimiter] = token_id(STEP)
    layers = module.model.layers
    reader = nn.ModuleDict(
        {"model": module.model, "recall": nn.Linear(shape.hidden, module.config.vocab_size)}
    ).to(device())

    def loss(batch: Batch) -> Tensor:
        tokens, labels = (torch.from_numpy(part).to(device()) for part in (batch.tokens, batch.labels))
        hidden = module.model(input_ids=tokens).last_hidden_state
        wanted = labels != IGNORED
        told = functional.linear(hidden[wanted], module.model.embed_tokens.weight)
        recalled = reader["recall"](hidden[wanted])
        language = functional.cross_entropy(told, labels[wanted])
        return language + RECALL_WEIGHT * functional.cross_entropy(recalled, tokens[wanted])

    reading = replace(schedule, steps=shape.reading_steps)
    module.model.layers = layers[: shape.reading]
    trainer = Trainer(
        reader,
        loss,
        lambda first: batches(pool, BATCH_TOKENS, schedule.seed, first),
        reading,
        file.parent / "reading",
    )
    outcome = trainer.run(f"{shape.name} reads")
    module.model.layers = layers
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"module": module.state_dict(), "minutes": outcome.minutes}, file.with_suffix(".partial"))
    file.with_suffix(".partial").rename(file)
    trainer.finish()
    return outcome.minutes


def _learn_to_judge(
    module: ProcessRewardModel,
    shape: Rung,
    schedule: Schedule,
    encoded: Sequence[Encoded],
    rows: int,
    folder: Path,
) -> Outcome:
    """Train the upper layers and the head on labelled solutions; the lower layers stay as they are."""
    module.requires_grad_(False)
    size = _residual_size(module, shape.reading, encoded[:: max(1, len(encoded) // 64)])
    torch.manual_seed(schedule.seed)
    upper = module.model.layers[shape.reading :]
    look_back(upper[0], HEAD_DIM, ROPE_THETA, size, schedule.seed)
    heads = {
        name: nn.Linear(shape.hidden, outputs) for name, outputs in (("mark", 2), ("token", 1), ("path", 1))
    }
    judge = nn.ModuleDict({"upper": nn.ModuleDict({"layers": upper}), "score": module.score, **heads})
    judge.to(device()).requires_grad_(True)

    def loss(batch: LabelledBatch) -> Tensor:
        states = module.model(input_ids=batch.tokens, output_hidden_states=True)
        hidden, looked = states.last_hidden_state, states.hidden_states[shape.reading + 1]
        expected = _expected(module, states.hidden_states[shape.reading], batch.tokens)
        tagged, marked = batch.labels != NO_LABEL, batch.marks != NO_LABEL
        plain = batch.written & (batch.tokens != token_id(STEP))
        least = torch.where(plain, expected, torch.ones_like(expected)).cummin(1).values
        return (
            functional.cross_entropy(module.score(hidden[tagged]), batch.labels[tagged])
            + functional.cross_entropy(judge["mark"](hidden[marked]), batch.marks[marked])
            + _told(judge["token"](looked[plain]), expected[plain])
            + _told(judge["path"](hidden[tagged]), least[tagged])
        )

    trainer = Trainer(
        judge, loss, lambda first: _batches(encoded, rows, schedule.seed, first), schedule, folder
    )
    outcome = trainer.run(f"{shape.name} judges")
    trainer.finish()
    return outcome


@torch.no_grad()
def _expected(module: ProcessRewardModel, read: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability (b, t) that the lower layers gave each token before they read it; 1 for the first."""
    logits = functional.linear(module.model.norm(read[:, :-1]), module.model.embed_tokens.weight)
    given = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0].exp()
    return functional.pad(given, (1, 0), value=1.0)


@torch.no_grad()
def _residual_size(module: ProcessRewardModel, layer: int, encoded: Sequence[Encoded]) -> float:
    """Return the root mean square of the residual stream below `layer` on written tokens."""
    batch = _padded(encoded)
    read = module.model(input_ids=batch.tokens, output_hidden_states=True).hidden_states[layer]
    return float(read[batch.written].pow(2).mean().sqrt())


def _told(logits: Tensor, probability: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits[..., 0], probability)


def encode(sample: Labelled) -> Encoded:
    """Return token ids, step labels and token labels of one sample, all of one length."""
    steps = split_steps(sample.solution)[: len(sample.labels)]
    tokens = verifier_tokens(sample.question, steps)
    labels, marks = ([NO_LABEL] * len(tokens) for _ in range(2))
    start = begin = len(make_tokenizer().encode(prompt_of(sample.question), add_special_tokens=False))
    tag = token_id(STEP)
    ends = [i for i, token in enumerate(tokens) if token == tag and i >= begin]
    for step, right, end in zip(steps, sample.labels, ends, strict=False):
        labels[end] = int(right)
        if right:
            marks[begin:end] = [1] * (end - begin)
        elif (wrong := first_wrong_character(step)) is not None:
            # Digits and signs of an equation are one token each, so characters count from the end as tokens do.
            at = end - (len(step) - wrong)
            marks[at:end] = [0] * (end - at)
        begin = end + 1
    return Encoded(tokens, labels, marks, start)


def _batches(encoded: Sequence[Encoded], rows: int, seed: int, first: int) -> Iterator[LabelledBatch]:
    number = 0
    for epoch in range(1_000_000):
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(len(encoded))
        windows = np.array_split(order, max(1, len(order) // 4096))
        groups = [
            group
            for window in windows
            for group in np.array_split(
                window[np.argsort([len(encoded[i].tokens) for i in window], kind="stable")],
                max(1, len(window) // rows),
            )
        ]
        for index in rng.permutation(len(groups)):
            if number >= first:
                yield _padded([encoded[i] for i in groups[index]])
            number += 1


def _padded(samples: Sequence[Encoded]) -> LabelledBatch:
    width = max(len(sample.tokens) for sample in samples)

    def column(rows: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([row + [fill] * (width - len(row)) for row in rows], device=device())

    written = [[0] * s.begin + [1] * (len(s.tokens) - s.begin) for s in samples]
    return LabelledBatch(
        column([s.tokens for s in samples], 0),
        column([s.labels for s in samples], NO_LABEL),
        column([s.marks for s in samples], NO_LABEL),
        column(written, 0).bool(),
    )
