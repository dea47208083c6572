"""The process reward models: their shape, their input format, and their training on sampled solutions.

A checkpoint is what vLLM's `Qwen2ForProcessRewardModel` loads: a Qwen2 trunk (`model.*`) under a two-layer head
(`score.0`, `score.2`) with two labels. The score of a step is the probability of label 1 at its step tag.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen2Config, Qwen2Model

from experiments.mini.inheritance import inherit
from experiments.mini.labels import first_wrong_character, split_steps
from experiments.mini.ladder import HEAD_DIM, Rung, verifier_config
from experiments.mini.sampling import load_generator
from experiments.mini.tokenizer import STEP, make_tokenizer, prompt_of, token_id
from experiments.mini.train import Outcome, Schedule, Trainer, device

GOOD_LABEL = 1
NO_LABEL = -100
# Weight of the auxiliary loss: predicting the tokens of right steps teaches the arithmetic that judging needs.
LANGUAGE_WEIGHT = 0.5
# Weight of the loss on single tokens: which digit of a wrong result is the first that is wrong is known exactly, and
# says far more than one label a step.
TOKEN_WEIGHT = 1.0


class ProcessRewardModel(nn.Module):
    """A Qwen2 trunk with a head of two labels on every token."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.config = config
        self.model = Qwen2Model(config)
        self.score = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size), nn.ReLU(), nn.Linear(config.hidden_size, 2)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the hidden states (b, t, h) of right-padded token ids (b, t)."""
        hidden: Tensor = self.model(input_ids=tokens).last_hidden_state
        return hidden

    @torch.inference_mode()
    def step_scores(self, question: str, steps: Sequence[str]) -> list[float]:
        """Return the probability of the good label at each step's tag."""
        tokens = torch.tensor([verifier_tokens(question, steps)], device=self.model.device)
        tag = token_id(STEP)
        logits = self.score(self(tokens)[tokens == tag])
        return [float(p) for p in logits.softmax(-1)[:, GOOD_LABEL]]


def verifier_text(question: str, steps: Sequence[str]) -> str:
    """Return what a verifier reads: the prompt, then each step without its blank line, each followed by the tag."""
    return prompt_of(question) + "".join(step.rstrip("\n") + STEP for step in steps)


def verifier_tokens(question: str, steps: Sequence[str]) -> list[int]:
    """Return the token ids of `verifier_text`."""
    ids: list[int] = make_tokenizer().encode(verifier_text(question, steps), add_special_tokens=False)
    return ids


def load_verifier(folder: Path) -> ProcessRewardModel:
    """Load a process reward model from its Hugging Face folder."""
    model = ProcessRewardModel(Qwen2Config.from_pretrained(folder, local_files_only=True))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


@dataclass(frozen=True)
class Labelled:
    """One sampled solution: the question, its text, and a label a step."""

    question: str
    solution: str
    labels: tuple[bool, ...]


Encoded = tuple[list[int], list[int], list[int], list[int]]


@dataclass(frozen=True)
class LabelledBatch:
    """Token ids (b, t); step labels at the tags, next tokens inside right steps, labels of single tokens (all b, t)."""

    tokens: Tensor
    labels: Tensor
    following: Tensor
    marks: Tensor


def train_verifier(
    shape: Rung, schedule: Schedule, data: Sequence[Labelled], work: Path, rows: int = 48
) -> tuple[ProcessRewardModel, Outcome]:
    """Train one process reward model and leave it, with its tokenizer, under `work/<name>`."""
    torch.manual_seed(schedule.seed)
    config = verifier_config(shape)
    module = ProcessRewardModel(config).to(device())
    # Judges single tokens while training; it is no part of the checkpoint.
    marker = nn.Linear(config.hidden_size, 2).to(device())
    module.add_module("marker", marker)
    encoded = [_encode(sample) for sample in data]
    if shape.inherits:
        sequences = [each[0] for each in encoded[:: max(1, len(encoded) // 200)]]
        inherit(module.model, load_generator(work / shape.inherits), sequences, HEAD_DIM)

    def loss(batch: LabelledBatch) -> Tensor:
        states = module.model(input_ids=batch.tokens, output_hidden_states=True)
        hidden, read = states.last_hidden_state, states.hidden_states[shape.reading or shape.layers]
        tagged, inside, marked = (part != NO_LABEL for part in (batch.labels, batch.following, batch.marks))
        judged = functional.cross_entropy(module.score(hidden[tagged]), batch.labels[tagged])
        # The lower layers go on predicting the next token, so that those above have something to compare with.
        told = functional.linear(module.model.norm(read[inside]), module.model.embed_tokens.weight)
        language = functional.cross_entropy(told, batch.following[inside])
        digits = functional.cross_entropy(marker(hidden[marked]), batch.marks[marked])
        return judged + LANGUAGE_WEIGHT * language + TOKEN_WEIGHT * digits

    folder = work / shape.name
    trainer = Trainer(
        module, loss, lambda first: _batches(encoded, rows, schedule.seed, first), schedule, folder
    )
    outcome = trainer.run(shape.name)
    save_verifier(module, folder, outcome)
    trainer.finish()
    return module, outcome


def save_verifier(module: ProcessRewardModel, folder: Path, outcome: Outcome) -> None:
    """Write the verifier as an ordinary Hugging Face folder, with `training.json` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    module.config.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    kept = {name: value for name, value in module.state_dict().items() if not name.startswith("marker.")}
    weights = {name: value.cpu().contiguous() for name, value in kept.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "training.json").write_text(json.dumps(outcome.__dict__, indent=2) + "\n")


def _encode(sample: Labelled) -> Encoded:
    """Return token ids, step labels, next tokens and token labels of one sample, all of one length."""
    steps = split_steps(sample.solution)[: len(sample.labels)]
    tokens = verifier_tokens(sample.question, steps)
    tag = token_id(STEP)
    labels, following, marks = ([NO_LABEL] * len(tokens) for _ in range(3))
    begin = len(make_tokenizer().encode(prompt_of(sample.question), add_special_tokens=False))
    ends = [i for i, token in enumerate(tokens) if token == tag and i >= begin]
    for step, right, end in zip(steps, sample.labels, ends, strict=False):
        labels[end] = int(right)
        if right:
            following[begin - 1 : end - 1] = tokens[begin:end]
            marks[begin:end] = [1] * (end - begin)
        elif (wrong := first_wrong_character(step)) is not None:
            # Digits and signs of an equation are one token each, so characters count from the end as tokens do.
            at = end - (len(step) - wrong)
            marks[at:end] = [0] * (end - at)
        begin = end + 1
    return tokens, labels, following, marks


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
                window[np.argsort([len(encoded[i][0]) for i in window], kind="stable")],
                max(1, len(window) // rows),
            )
        ]
        for index in rng.permutation(len(groups)):
            if number >= first:
                yield _padded([encoded[i] for i in groups[index]])
            number += 1


def _padded(samples: Sequence[Encoded]) -> LabelledBatch:
    width = max(len(sample[0]) for sample in samples)
    columns = []
    for part, fill in ((0, 0), (1, NO_LABEL), (2, NO_LABEL), (3, NO_LABEL)):
        columns.append(torch.tensor([list(s[part]) + [fill] * (width - len(s[part])) for s in samples]))
    return LabelledBatch(*(column.to(device()) for column in columns))
