"""The training corpus: a fixed, seeded pool of problems of the train split as token ids, in batches by length."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.mini import problems, programs
from experiments.mini.problems import Problem
from experiments.mini.tokenizer import END, make_tokenizer, prompt_of, token_id

# Share of each level in the pool: the harder, the more often seen; contest only enough to be known.
MIXTURE = {
    "level_1": 0.10,
    "level_2": 0.14,
    "level_3": 0.16,
    "level_4": 0.18,
    "level_5": 0.19,
    "contest": 0.08,
    "code_2": 0.04,
    "code_3": 0.05,
    "code_4": 0.06,
}
POOL = 240_000
IGNORED = -100


@dataclass(frozen=True)
class Pool:
    """Sequences laid end to end: `tokens` (sum of lengths,), `starts` (n + 1,), `prompts` (n,) prompt lengths."""

    tokens: npt.NDArray[np.int16]
    starts: npt.NDArray[np.int64]
    prompts: npt.NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True)
class Batch:
    """Token ids (b, t) padded at the right, and labels (b, t): the next token, or IGNORED."""

    tokens: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


def problems_of(level: str, split: str, seed: int) -> Iterator[Problem]:
    """Yield problems of a level of either task."""
    source = programs.code_problems if level in programs.LEVELS else problems.math_problems
    return source(level, split, seed)


def make_pool(size: int, seed: int, cache: Path | None = None) -> Pool:
    """Return the pool of `size` sequences, read from the cache when it is there (240,000 take about a minute)."""
    file = None if cache is None else cache / f"pool-{size}-{seed}.npz"
    if file is not None and file.exists():
        stored = np.load(file)
        return Pool(stored["tokens"], stored["starts"], stored["prompts"])
    tokenizer = make_tokenizer()
    end = token_id(END)
    sequences: list[list[int]] = []
    prompts: list[int] = []
    for level, share in MIXTURE.items():
        drawn = list(islice(problems_of(level, "train", seed), int(size * share)))
        for start in range(0, len(drawn), 4096):
            chunk = drawn[start : start + 4096]
            asked = tokenizer([prompt_of(p.question) for p in chunk], add_special_tokens=False)["input_ids"]
            solved = tokenizer([p.solution for p in chunk], add_special_tokens=False)["input_ids"]
            sequences += [a + s + [end] for a, s in zip(asked, solved, strict=True)]
            prompts += [len(a) for a in asked]
    starts = np.concatenate([[0], np.cumsum([len(s) for s in sequences])]).astype(np.int64)
    tokens = np.concatenate([np.asarray(s, np.int16) for s in sequences])
    pool = Pool(tokens, starts, np.asarray(prompts, np.int16))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial.npz")
        np.savez(partial, tokens=tokens, starts=starts, prompts=pool.prompts)
        partial.rename(file)
    return pool


def batches(pool: Pool, tokens_each: int, seed: int, first: int = 0) -> Iterator[Batch]:
    """Yield batches for ever, each of about `tokens_each` tokens of similar length, from batch number `first` on.

    Each pass sorts shuffled windows by length, so that little is padded, and shuffles the batches.
    """
    number = 0
    lengths = np.diff(pool.starts)
    for epoch in range(1_000_000):
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(len(pool))
        groups: list[npt.NDArray[np.int64]] = []
        for window in np.array_split(order, max(1, len(order) // 8192)):
            window = window[np.argsort(lengths[window], kind="stable")]
            taken = 0
            while taken < len(window):
                count = max(
                    1, tokens_each // int(lengths[window[min(taken + tokens_each // 64, len(window) - 1)]])
                )
                groups.append(window[taken : taken + count])
                taken += count
        for index in rng.permutation(len(groups)):
            if number >= first:
                yield _batch(pool, groups[index])
            number += 1


def _batch(pool: Pool, rows: npt.NDArray[np.int64]) -> Batch:
    width = int((pool.starts[rows + 1] - pool.starts[rows]).max())
    tokens = np.zeros((len(rows), width), np.int64)
    labels = np.full((len(rows), width), IGNORED, np.int64)
    for i, row in enumerate(rows):
        sequence = pool.tokens[pool.starts[row] : pool.starts[row + 1]]
        tokens[i, : len(sequence)] = sequence
        # Only the solution is learnt: the question is given.
        begin = int(pool.prompts[row]) - 1
        labels[i, begin : len(sequence) - 1] = sequence[begin + 1 :]
    return Batch(tokens, labels)
