"""The training loop: seeded, saved every few minutes, resumed wherever it was killed; the same for all models.

Matrices inside the layers are trained by Muon, the rest by AdamW; the learning rate warms up, stays, and falls
linearly to zero over the last part. The state is one file, replaced as a whole.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from tqdm import tqdm

WARM_UP_STEPS = 60
DECAY_SHARE = 0.35
SAVE_EVERY_SECONDS = 120
STATE = "training.pt"
B = TypeVar("B")


@dataclass(frozen=True)
class Schedule:
    """How long and how fast; `stop`: save and stop after that many steps."""

    steps: int
    learning_rate: float
    seed: int = 0
    stop: int | None = None

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        falls = int(self.steps * (1 - DECAY_SHARE))
        if step < WARM_UP_STEPS:
            return self.learning_rate * (step + 1) / WARM_UP_STEPS
        return self.learning_rate * min(1.0, (self.steps - step) / (self.steps - falls))


@dataclass(frozen=True)
class Outcome:
    """What a training run reports: loss over its first and last 50 steps, tokens read, and its cost."""

    name: str
    seed: int
    steps: int
    tokens: int
    first_loss: float
    last_loss: float
    minutes: float


def fit(
    name: str,
    module: nn.Module,
    advance: Callable[[B], tuple[float, int]],
    stream: Callable[[int], Iterator[B]],
    schedule: Schedule,
    folder: Path,
) -> Outcome | None:
    """Run a schedule, or go on with one that was killed; None when it stopped early. The state file stays.

    Args:
        name: What is trained, for the progress bar.
        module: Its parameters; those that need no gradient stay as they are.
        advance: Adds the gradients of one step's data and returns its loss and tokens.
        stream: The data from a step on; the same for the same step.
        schedule: How long and how fast.
        folder: Where the state is kept.
    """
    optimizers = _optimizers(module)
    state = _resumed(folder / STATE, module, optimizers)
    step, losses, tokens, seconds = state["step"], state["losses"], state["tokens"], state["seconds"]
    began = saved = time.monotonic()
    data = stream(step)
    with tqdm(total=schedule.steps, initial=step, desc=name, unit="step", mininterval=20) as bar:
        while step < schedule.steps:
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = schedule.rate(step)
            loss, read = advance(next(data))
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            losses.append(loss)
            step, tokens = step + 1, tokens + read
            bar.update()
            bar.set_postfix(loss=f"{_mean(losses[-50:]):.4f}", refresh=False)
            now = time.monotonic()
            if now - saved > SAVE_EVERY_SECONDS or step in (schedule.stop, schedule.steps):
                kept = {"step": step, "losses": losses, "tokens": tokens, "seconds": seconds + now - began}
                _save(folder / STATE, kept, module, optimizers)
                saved = now
            if step == schedule.stop:
                return None
    minutes = (seconds + time.monotonic() - began) / 60
    return Outcome(name, schedule.seed, step, tokens, _mean(losses[:50]), _mean(losses[-50:]), minutes)


def _optimizers(module: nn.Module) -> list[torch.optim.Optimizer]:
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    inside = [p for name, p in trained if p.ndim == 2 and "layers." in name]
    outside = [p for name, p in trained if not (p.ndim == 2 and "layers." in name)]
    return [
        torch.optim.Muon(inside, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outside, weight_decay=0.0, betas=(0.9, 0.98)),
    ]


def _save(
    file: Path, kept: dict[str, Any], module: nn.Module, optimizers: list[torch.optim.Optimizer]
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".partial")
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({**kept, "model": module.state_dict(), "optimizers": states}, new)
    new.replace(file)


def _resumed(file: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    if not file.exists():
        return {"step": 0, "losses": [], "tokens": 0, "seconds": 0.0}
    state: dict[str, Any] = torch.load(file, weights_only=True)
    module.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))
