"""What must hold for a query's row in the learner's log: it agrees with its Decision, its Context and its Rewards."""

from collections.abc import Iterator

import orjson

from streams.audit.reading.records import Reward, Row
from streams.audit.stories import CLOSING, ENDED, Story
from streams.audit.world import BATCH, World


def row_discrepancies(s: Story, w: World) -> Iterator[str]:
    """Yield where the learner's row differs from its Decision, its Context or its Rewards."""
    row, d = s.row, s.decision
    if row is None:
        return
    if d is not None:
        for name, found, wanted in (("seq", row.seq, d.seq), ("action", row.action, d.action)):
            if found != wanted:
                yield f"the learner's row: {name} is {found}, the Decision's {wanted}"
        same = {
            "objective": row.objective == d.objective, "Decision": row.decision == d.whole,
            "Query": (row.q_part, row.q_off) == (d.q_part, d.q_off),
        }  # fmt: skip
        for name in (name for name, equal in same.items() if not equal):
            yield f"the learner's row: its {name} is not that of the Decision"
    for c in s.contexts:
        if (c.q_part, c.q_off) == (row.q_part, row.q_off) and c.vector != row.vector:
            yield "the learner's row: its embedding is not the Context's"
    if w.keeps(Reward, s.since_ms):
        yield from _applied(s, row, w)


def _applied(s: Story, row: Row, w: World) -> Iterator[str]:
    """Yield where the row differs from what its Rewards make of it."""
    stage, kinds, entered = told(s, row)
    after = [r for r in _own(s, row) if r.off > row.r_off and moved(stage, kinds, r) is not None]
    if after and after[0].early and after[0].off + BATCH <= w.facts.rewards_done:
        yield f"Reward {s.query_id}/{after[0].kind} was passed over by the learner"
    made = f"{row.stage} by {row.kinds or 'nothing'}"
    # A deployment may drop an answer that nobody graded.
    if (stage, ",".join(kinds)) != (row.stage, row.kinds) and (row.stage, kinds) != (
        "abandoned",
        ["default"],
    ):
        yield f"the learner's row is {made}; by its Rewards, {stage} by {','.join(kinds) or 'nothing'}"
    elif (row.learned >= 0) + (row.corrected >= 0) != len(entered):
        yield f"the learner's row has updates at {row.learned} and {row.corrected}, its Rewards make {len(entered)}"
    elif row.learned >= 0 and entered:
        said = next((r.correct for r in entered if r.correct is not None), None)
        # A deployment may count an answer that nobody graded as wrong.
        correct = 0.0 if said is None and row.correct == 0.0 else said
        price = orjson.loads(entered[0].price) or {}
        pairs = (
            ("score", row.score, entered[0].score),
            ("log_cost", row.log_cost, entered[0].log_cost),
            ("correct", row.correct, correct),
            ("price_factor", row.factor, price.get("factor", 1.0)),
        )
        for name, found, wanted in pairs:
            if found != wanted:
                yield f"the learner's row: {name} is {found}, its Reward's {wanted}"


def told(s: Story, row: Row) -> tuple[str, list[str], list[Reward]]:
    """Apply the Rewards in order, up to the row's last one.

    Returns:
        The stage, the kinds of Rewards applied, and the Rewards that entered the policy.
    """
    stage, kinds, entered = "pending", list[str](), list[Reward]()
    for r in _own(s, row):
        if r.off <= row.r_off and (after := moved(stage, kinds, r)) is not None:
            if after not in ("abandoned", "priced") and (stage == "pending" or r.correct is not None):
                entered.append(r)
            stage = after
            kinds.append(r.kind)
    return stage, kinds, entered


def _own(s: Story, row: Row) -> list[Reward]:
    return [r for r in s.rewards if (r.seq, r.action) == (row.seq, row.action)]


def moved(stage: str, kinds: list[str], r: Reward) -> str | None:
    """Return the stage of a row after a Reward; None if the Reward changes nothing."""
    if r.kind in kinds or stage in ENDED or (stage == "learned" and r.kind == "provisional"):
        return None
    if stage == "pending" and (not r.learn or r.score is None or r.log_cost is None):
        return "abandoned" if r.kind in CLOSING else None
    if stage == "pending" and r.bounded:
        return "priced"
    return "closed" if r.kind in CLOSING else "learned"
