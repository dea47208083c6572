"""A further engine behind the executor's protocol: plain batched sampling in PyTorch, for recordings.

Every draft draws its own numbers from its own seed (one a token, inverse of the cumulative distribution), so
that randomness is keyed to the path: what else is in the batch changes nothing but the last bits of
floating-point sums. Drafts of one batch that have drawn the same tokens after the same prompt so far share one
row of the forward pass: a model that knows what it wants to say is asked once for hundreds of drafts, of however
many searches, and each still draws for itself.

A path goes on from its text, encoded again, and not from the tokens it was sampled in: two drafts of one text in
other tokens would otherwise go on apart, and which of them was meant would depend on what else was in flight.
Where a model writes the tokens its tokenizer would, as trained ones all but always do, the two are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.catalogue.models import Sampling
from agents.serving.engine import Continuation, Drafted, Prefix, check_seeds
from agents.serving.prompts import ChatPrompts
from experiments.sampler.decoder import Cache, Decoder, Ids, Kept
from experiments.sampler.draws import cumulative, draw, uniforms
from experiments.sampler.pump import Pump
from experiments.sampler.texts import STEPS, Reencoding
from schemas.forest import Finish
from schemas.search import Served

PREFIXES = 4096  # in a batch; those of similar length are read together, `TOGETHER` at a time
TOGETHER = 256
INITIAL_COLUMNS = 16  # tokens of a step that space is made for at first


@dataclass(frozen=True)
class Wanted:
    """Drafts to be made from one prefix: one a seed."""

    plan: Continuation
    seeds: Sequence[int]
    sampling: Sampling


@dataclass
class BatchRow:
    """One row of a batch: what all its drafts have drawn so far after one prompt."""

    plan: Continuation
    ids: Ids


class TorchEngine:
    """Draft steps with one checkpoint.

    Args:
        model: Its name in the catalogue.
        folder: Its checkpoint.
        context_tokens: Its longest prompt plus output.
        pump: What fills its batches from all searches in flight.
        delimiter: Of the steps that are mostly met.
    """

    def __init__(
        self,
        model: str,
        folder: Path,
        context_tokens: int,
        pump: Pump,
        delimiter: str = "\n\n",
    ) -> None:
        self.model = model
        self.served = Served(name="torch", version=torch.__version__.split("+")[0], model=model)
        self.rows = PREFIXES
        self.drawn = self.read = 0
        self._pump = pump
        self._decoder = Decoder(folder)
        self._prompts = ChatPrompts.load(str(folder))
        self._continuer = Reencoding(model, self._prompts, context_tokens, delimiter)
        self._text = lru_cache(STEPS)(self._prompts.decode)
        self._plan = lru_cache(65_536)(self._continuer.plan)
        self._kept = Kept()
        self._enders: dict[str, NDArray[np.bool_]] = {}

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` drafts for each prefix; see `Engine.generate`."""
        check_seeds(prefixes, n, seeds)
        wanted = [
            Wanted(self._plan(prefix, sampling), seeds[at * n : at * n + n], sampling)
            for at, prefix in enumerate(prefixes)
        ]
        made = await self._pump.submit(self, wanted)
        return [draft for drafts in made for draft in drafts]

    async def close(self) -> None:
        """Do nothing: memory goes with the object."""

    @torch.inference_mode()
    def run(self, items: Sequence[Wanted]) -> list[list[Drafted]]:
        """Sample a batch: the drafts of each prefix; see `BatchRunner`."""
        made: list[list[Drafted]] = [[] for _ in items]
        for sampling in dict.fromkeys(item.sampling for item in items):
            groups: dict[Ids, list[int]] = {}
            for i, item in enumerate(items):
                if item.sampling == sampling:
                    groups.setdefault(item.plan.prompt_ids, []).append(i)
            # Alike in the number of drafts, then in length: a batch is as wide as its widest and longest.
            shape = {
                ids: (sum(len(items[i].seeds) for i in g).bit_length(), len(ids)) for ids, g in groups.items()
            }
            together = [groups[ids] for ids in sorted(groups, key=lambda ids: shape[ids])]
            for begin in range(0, len(together), TOGETHER):
                part = together[begin : begin + TOGETHER]
                drafts = iter(self._sample([[items[i] for i in group] for group in part], sampling))
                for i in (i for group in part for i in group):
                    made[i] = [next(drafts) for _ in items[i].seeds]
        return made

    def _sample(self, groups: Sequence[Sequence[Wanted]], sampling: Sampling) -> list[Drafted]:
        """Return the drafts of groups that each have one prompt, in the order of their seeds."""
        plans = [group[0].plan for group in groups]
        seeds = np.array([seed for group in groups for item in group for seed in item.seeds], dtype=np.uint64)
        sizes = [sum(len(item.seeds) for item in group) for group in groups]
        self._read([plan.prompt_ids for plan in plans])
        most = max(plan.max_tokens for plan in plans)
        pieces = [self._pieces(plan.prompt_ids) for plan in plans]
        cache, size = (
            self._decoder.cache(pieces, range(len(plans)), INITIAL_COLUMNS),
            self._decoder.vocabulary,
        )
        rows = [BatchRow(plan, ()) for plan in plans]
        tokens = torch.tensor([plan.prompt_ids[-1] for plan in plans])
        found = np.empty(len(seeds), dtype=object)
        going = np.arange(len(seeds))  # drafts that go on, and the row of each
        at_row = np.repeat(np.arange(len(rows)), sizes)
        full = [plan.max_tokens == 0 for plan in plans]
        if any(full):
            ended = np.array(full)[at_row]
            found[going[ended]] = [self._continuer.full(rows[row].plan) for row in at_row[ended]]
            going, at_row = going[~ended], at_row[~ended]
        for at in range(most):
            logits = self._decoder.logits(self._decoder.forward(tokens[:, None], cache)[:, 0])
            self.read += len(rows)
            self.drawn += len(going)
            chosen = draw(cumulative(logits, sampling), at_row, uniforms(seeds[going], at))
            pairs, which = np.unique(at_row * size + chosen, return_inverse=True)
            ends, above = self._advance(rows, pairs, at + 1, sampling.delimiter)
            self._keep(cache, [(row, each) for _, row, each, _ in ends])
            made = np.empty(len(pairs), dtype=object)
            on = np.ones(len(pairs), dtype=bool)
            for pair, _, each, finish in ends:
                made[pair], on[pair] = self._draft(each, finish, sampling.delimiter), False
            found[going[~on[which]]] = made[which[~on[which]]]
            if not above:
                break
            places = cache.branch([row for _, row, _ in above])
            place_of = np.full(len(pairs), -1)
            place_of[[pair for pair, _, _ in above]] = places
            going, at_row = going[on[which]], place_of[which[on[which]]]
            rows = [
                row for _, row in sorted(zip(places, (row for _, _, row in above), strict=True), key=_place)
            ]
            tokens = torch.tensor([row.ids[-1] for row in rows])
        return list(found)

    def _advance(
        self, rows: Sequence[BatchRow], pairs: NDArray[np.int64], length: int, delimiter: str
    ) -> tuple[list[tuple[int, int, BatchRow, Finish]], list[tuple[int, int, BatchRow]]]:
        """Return (pair, row, longer row, finish) where drafts end, and (pair, row, longer row) where they go on.

        Args:
            rows: Of the batch.
            pairs: row · vocabulary + token, for every token that a row's drafts drew.
            length: Tokens drawn by now.
            delimiter: Ends a step.
        """
        size, enders = self._decoder.vocabulary, self._ending(delimiter)
        ends: list[tuple[int, int, BatchRow, Finish]] = []
        above: list[tuple[int, int, BatchRow]] = []
        told = zip((pairs // size).tolist(), (pairs % size).tolist(), strict=True)
        for pair, (row, token) in enumerate(told):
            longer = BatchRow(rows[row].plan, (*rows[row].ids, token))
            finish = self._finish(longer.ids, delimiter) if enders[token] else None
            if finish is None and length >= longer.plan.max_tokens:
                finish = "length"
            if finish is None:
                above.append((pair, row, longer))
            else:
                ends.append((pair, row, longer, finish))
        return ends, above

    def _draft(self, row: BatchRow, finish: Finish, delimiter: str) -> Drafted:
        text = self._text(row.ids)
        if finish == "separator":
            text = text[: text.index(delimiter) + len(delimiter)]
        return self._continuer.draft(row.plan, text=text, finish=finish, token_ids=row.ids)

    def _read(self, prompts: Sequence[Ids]) -> None:
        """Compute the keys and values of prompts that are not kept, all but their last token."""
        missing = [prompt for prompt in dict.fromkeys(prompts) if self._kept.chain(prompt) is None]
        for begin in range(0, len(missing), 64):
            part = missing[begin : begin + 64]
            longest = max(map(len, part)) - 1
            padded = [[*prompt[:-1], *[0] * (longest - len(prompt) + 1)] for prompt in part]
            cache = self._decoder.cache([[]] * len(part), range(len(part)), longest)
            self._decoder.forward(torch.tensor(padded), cache)
            for row, prompt in enumerate(part):
                self._kept.keep(prompt, None, cache.values[:, :, row, :, : len(prompt) - 1].clone())

    def _pieces(self, prompt: Ids) -> list[Tensor]:
        chain = self._kept.chain(prompt)
        assert chain is not None, "read before"
        return [piece.values for piece in chain]

    def _keep(self, cache: Cache, ended: Sequence[tuple[int, BatchRow]]) -> None:
        """Keep the keys and values of drafts that a path can go on from: all but those of their last token."""
        going = [(row, each) for row, each in ended if each.ids[-1] != self._decoder.shape.eos]
        if not going:
            return
        block = cache.values[:, :, [row for row, _ in going], :, : cache.width]
        for at, (_, each) in enumerate(going):
            above = each.plan.prompt_ids
            self._kept.keep((*above, *each.ids), above, block[:, :, at].clone())

    def _ending(self, delimiter: str) -> NDArray[np.bool_]:
        """Return, for each token, whether a draft may end with it."""
        if delimiter not in self._enders:
            size = len(self._prompts.tokenizer)
            last = delimiter[-1]
            flags = [
                token == self._decoder.shape.eos or last in self._prompts.piece(token)
                for token in range(size)
            ]
            self._enders[delimiter] = np.array(flags + [False] * (self._decoder.vocabulary - size))
        return self._enders[delimiter]

    def _finish(self, ids: Ids, delimiter: str) -> Finish | None:
        if ids[-1] == self._decoder.shape.eos:
            return "eos"
        # The delimiter may have come in parts, one character a token at the most.
        tail = self._prompts.decode(ids[-len(delimiter) :])
        return "separator" if delimiter in tail else None


def _place(pair: tuple[int, Any]) -> int:
    return pair[0]
