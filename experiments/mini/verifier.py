"""The process reward models: their shape, their input format and their files.

A checkpoint is what vLLM's `Qwen2ForProcessRewardModel` loads: a Qwen2 trunk (`model.*`) under a two-layer head
(`score.0`, `score.2`) with two labels. The score of a step is the probability of label 1 at its step tag.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model

from experiments.mini.tokenizer import STEP, make_tokenizer, prompt_of, token_id
from experiments.mini.train import Outcome

GOOD_LABEL = 1


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


def save_verifier(module: ProcessRewardModel, folder: Path, outcome: Outcome) -> None:
    """Write the verifier as an ordinary Hugging Face folder, with `training.json` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    module.config.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    weights = {name: value.cpu().contiguous() for name, value in module.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "training.json").write_text(json.dumps(outcome.__dict__, indent=2) + "\n")
