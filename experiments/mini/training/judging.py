"""How a verifier is trained: first to read, then to compare what it would write with what is written.

Trained on step labels alone, a verifier of this size learns how hard a question is and never to compare solutions of
one question (`models/README.md`, What was tried). So its lower layers first learn to write right solutions; then they
are frozen, and the layers above learn to judge: step labels, the first wrong digit of a wrong result, and how
surprised the lower layers are at each token and were at most.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.mini.corpus import Batch, Pool, batches
from experiments.mini.grading import split_steps
from experiments.mini.ladder import BATCH_TOKENS
from experiments.mini.sampling import load_generator
from experiments.mini.tasks.problem import DELIMITER
from experiments.mini.tokenizer import STEP, make_tokenizer, prompt_of, token_id
from experiments.mini.training.inheritance import inherit, look_back
from experiments.mini.training.labels import first_wrong_character
from experiments.mini.training.lean import norm, product
from experiments.mini.training.loop import STATE, Outcome, Schedule, fit
from experiments.mini.training.solutions import Labelled
from experiments.mini.training.verifier import (
    Judge,
    ProcessRewardModel,
    save_verifier,
    trunk_states,
    verifier_config,
    verifier_tokens,
)

NO_LABEL = -100
# What the first part of a training leaves for the second.
READ = "read.pt"
# Weight of recalling the token just read while learning to write: predicting alone forgets it, and what is forgotten
# cannot be compared.
RECALL_WEIGHT = 0.3


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
    shape: Judge,
    data: Sequence[Labelled],
    pool: Pool,
    folder: Path,
    generator: Path | None,
    seed: int = 0,
    rows: int = 48,
    compiled: bool = True,
) -> Outcome:
    """Train one process reward model and leave it, with its tokenizer, under `folder`.

    Args:
        shape: What is trained.
        data: Sampled solutions with step labels.
        pool: Reference solutions, for the first part.
        folder: Where its state is kept while it trains, and the checkpoint after.
        generator: The checkpoint that it inherits from, if it does.
        seed: Of weights and order.
        rows: Solutions a batch of the second part.
        compiled: Whether the first part's loss is compiled.
    """
    torch.manual_seed(seed)
    module = ProcessRewardModel(verifier_config(shape))
    encoded = [encode(sample) for sample in data]
    if shape.inherits and generator is not None:
        inherit(
            module.model,
            load_generator(generator),
            [e.tokens for e in encoded[:: max(1, len(encoded) // 200)]],
        )
    _learn_to_read(module, shape, pool, folder, seed, compiled)
    outcome = _learn_to_judge(module, shape, encoded, rows, folder, seed)
    save_verifier(module, folder, outcome)
    (folder / STATE).unlink()
    (folder / READ).unlink()
    return outcome


def _learn_to_read(
    module: ProcessRewardModel, shape: Judge, pool: Pool, folder: Path, seed: int, compiled: bool
) -> None:
    """Train the lower layers to write right solutions in a verifier's format."""
    if (folder / READ).exists():
        module.load_state_dict(torch.load(folder / READ, weights_only=True))
        return
    (delimiter,) = make_tokenizer().encode(DELIMITER, add_special_tokens=False)
    tagged = Pool(np.where(pool.tokens == delimiter, token_id(STEP), pool.tokens), pool.learnt, pool.starts)
    recall = nn.Linear(shape.hidden, module.config.vocab_size)
    reader = nn.ModuleDict({"model": module.model, "recall": recall})
    weights = dict(module.model.named_parameters())

    def mean(tokens: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
        states = trunk_states(weights, shape, tokens, shape.reading)
        hidden = norm(states[-1], weights["norm.weight"]).flatten(0, 1).index_select(0, rows)
        told = product(hidden, weights["embed_tokens.weight"]).float()
        recalled = product(hidden, recall.weight).float() + recall.bias
        language = functional.cross_entropy(told, targets)
        return language + RECALL_WEIGHT * functional.cross_entropy(
            recalled, tokens.flatten().index_select(0, rows)
        )

    loss_of: Any = torch.compile(mean, dynamic=True) if compiled else mean

    def advance(batch: Batch) -> tuple[float, int]:
        loss = loss_of(*(torch.from_numpy(each) for each in (batch.tokens, batch.rows, batch.targets)))
        loss.backward()
        return float(loss.detach()), batch.tokens.size

    schedule = Schedule(shape.reading_steps, shape.learning_rate, seed)
    fit(f"{shape.name} reads", reader, advance, lambda first: batches(tagged, BATCH_TOKENS, seed, first), schedule,
        folder / "reading")  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    partial = (folder / READ).with_suffix(".partial")
    torch.save(module.state_dict(), partial)
    partial.replace(folder / READ)
    (folder / "reading" / STATE).unlink()


def _learn_to_judge(
    module: ProcessRewardModel, shape: Judge, encoded: Sequence[Encoded], rows: int, folder: Path, seed: int
) -> Outcome:
    """Train the upper layers and the head on labelled solutions; the lower layers stay as they are."""
    module.requires_grad_(False)
    weights = dict(module.model.named_parameters())
    sample = _padded(encoded[:: max(1, len(encoded) // 64)])
    with torch.no_grad():
        below = trunk_states(weights, shape, sample.tokens, shape.reading)[-1]
    torch.manual_seed(seed)
    upper = module.model.layers[shape.reading :]
    look_back(upper[0], float(below[sample.written].pow(2).mean().sqrt()), seed)
    heads = {
        name: nn.Linear(shape.hidden, outputs) for name, outputs in (("mark", 2), ("token", 1), ("path", 1))
    }
    judge = nn.ModuleDict({"upper": nn.ModuleDict({"layers": upper}), "score": module.score, **heads})
    judge.requires_grad_(True)

    def advance(batch: LabelledBatch) -> tuple[float, int]:
        states = trunk_states(weights, shape, batch.tokens)
        hidden, looked = norm(states[-1], weights["norm.weight"]), states[shape.reading + 1]
        expected = _expected(weights, states[shape.reading], batch.tokens)
        tagged, marked = batch.labels != NO_LABEL, batch.marks != NO_LABEL
        plain = batch.written & (batch.tokens != token_id(STEP))
        least = torch.where(plain, expected, torch.ones_like(expected)).cummin(1).values
        loss = (
            functional.cross_entropy(module.score(hidden[tagged]), batch.labels[tagged])
            + functional.cross_entropy(judge["mark"](hidden[marked]), batch.marks[marked])
            + _told(judge["token"](looked[plain]), expected[plain])
            + _told(judge["path"](hidden[tagged]), least[tagged])
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), batch.tokens.numel()

    outcome = fit(
        shape.name, judge, advance, lambda first: _batches(encoded, rows, seed, first),
        Schedule(shape.steps, shape.learning_rate, seed), folder,
    )  # fmt: skip
    assert outcome is not None
    return outcome


@torch.no_grad()
def _expected(weights: dict[str, Tensor], read: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability (b, t) that the lower layers gave each token before they read it; 1 for the first."""
    hidden = norm(read[:, :-1], weights["norm.weight"])
    logits = product(hidden, weights["embed_tokens.weight"]).float()
    given = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0].exp()
    return functional.pad(given, (1, 0), value=1.0)


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
            number = re.match(r"\d+", step[wrong:])
            last = wrong + (len(number[0]) if number else 0)
            offsets = make_tokenizer()(step, add_special_tokens=False, return_offsets_mapping=True)[
                "offset_mapping"
            ]
            for token, (first, _) in enumerate(offsets):
                if wrong <= first < last:
                    marks[begin + token] = 0
        begin = end + 1
    return Encoded(tokens, labels, marks, start)


def _batches(encoded: Sequence[Encoded], rows: int, seed: int, first: int) -> Iterator[LabelledBatch]:
    number = 0
    for epoch in range(1_000_000):
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(len(encoded))
        groups = [
            group
            for window in np.array_split(order, max(1, len(order) // 4096))
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
        return torch.tensor([row + [fill] * (width - len(row)) for row in rows])

    written = [[0] * s.begin + [1] * (len(s.tokens) - s.begin) for s in samples]
    return LabelledBatch(
        column([s.tokens for s in samples], 0),
        column([s.labels for s in samples], NO_LABEL),
        column([s.marks for s in samples], NO_LABEL),
        column(written, 0).bool(),
    )
