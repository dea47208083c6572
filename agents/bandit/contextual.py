"""The contextual policy: exact ridge regression on few, interacting coordinates, with a linear price of cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from agents.bandit.design import CORRECT, COST, ONE, Design, History, fit_transform, set_anchors
from agents.bandit.estimates import SETTLED, Estimates, lengths
from agents.bandit.features import COUNTS, FeatureSettings
from agents.bandit.learner import Learner, pick
from agents.bandit.pacing import Outlook, Pacer
from agents.bandit.policy import (
    Account,
    ActionVector,
    Aim,
    Context,
    Matrix,
    Objective,
    Observation,
    Pending,
    Policy,
    Scores,
    Vector,
    check_outcome,
)
from agents.bandit.prior import LESSONS, Lessons, require_fit
from agents.bandit.registry import Inputs, Options, policy

# How the contextual policy ranks: predicted reward, priced optimism, caution.
#
# Exploration accounts for cost. If the objective has a price, the optimism α·√(xᵀA⁻¹x) of an action that costs k
# times as much as the best predicted one is divided by k, so that very expensive actions are not explored like the
# others.


class Seen(NamedTuple):
    """What is predicted for one query z: terms of every action, shape (n, 5), and Q (`Estimates.curvature`)."""

    z: Vector
    terms: Matrix
    curvature: Matrix


class Ranking:
    """Scores the actions of queries. Changes nothing.

    Args:
        outlook: The recent queries, and the regression.
        alpha: Exploration factor.
    """

    def __init__(self, outlook: Outlook, alpha: float) -> None:
        self._outlook, self._alpha = outlook, alpha
        self._design, self._estimates = outlook.design, outlook.estimates

    def scores(
        self, queries: Matrix, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
    ) -> list[Scores]:
        """Score every allowed action of every context.

        Args:
            queries: Checked vectors of the contexts, as rows.
            contexts: The contexts.
            objectives: One for each context.
            seed: Of ties.
        """
        usual = self._seen(self._outlook.usual()) if self._outlook.cautious() else None
        asked = zip(queries, contexts, objectives, strict=True)
        return [self._scored(query, context, objective, seed, usual) for query, context, objective in asked]

    def _seen(self, z: Vector) -> Seen:
        return Seen(z, self._estimates.predicted(z), self._estimates.curvature(z))

    def _scored(
        self, query: Vector, context: Context, objective: Objective, seed: int, usual: Seen | None
    ) -> Scores:
        d = self._design
        keep = d.choosable(context.query_id, context.allowed)
        seen = self._seen(d.short(query))
        mean, width = self._optimistic(seen, keep, objective)
        score = mean + width
        if usual is not None:
            incumbent = keep[int(np.add(*self._optimistic(usual, keep, objective)).argmax())]
            peculiar = self._estimates.curvature(seen.z - usual.z)
            doubt = lengths(d.sides[keep] - d.sides[incumbent], peculiar)
            score = score - self._outlook.caution * doubt
        chosen, probability = pick(score, seed, context.query_id)
        correct, path_score, log_cost = seen.terms[keep[chosen], :ONE].tolist()
        return Scores(
            [d.ids[j] for j in keep],
            mean,
            width,
            score,
            chosen,
            probability,
            predicted=(correct, path_score, log_cost),
        )

    def _optimistic(self, seen: Seen, keep: np.ndarray, objective: Objective) -> tuple[Vector, Vector]:
        """Return predicted reward and priced optimism of some actions."""
        terms = seen.terms[keep]
        width = self._alpha * lengths(self._design.sides[keep], seen.curvature)
        mean = terms[:, :COST] @ objective.coefficients - objective.price * terms[:, COST]
        if objective.price:
            best = terms[int(mean.argmax()), COST]
            width = width * np.minimum(1.0, best / terms[:, COST])
        return mean, width


# The contextual policy: exact ridge on few, interacting coordinates, with a linear price of cost.
#
# LinUCB on the paper's joint vector ranks actions in the same order for every query as far as the mean goes, and with
# 552 dimensions it learns little in a few hundred rounds. Here x = z_q ⊗ g_a (`design`) has 20 to 150 dimensions, and
# each query has its own ranking. This is not Algorithm 1; the paper's policy is `linucb`.
#
# - Five columns of B share one A: Correct, Score, log C, 1, and C itself. A budget, and a mix of configurations,
#   are linear in cost. Costs are measured in units of each action's anchor, so that expensive and cheap actions
#   share a scale. The column of ones makes every term regress towards its own mean rather than towards zero.
# - Costs are learned in eFLOPs. A model's price multiplies its predicted cost when a decision is made, so a new
#   price takes effect at once, and λ is solved again. If a model's searches grow longer, nobody says so: `drift`
#   notices.
# - Exploration accounts for cost (`ranking`), and a query leaves the configuration that is best overall only for
#   what is predicted to be clearly better (`caution`).
# - A prior from history (`prior`) is a complete state to start from. Without one, the policy fits its query
#   transform to its own history after 500, 1,000, 2,000 and 4,000 outcomes (`lessons`).
# - The pacer (`pacer`) determines λ for objectives by mean cost and by accuracy.


@dataclass(frozen=True, slots=True)
class ContextualSettings:
    """Settings of the contextual policy.

    Attributes:
        alpha: Exploration factor.
        ridge: λ of the coefficients that do not depend on the query.
        query_ridge: λ of those by which the query meets a model or its size: what depends on the query is held closer
            to zero, because it is many times as much to learn.
        detail_ridge: λ of those by which it meets the width of the search and other details.
        caution: κ (`caution`); 0 for none.
        encoder: Identity of the encoder of the queries; a state from another encoder is refused.
        lessons: Numbers of outcomes after which the query transform is fitted to them, if there was no prior.
        settled: Number of outcomes, a prior's among them, before `drift` and `caution` begin.
    """

    alpha: float = 0.05
    ridge: float = 3.0
    query_ridge: float = 30.0
    detail_ridge: float = 300.0
    caution: float = 0.1
    encoder: str = ""
    lessons: tuple[int, ...] = LESSONS
    settled: int = SETTLED


class Contextual(Learner):
    """Priced, optimistic ridge regression on z_q ⊗ g_a."""

    name = "contextual"
    order_free = False  # the pacer is a fold in strict order
    paces = True
    surface = True

    def __init__(self, design: Design, settings: ContextualSettings | None = None) -> None:
        super().__init__(design)
        self.design = design
        self.settings = settings or ContextualSettings()
        s = self.settings
        self.estimates = Estimates(design, (s.ridge, s.query_ridge, s.detail_ridge), s.settled)
        self.pacer = Pacer()
        self.outlook = Outlook(design, self.estimates, self.pacer, s.caution)
        self.ranking = Ranking(self.outlook, s.alpha)
        self.lessons = Lessons(s.lessons)

    def grown(self, kept: Sequence[int]) -> None:
        """Append the columns of new features."""
        self.estimates.grow()

    def reprice(self, factors: Mapping[str, float]) -> None:
        """Set the price of an eFLOP on each of these models, from the next decision on."""
        self.estimates.reprice(factors)

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Score every allowed action of every context."""
        queries = self.features.queries([(c.query_id, c.embedding) for c in contexts])
        return self.ranking.scores(queries, contexts, objectives, seed)

    def begin(self, prior: bytes, actions: Sequence[ActionVector]) -> None:
        """Start from a prior, or raise and change nothing.

        Args:
            prior: A state made by `prior.teach`.
            actions: What will be on offer; the prior must come from the same models.

        Raises:
            PriorRefused: It was made with another encoder, other features, or from another catalogue.
        """
        require_fit(prior, self.name, self.identity(), actions)
        self.load(prior)
        # The first offer comes next; until then nothing is on offer.
        self.remove_actions(list(self.design.ids))

    def terms(self, context: Context) -> Matrix | None:
        """Return the predicted Correct, Score and log C of every allowed action."""
        (query,) = self.features.queries([(context.query_id, context.embedding)])
        keep = self.design.choosable(context.query_id, context.allowed)
        return np.asarray(self.estimates.predicted(self.design.short(query))[keep][:, :ONE])

    def price(self, aim: Aim) -> float:
        """Return λ of an aim: the one in force, or a new solution on the window for a new aim or price of a model."""
        found = self.pacer.price(aim, self.estimates.price_factors)
        return self.outlook.price(aim) if found is None else found

    def expect(self, decisions: Sequence[Pending]) -> None:
        """Add decisions to the window and to the account of their aims."""
        queries = self.features.queries([(d.observation_id, d.embedding) for d in decisions])
        for decision, query in zip(decisions, queries, strict=True):
            z = self.design.short(query)
            if (aim := decision.aim) is not None:
                price = self.price(aim)
                terms = self.estimates.predicted(z)[self._place(decision)]
                cost, accuracy = float(terms[COST]), float(terms[CORRECT])
                factors = self.estimates.price_factors
                if self.pacer.decided(aim, decision.observation_id, cost, accuracy, price, factors):
                    self.pacer.paces[aim.key].price = self.outlook.price(aim)
            self.outlook.window.append(z)

    def abandon(self, decisions: Sequence[Pending]) -> None:
        """Close the account of decisions that will have no reward."""
        for decision in decisions:
            self.pacer.settled(decision.observation_id, None, None)

    def take(self, observations: Sequence[Observation]) -> None:
        """Add x once per observation, with its five terms, in order."""
        self._check(observations)
        queries = self.features.queries([(o.observation_id, o.embedding) for o in observations])
        for o, query in zip(observations, queries, strict=True):
            at = self._place(o)
            unpriced = o.log_cost - math.log(o.price_factor)
            targets = self.estimates.targets(o.entered, o.score, unpriced, at)
            self.estimates.add(self.design.short(query), at, targets)
            self.pacer.settled(o.observation_id, float(np.exp(o.log_cost)), o.entered)
            if (history := self.lessons.take(o, query, at, unpriced)) is not None:
                self.relearn(history)

    def amend(self, observations: Sequence[Observation]) -> None:
        """Add (correct - imputed)·x to the column of Correct; A does not change."""
        self._check(observations)
        queries = self.features.queries([(o.observation_id, o.embedding) for o in observations])
        for o, query in zip(observations, queries, strict=True):
            late = o.entered - o.imputed
            self.estimates.adjust(self.design.short(query), self._place(o), late)
            self.lessons.correct(o)

    def price_only(self, observations: Sequence[Observation]) -> None:
        """Learn the costs; the accounts pay them, and their calibration stays as it is."""
        self._check(observations)
        queries = self.features.queries([(o.observation_id, o.embedding) for o in observations])
        for o, query in zip(observations, queries, strict=True):
            unpriced = o.log_cost - math.log(o.price_factor)
            self.estimates.add_cost(self.design.short(query), self._place(o), unpriced)
            self.pacer.settled(o.observation_id, float(np.exp(o.log_cost)), None)

    def relearn(self, history: History, cap: float = math.inf) -> None:
        """Fit anchors and query transform to a history, then learn the history with them.

        A policy without a prior does this with its own outcomes; `prior.teach` does it with a table.

        Args:
            history: The outcomes. They replace what has been learned, and the window.
            cap: Weight of the history: it counts as at most this many observations.
        """
        design = self.design
        set_anchors(design, history)
        terms = zip(
            history.correct.tolist(),
            history.score.tolist(),
            history.log_cost.tolist(),
            history.action.tolist(),
            strict=True,
        )
        targets = np.array([self.estimates.targets(*row) for row in terms])
        out_of_fold = fit_transform(design, history, targets)
        weights = history.weights * min(1.0, cap / len(history.question))
        self.estimates.replace(out_of_fold[history.question], history.action, targets, weights)
        # In the order of the traffic: a question stands once for its rows in a run, as a table has them, and again
        # where it was asked again later.
        begins = np.flatnonzero(np.diff(history.question, prepend=-1))
        self.outlook.replace(out_of_fold[history.question[begins]])

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return regression, means, window and accounts, all bit for bit."""
        rows, learned = self.estimates.snapshot()
        ahead, outcomes = self.lessons.snapshot()
        meta = {"rows": rows, "pacer": self.pacer.snapshot()} | ahead
        if self.estimates.price_factors:
            meta["price_factors"] = self.estimates.price_factors
        if self.estimates.drift.sums:
            meta["drift"] = self.estimates.drift.snapshot()
        return meta, learned | {"window": self.outlook.snapshot()} | outcomes

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore them."""
        self.estimates.restore(meta["rows"], arrays)
        self.estimates.drift.restore(meta.get("drift", {}))
        self.estimates.reprice(meta.get("price_factors", {}))
        self.outlook.replace(arrays["window"])
        self.pacer.restore(meta["pacer"])
        self.lessons.restore(meta, arrays)

    def identity(self) -> dict[str, Any]:
        """Return the settings that must be equal when a state is loaded; α and κ may change."""
        s = self.settings
        own = {
            "ridge": s.ridge,
            "query_ridge": s.query_ridge,
            "detail_ridge": s.detail_ridge,
            "encoder": s.encoder,
        }
        return {"contextual": own, "features": asdict(self.features.settings)}

    def shortfall(self, aim: Aim) -> float | None:
        """Return the least mean cost, or the largest share of accuracy, on the window, if an aim asks for more."""
        return self.outlook.shortfall(aim)

    def account(self, aim: Aim) -> Account | None:
        """Return what an aim's decisions came to since its target was set."""
        return self.pacer.account(aim)

    def _place(self, item: Pending | Observation) -> int:
        return self.features.position(item.observation_id, item.action_id)

    def _check(self, observations: Sequence[Observation]) -> None:
        for o in observations:
            check_outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)
            self._place(o)


# What a user sets of the contextual policy, and how it is built from that.


class ContextualOptions(Options, frozen=True, kw_only=True):
    """Options of the contextual policy.

    Attributes:
        alpha, ridge, query_ridge, detail_ridge, caution: see ContextualSettings.
        query_rank: Length of z_q without its constant: the surface counts, and two more directions.
    """

    alpha: float = 0.05
    ridge: float = 3.0
    query_ridge: float = 30.0
    detail_ridge: float = 300.0
    caution: float = 0.1
    query_rank: int = 11

    def __post_init__(self) -> None:
        """Refuse numbers it cannot run with."""
        super().__post_init__()
        self.not_negative("alpha", "caution")
        self.positive("ridge", "query_ridge", "detail_ridge")
        for name in ("action_features", "interactions"):
            if getattr(self, name) != Options.__struct_defaults__[Options.__struct_fields__.index(name)]:
                raise ValueError(f"{name} does not apply to the contextual policy; leave it out")


@policy("contextual", ContextualOptions)
def _contextual(options: ContextualOptions, on: Inputs) -> Policy:
    features = FeatureSettings(
        query_dim=on.query_dim + len(COUNTS),
        action_dim=on.action_dim,
        query_rank=options.query_rank,
        interaction_scale=options.interaction_scale,
        basis_seed=options.basis_seed,
    )
    settings = ContextualSettings(
        alpha=options.alpha,
        ridge=options.ridge,
        query_ridge=options.query_ridge,
        detail_ridge=options.detail_ridge,
        caution=options.caution,
        encoder=on.encoder,
    )
    return Contextual(Design(features), settings)
