"""A further engine behind the executor's protocol: plain batched sampling in PyTorch, for recordings.

Every draft draws from a generator seeded by its own seed alone (one uniform number a token, inverse of the
cumulative distribution), so that randomness is keyed to the path: what else is in the batch changes nothing
but the last bits of floating-point sums. A path goes on from its text, encoded again, and not from the tokens
it was sampled in: two drafts of one text in other tokens would otherwise go on apart, and which of them was
meant would hang on what else was in flight. Where a model writes the tokens its tokenizer would, as trained
ones all but always do, the two are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from agents.executor.engine import Draft, EngineCounts, Prefix, check_seeds
from agents.executor.engines.continuation import Continuation, Continuer
from agents.serving.prompts import ChatPrompts
from agents.space.models import Sampling
from experiments.record.decoder import Cache, Decoder
from experiments.record.kept import Ids, Kept
from experiments.record.pump import Pump
from schemas.forest import Finish
from schemas.search import Served

ROWS = 512


@dataclass(frozen=True)
class Wanted:
    """One draft to be made."""

    plan: Continuation
    seed: int
    sampling: Sampling


@dataclass(frozen=True)
class Made:
    """One draft as it was sampled."""

    token_ids: Ids
    text: str
    finish: Finish


class TorchEngine:
    """Draft steps with one checkpoint.

    Args:
        model: Its name in the catalogue.
        folder: Its checkpoint.
        context_tokens: Its longest prompt plus output.
        pump: What fills its batches from all searches in flight.
        device: Where it runs.
        rows: Most drafts in a batch.
    """

    def __init__(
        self,
        model: str,
        folder: Path,
        context_tokens: int,
        pump: Pump,
        *,
        device: str = "cpu",
        rows: int = ROWS,
    ) -> None:
        self.model = model
        self.counts = EngineCounts()
        self.served = Served(name="torch", version=torch.__version__.split("+")[0], model=model)
        self.rows = rows
        self._pump = pump
        self._decoder = Decoder(folder, device)
        self._prompts = ChatPrompts.load(str(folder))
        self._continuer = Continuer(model, self._prompts, context_tokens, self.counts, remembered=0)
        self._kept = Kept()
        self._enders: dict[str, Tensor] = {}

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Draft]:
        """Return `n` drafts for each prefix; see `Engine.generate`."""
        check_seeds(prefixes, n, seeds)
        plans = [plan for prefix in prefixes for plan in [self._continuer.plan(prefix, sampling)] * n]
        wanted = [Wanted(p, seed, sampling) for p, seed in zip(plans, seeds, strict=True) if p.max_tokens]
        made = iter(await self._pump.submit(self, wanted))
        return [
            self._draft(plan, next(made)) if plan.max_tokens else self._continuer.full(plan) for plan in plans
        ]

    async def close(self) -> None:
        """Do nothing: memory goes with the object."""

    @torch.inference_mode()
    def run(self, items: Sequence[Wanted]) -> list[Made]:
        """Sample a batch; see `Worker`."""
        made: list[Made | None] = [None] * len(items)
        for sampling in dict.fromkeys(item.sampling for item in items):
            rows = [i for i, item in enumerate(items) if item.sampling == sampling]
            for i, each in zip(rows, self._sample([items[i] for i in rows], sampling), strict=True):
                made[i] = each
        return [each for each in made if each is not None]

    def _draft(self, plan: Continuation, made: Made) -> Draft:
        ids = made.token_ids
        return self._continuer.draft(plan, text=made.text, finish=made.finish, token_ids=ids, tokens=len(ids))

    def _sample(self, items: Sequence[Wanted], sampling: Sampling) -> list[Made]:
        prompts = [item.plan.prompt_ids for item in items]
        self._read(prompts)
        most = max(item.plan.max_tokens for item in items)
        cache = self._decoder.cache([self._pieces(prompt) for prompt in prompts], most)
        uniforms = torch.from_numpy(
            np.stack([np.random.Generator(np.random.Philox(key=item.seed)).random(most) for item in items])
        ).to(self._decoder.device)
        limits = torch.tensor([item.plan.max_tokens for item in items], device=self._decoder.device)
        enders = self._ending(sampling.delimiter)
        start = cache.width
        alive = torch.arange(len(items), device=self._decoder.device)
        tokens = torch.tensor([prompt[-1] for prompt in prompts], device=self._decoder.device)
        ids: list[list[int]] = [[] for _ in items]
        finishes: list[Finish] = ["length"] * len(items)
        running = torch.ones(len(items), dtype=torch.bool, device=self._decoder.device)
        for at in range(most):
            logits = self._decoder.logits(self._decoder.forward(tokens[:, None], cache)[:, 0])
            tokens = choose(logits, uniforms[alive, at], sampling)
            told = tokens.tolist()
            rows = alive.tolist()
            for row, token, on in zip(rows, told, running.tolist(), strict=True):
                if on:
                    ids[row].append(token)
            running &= at + 1 < limits[alive]
            for place in torch.nonzero(enders[tokens]).flatten().tolist():
                row = rows[place]
                finish = self._finish(ids[row], sampling.delimiter)
                if finish is not None and len(ids[row]) == at + 1:
                    finishes[row] = finish
                    running[place] = False
            left = int(running.sum())
            if left * 2 <= len(rows) or at + 1 == most:
                self._keep(
                    items,
                    ids,
                    finishes,
                    cache,
                    start,
                    [(p, rows[p]) for p in torch.nonzero(~running).flatten().tolist()],
                )
                if not left:
                    break
                cache, alive, tokens, running = (
                    cache.keep(running),
                    alive[running],
                    tokens[running],
                    running[running],
                )
        return [
            self._made(row, finish, sampling.delimiter) for row, finish in zip(ids, finishes, strict=True)
        ]

    def _made(self, ids: list[int], finish: Finish, delimiter: str) -> Made:
        text = self._prompts.decode(ids)
        if finish == "separator":
            text = text[: text.index(delimiter) + len(delimiter)]
        return Made(tuple(ids), text, finish)

    def _read(self, prompts: Sequence[Ids]) -> None:
        """Compute the keys and values of prompts that are not kept, all but their last token."""
        missing = [prompt for prompt in dict.fromkeys(prompts) if self._kept.chain(prompt) is None]
        # Of similar length together: less is padded.
        missing.sort(key=len)
        for begin in range(0, len(missing), 64):
            part = missing[begin : begin + 64]
            longest = max(map(len, part)) - 1
            padded = [[*prompt[:-1], *[0] * (longest - len(prompt) + 1)] for prompt in part]
            cache = self._decoder.cache([[]] * len(part), longest)
            self._decoder.forward(torch.tensor(padded, device=self._decoder.device), cache)
            for row, prompt in enumerate(part):
                self._kept.keep(prompt, None, cache.values[:, :, row, :, : len(prompt) - 1].clone())

    def _pieces(self, prompt: Ids) -> list[Tensor]:
        chain = self._kept.chain(prompt)
        assert chain is not None, "read before"
        return [piece.values for piece in chain]

    def _keep(
        self,
        items: Sequence[Wanted],
        ids: list[list[int]],
        finishes: list[Finish],
        cache: Cache,
        start: int,
        ended: list[tuple[int, int]],
    ) -> None:
        """Keep the pieces of drafts that a path can go on from."""
        going = [(place, row) for place, row in ended if finishes[row] in ("separator", "length")]
        if not going:
            return
        block = cache.values[:, :, [place for place, _ in going], :, start : cache.width]
        for at, (_, row) in enumerate(going):
            above = items[row].plan.prompt_ids
            self._kept.keep((*above, *ids[row]), above, block[:, :, at, :, : len(ids[row])])

    def _ending(self, delimiter: str) -> Tensor:
        """Return, for each token, whether a draft may end with it."""
        if delimiter not in self._enders:
            size = len(self._prompts.tokenizer)
            last = delimiter[-1]
            flags = [
                token == self._decoder.shape.eos or last in self._prompts.piece(token)
                for token in range(size)
            ]
            flags += [False] * (self._decoder.vocabulary - size)
            self._enders[delimiter] = torch.tensor(flags, device=self._decoder.device)
        return self._enders[delimiter]

    def _finish(self, ids: list[int], delimiter: str) -> Finish | None:
        if ids[-1] == self._decoder.shape.eos:
            return "eos"
        # The delimiter may have come in parts, one character a token at the most.
        tail = self._prompts.decode(ids[-len(delimiter) :])
        return "separator" if delimiter in tail else None


def choose(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> Tensor:
    """Return one token a row: the likeliest at temperature 0, else where the cumulative distribution passes u.

    Args:
        logits: Shape (rows, vocabulary).
        uniforms: u in [0, 1), float64, shape (rows,).
        sampling: Temperature, top_k, top_p.
    """
    if sampling.temperature == 0:
        return logits.argmax(-1)
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
    return (total <= (uniforms * total[:, -1])[:, None]).sum(-1).clamp(max=p.shape[-1] - 1)
