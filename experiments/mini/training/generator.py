"""How a generator is trained: on batches of the corpus, by the loss on its solutions alone."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from experiments.mini.checkpoints import RECORD
from experiments.mini.corpus import Batch, Pool, batches
from experiments.mini.ladder import BATCH_TOKENS, PARTS, Rung, generator_config
from experiments.mini.tokenizer import make_tokenizer
from experiments.mini.training.lean import compiled_loss, summed_loss
from experiments.mini.training.loop import STATE, Outcome, Schedule, fit


def train(
    shape: Rung, pool: Pool, folder: Path, seed: int = 0, steps: int | None = None, stop: int | None = None,
    compiled: bool = True,
) -> Outcome | None:  # fmt: skip
    """Train a generator to the end of its schedule and leave it, with its tokenizer, under `folder`.

    Args:
        shape: What is trained.
        pool: What it learns from.
        folder: Where its state is kept while it trains, and the checkpoint after.
        seed: Of weights and order.
        steps: Another number than the ladder's.
        stop: Save and stop after this many steps of the schedule, and return None.
        compiled: Whether the loss is compiled, which takes a minute and pays after a hundred steps.
    """
    torch.manual_seed(seed)
    model: Any = Qwen3ForCausalLM(generator_config(shape))  # type: ignore[no-untyped-call]
    weights = dict(model.named_parameters())
    loss_of = compiled_loss(shape, weights) if compiled else partial(summed_loss, weights, shape)

    def advance(parts: Sequence[Batch]) -> tuple[float, int]:
        count = sum(len(part.targets) for part in parts)
        total = 0.0
        for part in parts:
            given = (torch.from_numpy(each) for each in (part.tokens, part.rows, part.targets))
            loss: Tensor = loss_of(*given) / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total, sum(part.tokens.size for part in parts)

    def stream(first: int) -> Iterator[list[Batch]]:
        drawn = batches(pool, BATCH_TOKENS // PARTS, seed, first * PARTS)
        while True:
            yield [next(drawn) for _ in range(PARTS)]

    schedule = Schedule(steps or shape.steps, shape.learning_rate, seed, stop)
    outcome = fit(shape.name, model, advance, stream, schedule, folder)
    if outcome is not None:
        save(model, folder, outcome)
        (folder / STATE).unlink()
    return outcome


def save(model: Any, folder: Path, outcome: Outcome) -> None:
    """Write the model as an ordinary Hugging Face folder; its record is written last and says that it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, safe_serialization=True)
    make_tokenizer().save_pretrained(folder)
    (folder / RECORD).write_text(json.dumps(asdict(outcome), indent=2) + "\n")


def midway(folder: Path, shape: Rung) -> Any:
    """Return the model of a run that is still under way, as it was last saved."""
    model: Any = Qwen3ForCausalLM(generator_config(shape))  # type: ignore[no-untyped-call]
    model.load_state_dict(torch.load(folder / STATE, weights_only=True)["model"])
    return model.eval()
