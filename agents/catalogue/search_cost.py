"""Cost of a search in equivalent FLOPs (UniScale App. D.3): prefill + Σ_j (decoding + verification).

eFLOPs = floating-point operations + intensity × bytes moved. The cost is a closed form over the trace of a search and
does not depend on its text. Our readings where the appendix is ambiguous:

- the verifier's cost is computed from its own architecture and the *generator's* token counts;
- weights are loaded once per decoding position for the generator and once per step for the verifier;
- cached keys and values are read once per branch and position (prefix sharing saves memory, not reads);
- a single chain of thought is also verified, because the reward needs its score.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agents.catalogue.models import Architecture

# Peak BF16 FLOP/s over memory bandwidth of one A800 80 GB SXM (App. B.1). FLOPs per byte.
INTENSITY = 156.0


class DraftNumbers(Protocol):
    """The fields of a draft (a row of a trace or a node of a forest) that determine its cost."""

    @property
    def parent(self) -> int:
        """Index of the draft that this one continues; -1 in the first step."""

    @property
    def tokens(self) -> int:
        """ΔL, the number of tokens generated in this step."""

    @property
    def score(self) -> float | None:
        """The verifier's score; None if the draft was not verified and so added no cost of verification."""


@dataclass(frozen=True)
class PhaseCost:
    """Operations and bytes moved in one phase of a search. The cost of a search is the sum over its phases."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "PhaseCost") -> "PhaseCost":
        """Add term by term."""
        return PhaseCost(self.flops + other.flops, self.bytes + other.bytes)

    def eflops(self, intensity: float) -> float:
        """Return flops + bytes × intensity (Eq. eFLOPs)."""
        return self.flops + self.bytes * intensity


@dataclass(frozen=True)
class SearchCost:
    """The cost of one search by phase. Values are in eFLOPs unless their names say otherwise."""

    prefill: PhaseCost
    decoding: PhaseCost
    verification: PhaseCost
    intensity: float = INTENSITY

    @property
    def eflops(self) -> float:
        """C_UIS, the total cost of the search."""
        return (self.prefill + self.decoding + self.verification).eflops(self.intensity)

    @property
    def compute_flops(self) -> float:
        """Floating-point operations of generator and verifier."""
        return (self.prefill + self.decoding + self.verification).flops

    @property
    def memory_bytes(self) -> float:
        """Bytes moved by generator and verifier."""
        return (self.prefill + self.decoding + self.verification).bytes

    @property
    def verifier_eflops(self) -> float:
        """The verifier's share of `eflops`."""
        return self.verification.eflops(self.intensity)

    @property
    def log_cost(self) -> float:
        """Natural logarithm of `eflops`, the raw cost term of the reward."""
        return math.log(self.eflops)


def search_cost(
    prompt_tokens: int,
    drafts: Sequence[DraftNumbers],
    generator: Architecture,
    verifier: Architecture,
    intensity: float = INTENSITY,
) -> SearchCost:
    """Return C_UIS, by phase (App. D.3, Remark D.16).

    Args:
        prompt_tokens: L_in, tokens of the rendered prompt; at least 1.
        drafts: Every draft of the search, kept or not, each parent before its children. Drafts of the same depth are
            one step, decoded as one batch.
        generator: Architecture of the model that drafts.
        verifier: Architecture of the model that scores.
        intensity: I, FLOPs per byte of the hardware.

    Raises:
        ValueError: The prompt is empty, a count is negative, or a parent does not precede its child.
    """
    if prompt_tokens < 1:
        raise ValueError(f"prompt_tokens is {prompt_tokens}: a search has a prompt of at least one token")
    decoding = verification = PhaseCost()
    for step in _steps(prompt_tokens, drafts):
        decoding += decode_step([(start, new) for start, new, _ in step], generator)
        verification += verify_step([start + new for start, new, scored in step if scored], verifier)
    return SearchCost(prefill(prompt_tokens, generator), decoding, verification, intensity)


def prefill(prompt_tokens: int, model: Architecture) -> PhaseCost:
    """Return the cost of reading the prompt once, shared by all branches (Prop. D.13)."""
    L = prompt_tokens
    return PhaseCost(
        flops=L * 2 * model.used_parameters + 4 * _triangle(L) * _query_width(model),
        bytes=_weights(model) + L * _kv_bytes(model),
    )


def decode_step(branches: Sequence[tuple[int, int]], model: Architecture) -> PhaseCost:
    """Return the cost of one step's decoding (Prop. D.14).

    Σ_n b(n)·L̄(n) is the number of (branch, position) contexts read, which is the sum over branches of
    ΔL·L_init + ΔL(ΔL+1)/2.

    Args:
        branches: (L_init, ΔL) of every draft of the step.
        model: The generator.
    """
    new_tokens = sum(new for _, new in branches)
    contexts = sum(new * start + _triangle(new) for start, new in branches)
    positions = max((new for _, new in branches), default=0)  # N_j
    return PhaseCost(
        flops=2 * model.used_parameters * new_tokens + 4 * contexts * _query_width(model),
        bytes=positions * _weights(model) + contexts * _kv_bytes(model),
    )


def verify_step(final_tokens: Sequence[int], model: Architecture) -> PhaseCost:
    """Return the cost of scoring one step's drafts, each read from its beginning (Prop. D.15).

    Args:
        final_tokens: L_final of each draft that is scored.
        model: The verifier.
    """
    if not final_tokens:
        return PhaseCost()
    read = sum(final_tokens)
    return PhaseCost(
        flops=2 * model.used_parameters * read + 4 * sum(map(_triangle, final_tokens)) * _query_width(model),
        bytes=_weights(model) + read * _kv_bytes(model),
    )


def _steps(prompt_tokens: int, drafts: Sequence[DraftNumbers]) -> list[list[tuple[int, int, bool]]]:
    """Group drafts by depth as (L_init, ΔL, verified)."""
    depths: list[int] = []
    finals: list[int] = []
    steps: list[list[tuple[int, int, bool]]] = []
    for index, draft in enumerate(drafts):
        if not -1 <= draft.parent < index:
            raise ValueError(f"draft {index} has parent {draft.parent}: a parent comes before its children")
        if draft.tokens < 0:
            raise ValueError(f"draft {index} has {draft.tokens} tokens: a count is not negative")
        depth, start = (
            (0, prompt_tokens) if draft.parent < 0 else (depths[draft.parent] + 1, finals[draft.parent])
        )
        depths.append(depth)
        finals.append(start + draft.tokens)
        while len(steps) <= depth:
            steps.append([])
        steps[depth].append((start, draft.tokens, draft.score is not None))
    return steps


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def _query_width(model: Architecture) -> int:
    return model.layers * model.query_heads * model.head_dim


def _weights(model: Architecture) -> float:
    return model.used_parameters * model.weight_bytes  # f_p_mem


def _kv_bytes(model: Architecture) -> float:
    """Return the bytes of the keys and values of one position, f_a_mem(1, 1)."""
    return 2 * model.layers * model.kv_heads * model.head_dim * model.kv_bytes
