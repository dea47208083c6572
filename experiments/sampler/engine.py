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

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.catalogue.models import Sampling
from agents.serving.engine import Continuation, Continuer, Drafted, Prefix, check_seeds
from agents.serving.prompts import ChatPrompts
from agents.verifier.formats import Rendered, StepTagFormat
from experiments.sampler.decoder import Cache, Decoder, Ids, Kept
from schemas.forest import Finish
from schemas.search import Served

# Tokens from logits and seeds: the numbers a draft draws depend on its seed and its position alone.

_GOLDEN, _MIX = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def bits(seeds: NDArray[np.uint64], at: int) -> NDArray[np.uint64]:
    """Return the number at a place of each seed's SplitMix64 stream (Steele, Lea and Flood 2014), 64 bits.

    A generator whose numbers can be had in any order, for all drafts of a batch at once.

    Args:
        seeds: Shape (drafts,).
        at: The place, from 0.
    """
    z = seeds + np.uint64(((at + 1) * _GOLDEN) & 0xFFFFFFFFFFFFFFFF)  # arrays wrap around, as they should
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX[1])
    return np.asarray(z ^ (z >> np.uint64(31)))


def uniforms(seeds: NDArray[np.uint64], at: int) -> NDArray[np.float64]:
    """Return u in [0, 1), 53 bits, for the token at a place of each draft; shape (drafts,)."""
    return (bits(seeds, at) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def cumulative(logits: Tensor, sampling: Sampling) -> NDArray[np.float64]:
    """Return each row's cumulative distribution; at temperature 0 all of it stands on the likeliest token.

    Args:
        logits: Shape (rows, vocabulary).
        sampling: Temperature, top_k, top_p.
    """
    if sampling.temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        places = torch.arange(logits.shape[-1])
        return np.asarray((places >= best).double().numpy())
    p = (logits.double() / sampling.temperature).softmax(-1)
    if sampling.top_k or sampling.top_p < 1:
        ranked, order = p.sort(-1, descending=True)
        if sampling.top_k:
            ranked[:, sampling.top_k :] = 0
            ranked = ranked / ranked.sum(-1, keepdim=True)
        # A token stays while those before it hold less than top_p: the first always does.
        ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked >= sampling.top_p, 0)
        p = torch.zeros_like(p).scatter(-1, order, ranked)
    total = p.cumsum(-1)
    return np.asarray((total / total[:, -1:]).numpy())


def draw(table: NDArray[np.float64], rows: NDArray[np.int64], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the token of each draw: where its row's cumulative distribution passes u; shape (draws,).

    One search in the rows laid end to end, row r over [r, r + 1): that costs the twelve last of u's 53 bits
    for four thousand rows, and a search a draw in place of a pass over the vocabulary.

    Args:
        table: From `cumulative`, shape (rows, vocabulary).
        rows: Each draw's row.
        u: In [0, 1).
    """
    size = table.shape[1]
    line = (table + np.arange(len(table))[:, None]).ravel()
    within = np.minimum(rows + u, np.nextafter(rows + 1.0, 0.0))  # the sum may round up to the next row
    return np.asarray(np.searchsorted(line, within, side="right") - rows * size)


# Texts to token ids, each step encoded once: what it takes to render hundreds of thousands of paths.
#
# A path is encoded as its text is. Where no token reaches over the end of a step, that is its steps' ids in a
# row, and of steps there are few; where one could, the whole text is encoded, as the product does.

STEPS = 200_000
_MOST_PIECES = 10_000  # a larger vocabulary is not tried piece by piece


class Reencoding(Continuer):
    """Continue paths from their text alone; what was sampled is not remembered.

    Args:
        model: Named in errors.
        prompts: The model's chat template and tokenizer.
        context_tokens: Its longest prompt plus output.
        delimiter: Of the steps that are mostly met.
    """

    def __init__(self, model: str, prompts: ChatPrompts, context_tokens: int, delimiter: str) -> None:
        super().__init__(model, prompts, context_tokens, remembered_bytes=0)
        self._encode = lru_cache(STEPS)(prompts.encode)
        self._delimiter = delimiter if closes(prompts, delimiter) else None

    def _answer_ids(self, prefix: Prefix) -> Ids:
        if self._delimiter is None or not all(step.endswith(self._delimiter) for step in prefix.steps):
            return self._encode("".join(prefix.steps)) if prefix.steps else ()
        return tuple(token for step in prefix.steps for token in self._encode(step))


def closes(prompts: ChatPrompts, delimiter: str) -> bool:
    """Return whether a text that ends in the delimiter is encoded alike, whichever token of the vocabulary follows."""
    vocabulary = prompts.tokenizer.get_vocab().values()
    if len(vocabulary) > _MOST_PIECES:
        return False
    alone = prompts.encode(delimiter)
    return all(
        prompts.encode(delimiter + piece) == alone + prompts.encode(piece)
        for piece in map(prompts.piece, vocabulary)
    )


class Stepwise:
    """Render what another format renders, each step once.

    Args:
        format: Ends each step with a special token, which no other token reaches over.
    """

    def __init__(self, format: StepTagFormat) -> None:
        self._format = format
        self._first = lru_cache(STEPS)(self._render_first)
        self._later = lru_cache(STEPS)(self._render_later)

    def render(self, question: str, steps: Sequence[str]) -> Rendered:
        """Return the prompt of a path."""
        ids, end = self._first(question, steps[0])
        positions = [len(ids) - 1]
        for step in steps[1:]:
            ids += self._later(step)
            positions.append(len(ids) - 1)
        return Rendered(ids + end, tuple(positions))

    def _render_first(self, question: str, step: str) -> tuple[Ids, Ids]:
        whole = self._format.render(question, (step,))
        after = whole.positions[0] + 1
        return whole.token_ids[:after], whole.token_ids[after:]

    def _render_later(self, step: str) -> Ids:
        whole = self._format.render("", ("", step))
        return whole.token_ids[whole.positions[0] + 1 : whole.positions[1] + 1]


# Fill batches from many searches: whatever waits for a model is run together, the longest queue first.


class BatchRunner(Protocol):
    """Whoever runs a batch. It blocks: while one batch runs, nothing else could.

    Attributes:
        rows: About how many items a batch should have; those of one call stay together.
    """

    rows: int

    def run(self, items: Sequence[Any]) -> list[Any]:
        """Return one result an item."""
        ...


class Pump:
    """Queues of calls by worker, run once every search in flight waits.

    Attributes:
        batches: How many batches were run.
        items: How many items, over all of them.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.items = 0
        self._queues: dict[BatchRunner, list[tuple[Sequence[Any], asyncio.Future[list[Any]]]]] = {}
        self._running: asyncio.Task[None] | None = None

    async def submit(self, worker: BatchRunner, items: Sequence[Any]) -> list[Any]:
        """Return the results of items, whatever batch they were run in; a failed batch fails its callers."""
        if not items:
            return []
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        self._queues.setdefault(worker, []).append((items, future))
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while True:
            await self._settle()
            worker = max(self._queues, key=self._waiting, default=None)
            if worker is None:
                return
            queue = self._queues.pop(worker)
            taken = count = 0
            while taken < len(queue) and (not taken or count + len(queue[taken][0]) <= worker.rows):
                count += len(queue[taken][0])
                taken += 1
            if taken < len(queue):
                self._queues[worker] = queue[taken:]
            self._finish(worker, [call for call in queue[:taken] if not call[1].done()])

    def _finish(
        self, worker: BatchRunner, calls: list[tuple[Sequence[Any], asyncio.Future[list[Any]]]]
    ) -> None:
        if not calls:
            return
        items = [item for call, _ in calls for item in call]
        self.batches += 1
        self.items += len(items)
        try:
            results = iter(worker.run(items))
        # What a model throws belongs to those who asked, not to the task that runs batches.
        except Exception as error:
            for _, future in calls:
                future.set_exception(error)
            return
        for call, future in calls:
            future.set_result([next(results) for _ in call])

    def _waiting(self, worker: BatchRunner) -> int:
        return sum(len(items) for items, _ in self._queues[worker])

    async def _settle(self) -> None:
        """Let every search that can go on without a model do so, until no more calls come."""
        before = -1
        while (waiting := sum(map(len, self._queues.values()))) != before:
            before = waiting
            for _ in range(8):  # gather, draft, and search each hand on once before a search asks again
                await asyncio.sleep(0)


# The engine: batches of drafts that share rows of the forward pass.

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
