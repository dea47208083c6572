"""An engine with the executor's protocol that samples in batches with PyTorch, for recordings.

Every draft draws random numbers from its own seed (one per token, by inverse transform sampling), so randomness is
keyed to the path: the rest of the batch only changes the last bits of floating-point sums. Drafts in a batch that have
drawn the same tokens after the same prompt share one row of the forward pass. A confident model is thus run once for
hundreds of drafts from many searches, and each draft still samples independently.

A path continues from its re-encoded text, not from its sampled tokens. Otherwise two drafts with the same text but
different tokens would continue differently, and which of them a path refers to would depend on what else was in flight.
It makes no difference if a model generates the same tokens that its tokenizer encodes the text into, as trained models
nearly always do.
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

# Tokens from logits and seeds. A draft's random numbers depend only on its seed and the position.

_GOLDEN, _MIX = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def bits(seeds: NDArray[np.uint64], at: int) -> NDArray[np.uint64]:
    """Return the 64-bit number at a position of each seed's SplitMix64 stream (Steele, Lea and Flood 2014).

    The generator allows random access, so the numbers of all drafts in a batch are computed at once.

    Args:
        seeds: Each draft's seed, shape (drafts,).
        at: The position, from 0.
    """
    z = seeds + np.uint64(((at + 1) * _GOLDEN) & 0xFFFFFFFFFFFFFFFF)  # arrays wrap around, as they should
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX[1])
    return np.asarray(z ^ (z >> np.uint64(31)))


def uniforms(seeds: NDArray[np.uint64], at: int) -> NDArray[np.float64]:
    """Return each draft's 53-bit random number u in [0, 1) for the token at a position, shape (drafts,)."""
    return (bits(seeds, at) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def cumulative(logits: Tensor, sampling: Sampling) -> NDArray[np.float64]:
    """Return each row's cumulative distribution; at temperature 0, the most likely token has all the probability.

    Args:
        logits: Token logits, shape (rows, vocabulary).
        sampling: The temperature, top_k and top_p.
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
        # Keep a token if the more likely ones sum to less than top_p; the first is always kept.
        ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked >= sampling.top_p, 0)
        p = torch.zeros_like(p).scatter(-1, order, ranked)
    total = p.cumsum(-1)
    return np.asarray((total / total[:, -1:]).numpy())


def draw(table: NDArray[np.float64], rows: NDArray[np.int64], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return each draw's token, the first at which its row's cumulative distribution exceeds u; shape (draws,).

    Each draw is a binary search in the concatenated rows, where row r covers [r, r + 1), instead of a pass over the
    vocabulary. With four thousand rows, this loses the last twelve of u's 53 bits.

    Args:
        table: Cumulative distributions from `cumulative`, shape (rows, vocabulary).
        rows: The row of each draw, shape (draws,).
        u: The random number of each draw, in [0, 1), shape (draws,).
    """
    size = table.shape[1]
    line = (table + np.arange(len(table))[:, None]).ravel()
    within = np.minimum(rows + u, np.nextafter(rows + 1.0, 0.0))  # the sum may round up to the next row
    return np.asarray(np.searchsorted(line, within, side="right") - rows * size)


# Conversion of text to token ids. Each step is encoded only once, because hundreds of thousands of paths are rendered.
#
# If no token can extend past the end of a step, a path's ids are the concatenation of its steps' ids, and few steps are
# distinct. Otherwise the whole text is encoded, as in the product.

STEPS = 200_000
_MOST_PIECES = 10_000  # larger vocabularies are not checked piece by piece


class Reencoding(Continuer):
    """Continues paths from their text alone, without caching sampled tokens.

    Args:
        model: The model's name, for errors.
        prompts: The model's chat template and tokenizer.
        context_tokens: The model's maximum number of tokens, prompt and output combined.
        delimiter: The usual step delimiter.
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
    """Return whether the encoding of text ending in the delimiter is independent of the token that follows."""
    vocabulary = prompts.tokenizer.get_vocab().values()
    if len(vocabulary) > _MOST_PIECES:
        return False
    alone = prompts.encode(delimiter)
    return all(
        prompts.encode(delimiter + piece) == alone + prompts.encode(piece)
        for piece in map(prompts.piece, vocabulary)
    )


class Stepwise:
    """Renders the same prompts as a given format, but encodes each step only once.

    Args:
        format: A format that ends each step with a special token, so that no token extends past a step's end.
    """

    def __init__(self, format: StepTagFormat) -> None:
        self._format = format
        self._first = lru_cache(STEPS)(self._render_first)
        self._later = lru_cache(STEPS)(self._render_later)

    def render(self, question: str, steps: Sequence[str]) -> Rendered:
        """Return a path's prompt."""
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


# Batches filled from many searches: all items waiting for a model run together, the longest queue first.


class BatchRunner(Protocol):
    """Runs batches, blocking the event loop while they run.

    Attributes:
        rows: Approximate number of items per batch; the items in one call stay together.
    """

    rows: int

    def run(self, items: Sequence[Any]) -> list[Any]:
        """Return one result per item."""
        ...


class Pump:
    """Queues calls by worker, and runs them once all searches in flight are waiting.

    Attributes:
        batches: Number of batches run.
        items: Total number of items in these batches.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.items = 0
        self._queues: dict[BatchRunner, list[tuple[Sequence[Any], asyncio.Future[list[Any]]]]] = {}
        self._running: asyncio.Task[None] | None = None

    async def submit(self, worker: BatchRunner, items: Sequence[Any]) -> list[Any]:
        """Return the results of items once their batch has run. If it fails, its error is raised in all callers."""
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
        # The worker's error is raised in the callers, not in the task that runs batches.
        except Exception as error:
            for _, future in calls:
                future.set_exception(error)
            return
        for call, future in calls:
            future.set_result([next(results) for _ in call])

    def _waiting(self, worker: BatchRunner) -> int:
        return sum(len(items) for items, _ in self._queues[worker])

    async def _settle(self) -> None:
        """Let searches that do not need a model continue, until no more calls arrive."""
        before = -1
        while (waiting := sum(map(len, self._queues.values()))) != before:
            before = waiting
            for _ in range(
                8
            ):  # gather, draft and search each yield to the loop once before a search's next call
                await asyncio.sleep(0)


# The engine: batches of drafts that share rows of the forward pass.

PREFIXES = 4096  # prefixes per batch; those of similar length are read together, `TOGETHER` at a time
TOGETHER = 256
INITIAL_COLUMNS = 16  # space is initially allocated for this many tokens of a step


@dataclass(frozen=True)
class Wanted:
    """Drafts to make from one prefix, one per seed."""

    plan: Continuation
    seeds: Sequence[int]
    sampling: Sampling


@dataclass
class BatchRow:
    """One row of a batch, with the tokens that all its drafts have drawn so far after one prompt."""

    plan: Continuation
    ids: Ids


class TorchEngine:
    """Drafts steps with one checkpoint.

    Args:
        model: The model's name in the catalogue.
        folder: The model's checkpoint.
        context_tokens: The model's maximum number of tokens, prompt and output combined.
        pump: Fills batches from all searches in flight.
        delimiter: The usual step delimiter.
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
        """Do nothing: memory is freed with the object."""

    @torch.inference_mode()
    def run(self, items: Sequence[Wanted]) -> list[list[Drafted]]:
        """Sample a batch, and return the drafts of each prefix; see `BatchRunner`."""
        made: list[list[Drafted]] = [[] for _ in items]
        for sampling in dict.fromkeys(item.sampling for item in items):
            groups: dict[Ids, list[int]] = {}
            for i, item in enumerate(items):
                if item.sampling == sampling:
                    groups.setdefault(item.plan.prompt_ids, []).append(i)
            # Sort by number of drafts, then by length, because a batch is as wide and long as its largest item.
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
        """Return the drafts for groups with one prompt each, in the order of their seeds."""
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
        going = np.arange(len(seeds))  # drafts that continue; `at_row` is the row of each
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
        """Return (pair, row, longer row, finish) where drafts end, and (pair, row, longer row) where they continue.

        Args:
            rows: The batch's rows.
            pairs: The value row · vocabulary + token for every token drawn by a row's drafts.
            length: Number of tokens drawn so far.
            delimiter: The delimiter that ends a step.
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
        """Compute the keys and values of prompts that are not cached, except those of their last token."""
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
        """Cache the keys and values of drafts that a path can continue, except those of their last token."""
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
        # The delimiter may be split across several tokens, at most one per character.
        tail = self._prompts.decode(ids[-len(delimiter) :])
        return "separator" if delimiter in tail else None


def _place(pair: tuple[int, Any]) -> int:
    return pair[0]
