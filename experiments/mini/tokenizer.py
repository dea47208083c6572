"""The family's one tokenizer: whole words of the task, single digits, and single characters for everything else.

It accepts any text. A word outside the vocabulary falls apart into characters, a character outside printable ASCII
becomes `<unk>`. Digits stand one by one because that is what makes arithmetic learnable at this size.
"""

import re
import string
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from experiments.mini.problems import DELIMITER, ORDINALS
from experiments.mini.programs import CLOSING, LISTS, OPENINGS, STRINGS
from experiments.mini.stories import NAMES, STORIES, Event

PAD, START, END, UNKNOWN, STEP = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "<|step|>"
SPECIAL = (PAD, START, END, UNKNOWN, STEP)
BOX = "\\boxed{"
CONTEXT_TOKENS = 16_384
# One piece: the box, a blank line, a word or a digit with the space before it, or any other character.
PIECE = r"\\boxed\{|\n\n| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]|\s"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def _texts() -> list[str]:
    """Every text the generators can write, with the placeholders taken out."""
    texts = [f"a {label}:" for label in ("user", "assistant", "system")] + ["user", "assistant", "system"]
    for story in STORIES:
        events: tuple[Event, ...] = (*story.plus, *story.minus, *story.times, *story.share, *story.packs)
        texts += [wording for event in events for wording in event.wordings]
        texts += [event.label for event in events]
        texts += [*story.opening, *story.question, *story.distractors]
        texts += [f"a {word}" for word in (*story.things, *story.boxes)]
    texts += [form for name in NAMES for form in (name, f"a {name}")]
    texts += [form for word in ORDINALS for form in (word, f"a {word}")]
    for phrase in (*LISTS, *STRINGS):
        texts += [f": {wording}." for wording in phrase.wordings] + [phrase.code, f"| {phrase.code}"]
    texts += [
        *OPENINGS["list"],
        *OPENINGS["text"],
        *(f"a {text}" for text in (*OPENINGS["list"], *OPENINGS["text"])),
    ]
    texts += [f"a {text}" for text in CLOSING]
    # A sentence may stand anywhere after the first, so its first word is met with and without a space before it.
    return texts + [f" {text}" for text in texts if text[:1].isupper()]


def vocabulary() -> list[str]:
    """Return the tokens in order of their ids: special tokens, characters, digits and marks after a space, words."""
    pieces = {piece for text in _texts() for piece in re.findall(PIECE, re.sub(r"\{\w+\}", "", text))}
    words = sorted(piece for piece in pieces if len(piece.strip()) > 1)
    characters = [*string.printable[:95], "\n"]
    joined = [DELIMITER, BOX, *(f" {digit}" for digit in string.digits), " |"]
    # A single letter with the space before it, as mini-code names letters.
    letters = [f" {letter}" for letter in string.ascii_lowercase] + [" A"]
    return [*SPECIAL, *dict.fromkeys([*characters, *joined, *letters, *words])]


@cache
def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer with its chat template.

    >>> tokens = make_tokenizer().tokenize("sold: 312-7=305")
    >>> tokens
    ['sold', ':', ' 3', '1', '2', '-', '7', '=', '3', '0', '5']
    """
    ids = {token: index for index, token in enumerate(vocabulary())}
    # With ignore_merges a piece that is a token stays whole; with no merges any other piece becomes characters.
    model = models.BPE(vocab=ids, merges=[], unk_token=UNKNOWN, fuse_unk=True, ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
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
    rendered = make_tokenizer().apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    return str(rendered)
