"""The family's one tokenizer: byte-level BPE, single digits, and a few special tokens; kept as a file beside this one.

`python -m experiments.mini tokenizer` measures sizes and trains it anew. Any text is accepted. Digits stand one by
one because that is what makes arithmetic learnable at this size; a blank line and the box are one token each.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, START, END, STEP = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|step|>"
SPECIAL = (PAD, START, END, STEP)
BOX = "\\boxed{"
FILE = Path(__file__).parent / "tokenizer.json"
ENTRIES = 1_280
CONTEXT_TOKENS = 16_384
# One piece: the box, a blank line, a word, a digit or a mark with the space before it, any other white space.
PIECE = r"\\boxed\{|\n\n| ?\p{L}+| ?\d| ?[^\s\p{L}\d]|\s"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def trained(texts: Iterable[str], entries: int = ENTRIES) -> Tokenizer:
    """Return a tokenizer of `entries` entries, special tokens and the 256 bytes included, trained on texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The frame of every prompt and the box are met often enough to become entries.
    frame = ["user\n", "assistant\n", "system\n", "\n\n", BOX] * 2_000
    tokenizer.train_from_iterator([*texts, *frame], trainer)
    return tokenizer


@cache
def make_tokenizer() -> Any:
    """Return the kept tokenizer with its chat template.

    >>> make_tokenizer().tokenize("17+25=42")
    ['1', '7', '+', '2', '5', '=', '4', '2']
    """
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_file(str(FILE)),
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START, STEP],
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
        padding_side="right",
    )


def token_id(token: str) -> int:
    """Return the id of a token of the vocabulary."""
    return int(make_tokenizer().get_vocab()[token])


def prompt_of(question: str) -> str:
    """Return the question as the chat template renders it, ready for the first step."""
    return f"{START}user\n{question}{END}\n{START}assistant\n"
