"""Training of one model of the family: seeded, resumable after a kill, with a progress bar.

The loop is the same for generators and verifiers: they differ in the loss of a batch. Matrices inside the layers are
trained by Muon, the rest by AdamW; the learning rate warms up, stays, and falls linearly to zero over the last third.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm
from transformers import Qwen3ForCausalLM

from experiments.mini.corpus import IGNORED, POOL, Batch, batches, make_pool
from experiments.mini.ladder import Rung, generator_config
from experiments.mini.tokenizer import make_tokenizer

BATCH_TOKENS = 6144
WARM_UP_STEPS = 100
DECAY_SHARE = 0.35
SAVE_EVERY_STEPS = 100
B = TypeVar("B")


def device() -> torch.device:
    """Return where to train: a GPU when there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Schedule:
    """How long and how fast one model is trained."""

    steps: int
    learning_rate: float
    seed: int = 0
    save_every: int = SAVE_EVERY_STEPS

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        decay_from = int(self.steps * (1 - DECAY_SHARE))
        if step < WARM_UP_STEPS:
            return self.learning_rate * (step + 1) / WARM_UP_STEPS
        if step < decay_from:
            return self.learning_rate
        return self.learning_rate * (self.steps - step) / (self.steps - decay_from)


@dataclass(frozen=True)
class Outcome:
    """What a training run reports: the loss averaged over its first and last 50 steps, and its cost."""

    first_loss: float
    last_loss: float
    steps: int
    minutes: float


class Trainer(Generic[B]):
    """Runs a schedule over batches, saving its whole state so that a killed run goes on where it was.

    Args:
        module: what is trained; its state is the checkpoint.
        loss: the loss of one batch, a scalar.
        stream: batches from a given batch number on; the same for the same number.
        folder: where `training.pt` is kept while the run lasts.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[B], Tensor],
        stream: Callable[[int], Iterator[B]],
        schedule: Schedule,
        folder: Path,
    ) -> None:
        self._module, self._loss, self._stream = module, loss, stream
        self._schedule, self._file = schedule, folder / "training.pt"
        inside = [p for n, p in module.named_parameters() if p.ndim == 2 and ".layers." in n]
        chosen = {id(p) for p in inside}
        outside = [p for p in module.parameters() if id(p) not in chosen]
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                inside, lr=schedule.learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(outside, lr=schedule.learning_rate, weight_decay=0.0, betas=(0.9, 0.98)),
        ]

    def run(self, title: str) -> Outcome:
        """Train to the end of the schedule and return what it cost; the module holds the result."""
        step, losses, seconds = self._resume()
        self._module.train()
        began = time.monotonic()
        with tqdm(total=self._schedule.steps, initial=step, desc=title, unit="step", mininterval=5) as bar:
            for batch in self._stream(step):
                if step >= self._schedule.steps:
                    break
                for optimizer in self._optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = self._schedule.rate(step)
                loss = self._loss(batch)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(self._module.parameters(), 1.0)
                for optimizer in self._optimizers:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                losses.append(loss.item())
                step += 1
                bar.update()
                bar.set_postfix(loss=f"{sum(losses[-50:]) / len(losses[-50:]):.4f}")
                if step % self._schedule.save_every == 0:
                    self._save(step, losses, seconds + time.monotonic() - began)
        minutes = (seconds + time.monotonic() - began) / 60
        self._module.eval()
        return Outcome(_mean(losses[:50]), _mean(losses[-50:]), step, minutes)

    def finish(self) -> None:
        """Remove the resumable state, once the result is saved elsewhere."""
        self._file.unlink(missing_ok=True)

    def _save(self, step: int, losses: list[float], seconds: float) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(".partial")
        optimizers = [optimizer.state_dict() for optimizer in self._optimizers]
        state = {"step": step, "losses": losses, "seconds": seconds, "optimizers": optimizers}
        torch.save(state | {"module": self._module.state_dict()}, partial)
        partial.replace(self._file)

    def _resume(self) -> tuple[int, list[float], float]:
        if not self._file.exists():
            return 0, [], 0.0
        state = torch.load(self._file, weights_only=True, map_location=device())
        self._module.load_state_dict(state["module"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        return int(state["step"]), list(state["losses"]), float(state["seconds"])


def train_generator(
    shape: Rung, schedule: Schedule, work: Path, pool_size: int = POOL, batch_tokens: int = BATCH_TOKENS
) -> tuple[Qwen3ForCausalLM, Outcome]:
    """Train one generator on the mixture of both tasks and leave it, with its tokenizer, under `work/<name>`."""
    torch.manual_seed(schedule.seed)
    model: Any = Qwen3ForCausalLM(generator_config(shape))  # type: ignore[no-untyped-call]
    model.to(device())
    pool = make_pool(pool_size, schedule.seed, work / "pool")
    folder = work / shape.name

    def loss(batch: Batch) -> Tensor:
        labels = torch.from_numpy(batch.labels).to(device())
        wanted = labels != IGNORED
        hidden = model.model(input_ids=torch.from_numpy(batch.tokens).to(device())).last_hidden_state[wanted]
        return functional.cross_entropy(model.lm_head(hidden), labels[wanted])

    trainer = Trainer(
        model, loss, lambda first: batches(pool, batch_tokens, schedule.seed, first), schedule, folder
    )
    outcome = trainer.run(shape.name)
    save(model, folder, outcome)
    trainer.finish()
    return model, outcome


def save(model: Qwen3ForCausalLM, folder: Path, outcome: Outcome) -> None:
    """Write the model as an ordinary Hugging Face folder, with `training.json` beside it."""
    model.save_pretrained(folder, safe_serialization=True)
    make_tokenizer().save_pretrained(folder)
    (folder / "training.json").write_text(json.dumps(outcome.__dict__, indent=2) + "\n")


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))
