"""Chat templates: messages to token ids, with the model's own tokenizer.

Prompts for generators and verifiers, in process or over HTTP, are all rendered here with the tokenizer in the model's
folder. Only chat endpoints get messages instead. This module needs transformers, but does not import vLLM.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.serving.errors import EngineStartError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Without this, Qwen3 writes a thinking trace with hundreds of blank lines. Other templates ignore the argument.
TEMPLATE_ARGUMENTS: Mapping[str, Any] = {"enable_thinking": False}
# Four million tokens per model. The bound is in bytes, because clients choose how long a question is.
CACHED_BYTES = 16 << 20
VOCABULARY = 1 << 18  # maximum number of cached pieces, the size of the largest vocabularies

Messages = Sequence[tuple[str, str]]  # (role, content)


class RecentTokens:
    """LRU cache of token ids by the digest of what they encode, limited to a number of bytes.

    >>> tokens = RecentTokens(most_bytes=2 * (RecentTokens.ENTRY_BYTES + 4))
    >>> for text in ("a", "b", "c"):
    ...     tokens.put(digest(text), (ord(text),))
    >>> tokens.get(digest("a")), tokens.get(digest("c"))
    (None, (99,))
    """

    ENTRY_BYTES = 300  # size of an entry without its ids: digest, array and dictionary slot

    def __init__(self, most_bytes: int = CACHED_BYTES) -> None:
        """Store at most `most_bytes`."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._ids: OrderedDict[bytes, array[int]] = OrderedDict()

    def get(self, key: bytes) -> tuple[int, ...] | None:
        """Return the token ids cached under a digest; None if there are none."""
        found = self._ids.get(key)
        if found is None:
            return None
        self._ids.move_to_end(key)
        return tuple(found)

    def put(self, key: bytes, ids: Sequence[int]) -> None:
        """Cache token ids, each less than 2**32."""
        self._forget(key)
        self._ids[key] = array("I", ids)
        self._bytes += self.ENTRY_BYTES + 4 * len(ids)
        while self._bytes > self._most_bytes:
            self._forget(next(iter(self._ids)))

    def _forget(self, key: bytes) -> None:
        if (ids := self._ids.pop(key, None)) is not None:
            self._bytes -= self.ENTRY_BYTES + 4 * len(ids)


def digest(what: object) -> bytes:
    """Return a digest of 16 bytes of a value's `repr`, which must identify the value."""
    return hashlib.blake2b(repr(what).encode(), digest_size=16).digest()


class ChatPrompts:
    """Renders prompts with one model's chat template.

    Not thread-safe, because tokenizers are not; make one for each thread that renders.

    Args:
        tokenizer: The model's tokenizer, with a chat template.
        template_arguments: Passed to the template.
        needs_template: Whether to reject a tokenizer without a chat template.
        source: Named in errors.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        template_arguments: Mapping[str, Any] = TEMPLATE_ARGUMENTS,
        needs_template: bool = True,
        source: str = "tokenizer",
    ) -> None:
        if needs_template and not tokenizer.chat_template:
            raise EngineStartError(
                f"{source}: the tokenizer has no chat template; add chat_template to its folder"
            )
        self.tokenizer = tokenizer
        self._arguments = dict(template_arguments)
        self._prompt_ids = RecentTokens()
        self.piece = lru_cache(VOCABULARY)(self._piece)

    @classmethod
    def load(
        cls,
        path: str,
        *,
        template_arguments: Mapping[str, Any] = TEMPLATE_ARGUMENTS,
        offline: bool = True,
        needs_template: bool = True,
    ) -> "ChatPrompts":
        """Read the tokenizer from a model folder (or from the hub, if not `offline`).

        Raises:
            EngineStartError: The folder has no readable tokenizer or no chat template.
        """
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        # AutoTokenizer (transformers 5) depends on the model type: for a Qwen2 config it replaces the file's
        # pre-tokenizer with Qwen2's own, which drops every space if the tokenizer was built differently.
        loader = PreTrainedTokenizerFast if (Path(path) / "tokenizer.json").is_file() else AutoTokenizer
        try:
            tokenizer = loader.from_pretrained(path, local_files_only=offline)
        except (OSError, ValueError) as error:
            raise EngineStartError(f"{path}: no tokenizer can be read there: {error}") from error
        return cls(
            tokenizer, template_arguments=template_arguments, needs_template=needs_template, source=path
        )

    def prompt(self, messages: Messages) -> tuple[int, ...]:
        """Return the token ids of a dialogue, ending where the assistant's answer begins."""
        if (known := self._prompt_ids.get(key := digest(tuple(messages)))) is not None:
            return known
        ids = self.encode(self._render(messages, add_generation_prompt=True))
        self._prompt_ids.put(key, ids)
        return ids

    def dialogue(self, messages: Messages) -> str:
        """Return a complete dialogue as text. The template ends the assistant's turn."""
        return self._render(messages, add_generation_prompt=False)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text, without special tokens before or after it."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_id(self, token: str) -> int:
        """Return the id of one token.

        Raises:
            EngineStartError: The vocabulary does not contain the token.
        """
        found = self.tokenizer.get_vocab().get(token)
        if found is None:
            raise EngineStartError(
                f"token {token!r} is not in the vocabulary; check the step tag of the verifier"
            )
        return int(found)

    def _piece(self, token_id: int) -> str:
        """Return the text of one token. Called through `piece`, which caches it."""
        return self.decode([token_id])

    def _render(self, messages: Messages, *, add_generation_prompt: bool) -> str:
        chat = [{"role": role, "content": content} for role, content in messages]
        rendered = self.tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=add_generation_prompt, **self._arguments
        )
        return str(rendered)
