"""One query's search as a value (§3.3): a tree of drafts, each with its own text and a parent.

SearchStep and Verification carry the forest, so that no process has to keep it. An Answer's trace is the same tree, but
with only the chosen path's texts. `agents/search/forest.py` grows the forest.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.action import Action
from schemas.prices import MAX_COUNT as MAX_COUNT
from schemas.prices import Count as Count
from schemas.prices import Prices
from schemas.record import Millis

Unit = Annotated[float, Meta(ge=0, le=1)]
PriceFactor = Annotated[float, Meta(gt=0)]

Finish = Literal["separator", "eos", "length", "context", "stop", "max_tokens"]
"""How a draft ended, in order: at the delimiter; at the end of the sequence; at its token limit mid-step (the path
continues from there); at the end of the model's context (the path cannot continue); at one of the client's stop texts
(the path is complete); or at the client's `max_tokens` (the path is not complete)."""

Fate = Literal["open", "kept", "beam", "early_exit", "finished", "cut", "stopped"]
"""State of a draft, in order: not scored yet; kept for expansion; outside the top BS; bound below V_max; the end of a
completed path; unfinished at the depth limit, at H_max, in a full context or at the client's `max_tokens`; live when
the budget or the deadline ran out."""

Stop = Literal["tokens", "eflops", "deadline"]
"""Which budget ran out."""


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Search settings that the paper leaves open. They are fixed when a search starts and recorded with every result.

    Attributes:
        depth_limit: The initial H_max, in steps.
        step_tokens: Maximum number of tokens in a draft.
        temperature: Sampling temperature.
        top_p: Nucleus size for sampling.
        top_k: Number of most likely tokens to sample from; 0 means all tokens.
        delimiter: Text that ends a step and is kept as part of it.
        thinking: Whether the chat template enables thinking mode.
        eta: H_max = ceil(eta · D_best) (§3.3).
        early_exit: Whether paths that cannot win, or that reach H_max, are stopped.
        cut_completes: Whether a path at the depth limit counts as completed, which is the literal reading of §3.3. A
            path cut by the client's `max_tokens` never does.
        box_completes: Whether a complete box ends a path before the end of the sequence.
        budget_tokens: Maximum number of tokens generated across all drafts; never exceeded.
        budget_eflops: The cost at which the search stops, in eFLOPs, checked between steps.
        budget_usd: Maximum cost in USD. `budget_tokens` is the number of tokens it buys after paying for the prompt.
        deadline_ms: When the search stops, even mid-step, in ms since the epoch.
        expires_ms: When the query expires, in ms since the epoch. No one reads an answer after that.
        max_tokens: The client's limit on the number of tokens in each path (`Query.max_tokens`).
        stop: The client's stop texts, any of which ends a path.
        seeded: Whether the client set the seed, in which case the drafts' seeds do not depend on the query id.
        answers: Number of completed paths wanted. Early exit keeps paths that could still be among them.
        price_factor: Multiplier for the search's eFLOPs (`Decision.price_factor`).
        prices: The search's token prices in USD (`Decision.prices`); None if costs are in eFLOPs.
        distorted: Whether the client's sampling parameters change the text so much that it does not reflect the
            configuration (`ChatOptions.distorts`).
        verified: Whether a verifier scores the drafts. If not, there is no score and no early exit, and if several
            paths are completed, one with the most frequent answer is chosen.
        streamed: Whether text is sent to gateways as it is generated: the client is streaming, and there is only one
            path.
    """

    depth_limit: Annotated[int, Meta(ge=1)]
    step_tokens: Annotated[int, Meta(ge=1)]
    temperature: Annotated[float, Meta(ge=0)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Count = 0
    delimiter: Annotated[str, Meta(min_length=1)] = "\n\n"
    thinking: bool = False
    eta: Annotated[float, Meta(ge=1)] = 1.2
    early_exit: bool = True
    cut_completes: bool = False
    box_completes: bool = False
    budget_tokens: Count | None = None
    budget_eflops: Annotated[float, Meta(ge=0)] | None = None
    budget_usd: Annotated[float, Meta(ge=0)] | None = None
    deadline_ms: Millis | None = None
    expires_ms: Millis | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: tuple[str, ...] = ()
    seeded: bool = False
    answers: Annotated[int, Meta(ge=1)] = 1
    price_factor: PriceFactor = 1.0
    prices: Prices | None = None
    distorted: bool = False
    verified: bool = True
    streamed: bool = False


class Draft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of one path: a state s_{i,j,k}.

    Attributes:
        parent: Index of the draft that this one continues; -1 at the root.
        depth: j, counted from 1.
        tokens: Number of tokens generated in this step.
        finish: How the draft ended.
        tree: i, the index of the draft's subtree, from 0.
        slot: k, the draft's index among its siblings, from 0.
        text: The step's text, up to and including the delimiter or stop text that ended it; empty once no live or best
            path needs it.
        score: v(s), from the verifier.
        verifier_tokens: Number of tokens the verifier read to score the draft.
        shortened: Whether the verifier's policy shortened the draft's path.
        fate: State of the draft.
        bound: The best score the path could still reach, if that fell below V_max.
    """

    parent: Annotated[int, Meta(ge=-1)]
    depth: Annotated[int, Meta(ge=1)]
    tokens: Count
    finish: Finish
    tree: Count = 0
    slot: Count = 0
    text: str = ""
    score: Unit | None = None
    verifier_tokens: Count = 0
    shortened: bool = False
    fate: Fate = "open"
    bound: float | None = None


class Forest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one search. Parents come before their children, and each step's drafts are adjacent.

    Attributes:
        action: The configuration to run.
        limits: The limits of the search.
        drafts: Every draft so far, kept or not.
        step: The last step whose drafts are known; 0 before the first.
        scored: The last step whose scores are known: `step`, or one less while the verifier is scoring. Without a
            verifier, the last step that search control has seen.
        prompt_tokens: L_in, the number of tokens in the rendered prompt; 0 before the first step.
        best: Index of the best completed path's last draft (whose path score is V_max and whose depth is D_best);
            -1 if there is none.
        stopped: Which budget ran out, if any.
    """

    action: Action
    limits: Limits
    drafts: tuple[Draft, ...] = ()
    step: Count = 0
    scored: Count = 0
    prompt_tokens: Count = 0
    best: Annotated[int, Meta(ge=-1)] = -1
    stopped: Stop | None = None

    def __post_init__(self) -> None:
        """Reject drafts that do not form a tree, and steps that are only partly scored."""
        if self.drafts and not self.prompt_tokens:
            raise ValueError("prompt_tokens is 0 with drafts: give the tokens of the prompt")
        for index, draft in enumerate(self.drafts):
            above = self.drafts[draft.parent].depth if -1 < draft.parent < index else 0
            if draft.parent >= index or draft.depth != above + 1:
                raise ValueError(
                    f"drafts[{index}] continues {draft.parent} at depth {draft.depth}: send a tree"
                )
            scored = draft.depth <= self.scored
            told = scored and self.limits.verified
            if told != (draft.score is not None) or not (scored or draft.fate == "open"):
                raise ValueError(
                    f"drafts[{index}] at depth {draft.depth} of {self.scored} scored steps has score {draft.score} and "
                    f"fate {draft.fate!r}: give a score and a fate to the drafts of scored steps, and to no others"
                )
        most = next(
            (at for at, draft in enumerate(self.drafts) if draft.depth > self.scored), len(self.drafts)
        )
        if not self.step - 1 <= self.scored <= self.step or self.best >= most:
            raise ValueError(
                f"step {self.step}, scored {self.scored}, best {self.best} contradict each other"
            )
        best = self.drafts[self.best] if self.best >= 0 else None
        if best is not None and not completes(best.fate, best.finish, self.limits):
            raise ValueError(f"best {self.best} is not a completed path: give one that is, or -1")

    def path(self, index: int) -> tuple[int, ...]:
        """Return the draft indices on the path from the root to a draft."""
        found = []
        while index >= 0:
            found.append(index)
            index = self.drafts[index].parent
        return tuple(reversed(found))

    def steps(self, index: int) -> tuple[str, ...]:
        """Return a path's texts, one per step, as the verifier scores them."""
        return tuple(self.drafts[at].text for at in self.path(index))

    def text(self, index: int) -> str:
        """Return a path's text; empty for -1, which is the prompt alone."""
        return "".join(self.steps(index))

    def answer(self, index: int) -> str:
        """Return a path's text as an answer, without the client's stop text if one ended it."""
        text = self.text(index)
        found = first_stop(text, self.limits.stop)
        return text if found is None else text[: found[0]]

    def tokens(self, index: int) -> int:
        """Return the number of tokens generated on a path; 0 for -1, which is the prompt alone."""
        return sum(self.drafts[at].tokens for at in self.path(index))

    def value(self, index: int) -> float | None:
        """Return V(p) of a path, or None if no verifier scores this search."""
        return self.path_score(index) if self.limits.verified else None

    def path_score(self, index: int) -> float:
        """Return V(p), the mean of a path's step scores (§3.3, step 3).

        Raises:
            ValueError: One of the path's steps has no score yet.
        """
        scores = [self.drafts[at].score for at in self.path(index)]
        known = [score for score in scores if score is not None]
        if len(known) < len(scores) or not known:
            raise ValueError(f"the path to draft {index} is not scored to its end")
        return sum(known) / len(known)

    @property
    def pending(self) -> tuple[int, ...]:
        """Return the drafts awaiting a score, in order."""
        if self.scored == self.step:
            return ()
        return tuple(index for index, draft in enumerate(self.drafts) if draft.depth == self.step)

    @property
    def live(self) -> tuple[int, ...]:
        """Return the drafts to be expanded, in order."""
        if self.stopped is not None or self.scored != self.step:
            return ()
        return tuple(i for i, d in enumerate(self.drafts) if d.depth == self.step and d.fate == "kept")

    @property
    def completed_paths(self) -> tuple[int, ...]:
        """Return the last drafts of the completed paths: `best` first, then by score, with ties in index order."""
        found = [
            at for at, draft in enumerate(self.drafts) if completes(draft.fate, draft.finish, self.limits)
        ]
        return tuple(sorted(found, key=lambda at: (at != self.best, -(self.value(at) or 0.0))))

    @property
    def over(self) -> bool:
        """Return whether the search is finished."""
        return self.stopped is not None or (0 < self.step == self.scored and not self.live)

    @property
    def generated_tokens(self) -> int:
        """Return the number of tokens generated so far across all drafts."""
        return sum(draft.tokens for draft in self.drafts)

    @property
    def verifier_tokens(self) -> int:
        """Return the number of tokens the verifier has read so far."""
        return sum(draft.verifier_tokens for draft in self.drafts)


def completes(fate: Fate, finish: Finish, limits: Limits) -> bool:
    """Return whether a draft with this fate ends a completed path."""
    return fate == "finished" or (limits.cut_completes and fate == "cut" and finish != "max_tokens")


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Return the (start, end) of the stop text that ends first, or of the longest in a tie; None if there is none.

    >>> first_stop("one, two; three", [";", "two;"])
    (5, 9)
    """
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return None
    end, start = min(found)
    return start, end


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return the part of a growing text that can no longer change, without any stop text or possible start of one.

    >>> before_stop("one, two; three", ["two;"]), before_stop("one, tw", ["two;"])
    ('one, ', 'one, ')
    """
    if (found := first_stop(text, stops)) is not None:
        return text[: found[0]]
    held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - held]
