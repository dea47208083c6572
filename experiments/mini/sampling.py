"""Batched sampling with a key-value cache: a quick look while the family is made, and the verifiers' training data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from experiments.mini.tokenizer import END, PAD, make_tokenizer, prompt_of, token_id

# Twice what the longest references take; a path that is not done by then is wrong.
MAX_NEW_TOKENS = 400


def load_generator(folder: Path) -> Any:
    """Load a generator from its Hugging Face folder."""
    model: Any = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval()


@torch.inference_mode()
def sample(
    model: Any, questions: Sequence[str], temperature: float = 0.0, seed: int = 0, batch: int = 128
) -> list[str]:
    """Return one solution a question; greedy at temperature 0. The same seed gives the same text."""
    tokenizer = make_tokenizer()
    prompts = [tokenizer.encode(prompt_of(q), add_special_tokens=False) for q in questions]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    torch.manual_seed(seed)
    how: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        how |= {"temperature": temperature, "top_k": 0}
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        width = max(len(prompts[i]) for i in rows)
        padded = torch.tensor([[token_id(PAD)] * (width - len(prompts[i])) + prompts[i] for i in rows])
        mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in rows])
        out = model.generate(
            input_ids=padded, attention_mask=mask, max_new_tokens=MAX_NEW_TOKENS, eos_token_id=token_id(END),
            pad_token_id=token_id(PAD), **how,
        )  # fmt: skip
        for i, text in zip(
            rows, tokenizer.batch_decode(out[:, width:], skip_special_tokens=True), strict=True
        ):
            texts[i] = text
    return texts
