"""Plain batched sampling with transformers: training data for the verifiers, and a quick look at accuracy.

What is reported of the family is sampled through vLLM (`evaluate`); this is the fast way while it is being made.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoTokenizer, Qwen3ForCausalLM

from experiments.mini.tokenizer import prompt_of
from experiments.mini.train import device

MAX_NEW_TOKENS = 128


def load_generator(folder: Path) -> Any:
    """Load a generator from its Hugging Face folder."""
    model: Any = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.to(device()).eval()


@torch.inference_mode()
def sample(
    model: Any,
    folder: Path,
    questions: Sequence[str],
    temperature: float,
    seed: int,
    batch: int = 256,
    title: str | None = None,
) -> list[str]:
    """Return one solution a question; greedy at temperature 0. The same seed gives the same text."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, padding_side="left")
    prompts = [prompt_of(question) for question in questions]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    torch.manual_seed(seed)
    drawing = (
        {"do_sample": False}
        if temperature == 0
        else {"do_sample": True, "temperature": temperature, "top_k": 0}
    )
    for start in tqdm(range(0, len(order), batch), desc=title, disable=title is None, unit="batch"):
        rows = order[start : start + batch]
        asked = [prompts[i] for i in rows]
        encoded = tokenizer(asked, return_tensors="pt", padding=True, add_special_tokens=False).to(device())
        out = model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=MAX_NEW_TOKENS,
            **drawing,
        )
        new = out[:, encoded["input_ids"].shape[1] :]
        for i, text in zip(rows, tokenizer.batch_decode(new, skip_special_tokens=True), strict=True):
            texts[i] = text
    return texts
