"""Every policy's cost at equal accuracy on a world's live questions, and the numbers in the paper's Figure 1.

Figure 1 shows what the joint space of model and search gains over either alone. Each space may mix its configurations
at random. The mix is chosen on history and judged on the live questions. Choosing it on the live questions themselves
would favour the largest space, because the best of 168 configurations benefits more from chance than the best of six.
"""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from agents.bandit.features import COUNTS
from agents.bandit.policy import Objective
from agents.bandit.prior import begin
from experiments.contenders import (
    ALL,
    Fitted,
    OnlineRidge,
    Usual,
    best_arms,
    in_place,
    solved_prices,
    with_prior,
)
from experiments.hindsight import ridge_in_hindsight
from experiments.journal import ROOT, Game, Journal, code_digest
from experiments.loop import WARM_UP, FeedbackChannel, Stage, Trial, stream
from experiments.outcomes import BanditWorld, OutcomeError
from experiments.runs import Scope, outcomes_digest, tidy
from experiments.yardstick import SHARES, Points, Yardstick, area, halves, hull, is_history, split

WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)  # w₃
PRICES = (
    0.0,
    *(2.0**k for k in range(-8, 9)),
)  # λ, in accuracy (0 to 1) per mean cost of the best arm on history
ENOUGH = 12  # number of prices; with fewer, a mix may lack a point that it needs
LEARNT = 2_000  # number of rounds on history, which are not judged
FEWEST = 10  # minimum number of history questions, and of live questions


@dataclass(frozen=True)
class Player:
    """One row of the table.

    Attributes:
        policy: The policy's name in `contenders`.
        warm_up: The number of warm-up rounds.
        after_history: Whether it first learns on history, from its own choices.
        prior: Whether it starts from a prior made from history.
        linear: Whether its objectives are prices of linear cost and its embeddings include surface counts.
        context: Whether it also sees the questions' categories.
    """

    policy: str
    warm_up: int = WARM_UP
    after_history: bool = False
    prior: bool = False
    linear: bool = False
    context: bool = False


HINDSIGHT = "ridge_in_hindsight"
"""Row of the ridge fitted on the outcomes of every arm (`hindsight.py`). It is not an upper bound."""

WITH_CONTEXT = "_with_context"
"""Suffix for the rows that see the questions' categories."""

STATIC, ONLINE, PARETO = "ridge_from_history", "ridge_online", "paretobandit"
SIMPLEST: Mapping[str, Player] = {
    STATIC: Player(STATIC, warm_up=0, linear=True, prior=True),
    ONLINE: Player(ONLINE, warm_up=0, linear=True, prior=True),
}
PLAYERS: Mapping[str, Player] = {
    **SIMPLEST,
    "random": Player("random"),
    "greedy": Player("greedy"),
    "knn": Player("knn"),
    "ts": Player("ts"),
    "uniscale": Player("uniscale"),
    "uniscale_no_warm_up": Player("uniscale", warm_up=0),
    "default": Player("default", warm_up=0, linear=True),
    "default_with_prior": Player("default", warm_up=0, linear=True, prior=True),
}
AFTER_HISTORY: Mapping[str, Player] = {
    "uniscale_after_history": Player("uniscale", after_history=True),
    "default_after_history": Player("default", linear=True, after_history=True),
}


ELSEWHERE: Mapping[str, Player] = {PARETO: Player(PARETO, warm_up=0, linear=True, prior=True)}
"""ParetoBandit, a third-party learner. It runs only if given an interpreter that has its package installed."""
RIDGES = ("experiments/contenders.py", "experiments/ridge.py")
APART: Mapping[str, tuple[str, ...]] = {
    STATIC: RIDGES,
    ONLINE: RIDGES,
    PARETO: ("experiments/paretobandit.py",),
}
"""The rows that do not run our policies, and the files that their choices depend on."""
POLICIES = (
    "agents/bandit",
    "experiments/contenders.py",
    "experiments/prior.py",
    "experiments/loop.py",
    "experiments/outcomes.py",
)
"""The files that all other rows' choices depend on. If one changes, these rows' journal entries are ignored."""


@dataclass(frozen=True)
class Terms:
    """The terms of the comparison: its history, its questions and its prices.

    Attributes:
        history: The number of history questions that a row learns from, redrawn in each order; None for all.
        live: The approximate number of live questions to ask, chosen by a hash of their ids; None for all.
        prices: The number of prices, placed according to history; None or eighteen for the fixed `PRICES`.
        half: If given, history is split into two halves; this one is judged, and the other one serves as history. None
            judges the live questions.
        batch: Number of queries per batch of decisions.
        hindsight: Whether to include the ridge in hindsight, and those that also know the family or the level.
        paretobandit: An interpreter with ParetoBandit's package; None omits its row.
        context: The category that the rows `…_with_context` also see (`BanditWorld.with_context`); None omits them.
        usual: Usual variances to replace the shipped ones; None keeps the shipped ones.
        journal: Games that have already been played.
    """

    history: int | None = None
    live: int | None = None
    prices: int | None = None
    half: int | None = None
    batch: int = 1
    hindsight: bool = True
    paretobandit: Path | None = None
    context: str | None = None
    usual: Usual | None = None
    journal: Journal = field(default_factory=Journal)

    def split(self, question_ids: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the indices of all history questions, and of the questions to judge."""
        past, now = split(question_ids) if self.half is None else halves(question_ids, self.half)
        if self.live is not None and self.live < len(now):
            now = [q for q in now if is_history(f"first/{question_ids[q]}", self.live / len(now))]
        return past, now

    def drawn(self, history: Sequence[int], seed: int) -> list[int]:
        """Return the history questions that a row learns from, in the order given by this seed.

        Raises:
            OutcomeError: History has fewer questions than requested.
        """
        if self.history is None:
            return list(history)
        if self.history > len(history):
            why = f"asks for more than the {len(history)} questions of history; give at most as many, or leave it out"
            raise OutcomeError(f"--history {self.history}: {why}")
        chosen = np.random.default_rng([seed, 9]).choice(history, self.history, replace=False)
        return sorted(int(each) for each in chosen)


@dataclass(frozen=True)
class Frontier:
    """Tables, and the points to draw in the figure: (accuracies, costs) for each row and for the arms."""

    tables: dict[str, Any] = field(default_factory=dict)
    points: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)


def frontier(
    world: BanditWorld,
    scope: Scope,
    players: Mapping[str, Player] | None = None,
    terms: Terms | None = None,
) -> Frontier:
    """Return every policy's cost at equal accuracy; empty if the world has too few questions to split.

    Args:
        world: The world, with all its arms available.
        scope: How much to run; its `more_seeds` determine the orders.
        players: The rows in addition to the fixed mix and the ridge in hindsight. By default, these are the rows that
            learn only on the live questions or start from a prior and, in a whole run, also those that first learn on
            history.
        terms: Terms of the comparison; by default a third of the questions is history, and all others are asked.
    """
    o, terms = world.outcomes, terms or Terms()
    history, live = terms.split([each.question_id for each in o.questions])
    if len(history) < FEWEST or len(live) < FEWEST:
        return Frontier()
    past = Points(o.correct[:, history].mean(axis=0).T, o.cost[:, history].mean(axis=0).T)
    arms = Points(o.correct[:, live].mean(axis=0).T, o.cost[:, live].mean(axis=0).T)
    best = most_accurate(past)
    yardstick = Yardstick(arms, best)
    corners = corners_of(past)
    points = {"fixed_mix_from_history": arms.of(corners)}
    rows = {"fixed_mix_from_history": yardstick.judge(points["fixed_mix_from_history"])}
    if players is None:
        players = {**PLAYERS, **AFTER_HISTORY} if scope.whole else PLAYERS
    if terms.context is not None:
        twins = {
            name + WITH_CONTEXT: replace(each, context=True) for name, each in players.items() if each.linear
        }
        players = {**players, **twins}
    if terms.paretobandit is not None:
        players = {**players, **ELSEWHERE}
    table = Table(world, history, live, best, scope, terms)
    played: dict[str, Sequence[Points]] = {}
    for name, player in players.items():
        scope.say(f"frontier of {o.name}: {name}")
        orders = played[name] = table.played(name, player)
        points[name] = Points(
            np.mean([each.accuracy for each in orders], axis=0),
            np.mean([each.cost for each in orders], axis=0),
        )
        rows[name] = yardstick.judge(points[name], orders)
    kinds: dict[str, str] = {}
    for name, told in ({HINDSIGHT: None, **_known(world)} if terms.hindsight else {}).items():
        scope.say(f"frontier of {o.name}: {name}")
        found = ridge_in_hindsight(world, history, live, yardstick, told=told)
        points[name], kinds[name] = found.points, found.kind
        rows[name] = yardstick.judge(found.points)
    about = {
        "history": len(history),
        "learnt_from": len(terms.drawn(history, 0)),
        "live": len(live),
        "orders": len(scope.more_seeds),
        "prices": len(table.prices),
        "batch": terms.batch,
        "best_on_history": o.arms[best].arm_id,
        "its_accuracy": float(yardstick.aims[0]),
        "its_cost": float(arms.cost[best].mean()),
        "dropped_targets": ", ".join(f"{q:g}" for q in SHARES if q not in yardstick.shares) or "none",
        **{f"kind_of_{name}": kind for name, kind in kinds.items()},
    }
    tables = {
        "frontier": rows,
        "aiq": {name: row["aiq"] for name, row in rows.items()},
        "frontier_of": about,
    }
    if len(table.prices) < ENOUGH:
        tables["of_few_prices"] = {name: yardstick.over_prices(points[name], rows[name]) for name in players}
    if STATIC in points:
        tables["against_ridge_from_history"] = {
            name: yardstick.against(played[name], played[STATIC]) for name in players if name != STATIC
        }
    if terms.context is not None:
        tables["against_text_alone"] = {
            name: yardstick.against(played[name], played[name.removesuffix(WITH_CONTEXT)])
            for name, player in players.items()
            if player.context
        }
    if len(table.prices) < ENOUGH:
        for name, found in tables.get("against_ridge_from_history", {}).items():
            yardstick.over_prices_against(points[name], points[STATIC], found)
        for name, found in tables.get("against_text_alone", {}).items():
            yardstick.over_prices_against(points[name], points[name.removesuffix(WITH_CONTEXT)], found)
    means = {
        name: (p.accuracy.mean(axis=1).tolist(), p.cost.mean(axis=1).tolist()) for name, p in points.items()
    }
    means["arms"] = (arms.accuracy.mean(axis=1).tolist(), arms.cost.mean(axis=1).tolist())
    return Frontier({name: tidied(table) for name, table in tables.items()}, means)


def priced(world: BanditWorld, weight: float) -> Objective:
    """Return the paper's objective with this weight for cost; correctness and score share the rest."""
    return Objective((1 - weight) / 2, (1 - weight) / 2, weight, *world.bounds)


def tidied(value: Any) -> Any:
    """Round nested figures to nine digits, because the last bits of a sum depend on the machine."""
    if isinstance(value, Mapping):
        return {name: tidied(each) for name, each in value.items()}
    return tidy({"": value})[""] if isinstance(value, float) else value


def most_accurate(points: Points) -> int:
    """Return the most accurate point; ties go to the cheaper one."""
    accuracy, cost = points.accuracy.mean(axis=1), points.cost.mean(axis=1)
    return int(np.lexsort((cost, -accuracy))[0])


def corners_of(points: Points) -> list[int]:
    """Return the arms that make up the cheapest mixes."""
    accuracy, cost = points.accuracy.mean(axis=1), points.cost.mean(axis=1)
    kept = set(zip(*(each.tolist() for each in hull(accuracy, cost)), strict=True))
    return [i for i, pair in enumerate(zip(accuracy.tolist(), cost.tolist(), strict=True)) if pair in kept]


def _known(world: BanditWorld) -> dict[str, list[str]]:
    """Return what else a ridge in hindsight may know: each question's family and level, if they vary and differ."""
    asked = world.outcomes.questions
    families, levels = [each.family for each in asked], [each.level for each in asked]
    found = {
        f"{HINDSIGHT}_knowing_family": families,
        f"{HINDSIGHT}_knowing_level": levels if levels != families else [],
    }
    return {name: told for name, told in found.items() if len(set(told)) > 1}


@dataclass(frozen=True)
class _Task:
    """The games of one row in one order, and the questions that the row may use."""

    world: BanditWorld
    player: Player
    history: tuple[int, ...]
    live: tuple[int, ...]
    seed: int
    objectives: tuple[Objective, ...]
    prior: bytes
    batch: int
    paretobandit: Path | None = None
    usual: Usual | None = None

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the question for every round: first any from history, which are not judged, then the live ones."""
        rng = np.random.default_rng([self.seed, 7])
        before = rng.choice(self.history, size=LEARNT).tolist() if self.player.after_history else []
        return (*before, *rng.permutation(self.live).tolist())

    @cached_property
    def sample(self) -> np.ndarray:
        """Return the recorded sample realised by each question and arm, shape (Q, A)."""
        o = self.world.outcomes
        shape = (len(o.questions), len(o.arms))
        return np.random.default_rng([self.seed, 1]).integers(o.samples, size=shape)

    def points(self, games: Sequence[Sequence[int]], of: np.ndarray | None = None) -> Points:
        """Return the accuracy (or the value `of` each arm) and cost of the arms chosen in the live rounds."""
        o, questions = self.world.outcomes, np.array(self.order[-len(self.live) :])
        places = np.searchsorted(self.live, questions)  # the live questions are sorted
        accuracy, cost = np.empty((len(games), len(self.live))), np.empty((len(games), len(self.live)))
        for k, arms in enumerate(games):
            realised = (self.sample[questions, list(arms)], questions, list(arms))
            accuracy[k, places] = o.correct[realised] if of is None else of[list(arms)]
            cost[k, places] = np.exp(o.log_cost[realised])
        return Points(accuracy, cost)


class Table:
    """The games of one table of outcomes under given terms."""

    def __init__(
        self,
        world: BanditWorld,
        history: Sequence[int],
        live: Sequence[int],
        best: int,
        scope: Scope,
        terms: Terms,
    ) -> None:
        self._plain = world.lean()
        self._counted = self._plain.with_counts()
        self._with_context = self._counted
        if terms.context is not None:
            self._with_context = self._counted.with_context(terms.context, history)
        self._history, self._live, self._scope, self._terms = list(history), list(live), scope, terms
        self._unit = float(world.outcomes.cost[:, history, best].mean())
        split_so = f"{terms.half}/{terms.live}"
        self._digest = hashlib.sha256(f"{outcomes_digest(world)}/{split_so}".encode()).hexdigest()[:16]
        self._last_prior: tuple[tuple[int, ...], bool, bytes] | None = None
        self._code = {name: code_digest(*files) for name, files in APART.items()}
        self._policies = code_digest(*POLICIES) + (
            "" if terms.usual is None else f"/{sorted(terms.usual.items())}"
        )
        self.prices = (
            [price / self._unit for price in PRICES]
            if terms.prices in (None, len(PRICES))
            else prices(Fitted.of(self._counted, history), best, terms.prices)
        )

    def played(self, name: str, player: Player, of: np.ndarray | None = None) -> list[Points]:
        """Return a row's points in each order of the live questions, playing the games that the journal lacks.

        Args:
            name: The row's name.
            player: The row.
            of: A value of each arm in place of correctness; it does not affect what is played.
        """
        journal, objectives = self._terms.journal, self._objectives(player)
        wanted = {
            seed: [self._game(name, player, seed, each) for each in objectives]
            for seed in self._scope.more_seeds
        }
        for task, found in self._played(player, wanted, objectives):
            for objective, arms in zip(task.objectives, found, strict=True):
                journal.keep(self._game(name, player, task.seed, objective), arms)
        return [
            self._task(player, seed, ()).points([journal.games[game] for game in games], of)
            for seed, games in wanted.items()
        ]

    def _played(
        self, player: Player, wanted: Mapping[int, Sequence[Game]], objectives: Sequence[Objective]
    ) -> Iterator[tuple[_Task, list[list[int]]]]:
        """Play the games missing from the journal; yield them per order, or one by one without worker processes."""
        held = self._terms.journal.games
        tasks: list[_Task] = []
        for seed, games in wanted.items():
            left = tuple(each for each, game in zip(objectives, games, strict=True) if game not in held)
            if not left:
                continue
            task = self._task(player, seed, left)
            if self._scope.pool is not None:
                tasks.append(task)
            elif player.policy in APART:
                yield task, _play(task)
            else:
                for each in left:
                    yield (one := replace(task, objectives=(each,))), _play(one)
        if self._scope.pool is not None:
            yield from zip(tasks, self._scope.pool.map(_play, tasks), strict=True)

    def _game(self, name: str, player: Player, seed: int, objective: Objective) -> Game:
        terms = self._terms
        learns = player.prior or player.after_history
        history = "" if not learns else "third" if terms.history is None else str(terms.history)
        price = objective.shadow_price * self._unit if player.linear else objective.cost
        batch = 1 if player.policy in APART else terms.batch
        code = self._code.get(player.policy, self._policies)
        name = f"{name}: {terms.context}" if player.context else name
        return Game(self._digest, name, history, seed, float(f"{price:.6g}"), batch, code)

    def _task(self, player: Player, seed: int, objectives: tuple[Objective, ...]) -> _Task:
        world = self._counted if player.linear else self._plain
        world = self._with_context if player.context else world
        history, live, prior = self._terms.drawn(self._history, seed), self._live, b""
        if player.prior and objectives and player.policy not in APART:
            prior = self._prior(tuple(history), world)
        if not player.after_history and player.policy not in APART:
            world, history, live = world.of_questions(live), [], list(range(len(live)))
        if not player.linear:
            world = world.spanned()
        terms = self._terms
        return _Task(
            world,
            player,
            tuple(history),
            tuple(live),
            seed,
            objectives,
            prior,
            terms.batch,
            terms.paretobandit,
            terms.usual,
        )

    def _prior(self, history: tuple[int, ...], world: BanditWorld) -> bytes:
        shown = bool(world.categories)
        if self._last_prior is None or self._last_prior[:2] != (history, shown):
            with in_place(self._terms.usual):
                self._last_prior = history, shown, with_prior(world, history)
        return self._last_prior[2]

    def _objectives(self, player: Player) -> list[Objective]:
        if player.policy == "random":
            return [priced(self._plain, 0.0)]
        if player.linear:
            return [
                Objective(1.0, 0.0, 0.0, *self._plain.bounds, shadow_price=price) for price in self.prices
            ]
        return [priced(self._plain, weight) for weight in WEIGHTS]


def prices(fitted: Fitted, best: int, count: int) -> list[float]:
    """Return 0 and prices per unit of cost that cover the targets, as estimated on history.

    They cover the prices at which a router cross-fitted on history reaches 98, 95, 90 and 85 % of the best arm's
    accuracy on history, and extend slightly beyond these on either side.

    Args:
        fitted: The regressions, fitted on all of history.
        best: The arm that is most accurate on history.
        count: The number of prices; with fewer than six, 0 and the extensions are omitted.
    """
    unit = float(np.exp(fitted.log_cost[list(fitted.history), best]).mean())
    found = np.maximum(solved_prices(fitted, best, (0.98, 0.95, 0.90, 0.85)), PRICES[1] / unit)
    knots = np.log([found[0] / 8, *found[:3], 2 * found[3]])
    few = count < len(knots) + 1
    at = np.linspace(0.5, 3.0, count) if few else np.linspace(0.0, 4.0, count - 1)
    return [*([] if few else [0.0]), *np.exp(np.interp(at, range(len(knots)), knots)).tolist()]


def _play(task: _Task) -> list[list[int]]:
    """Return the arm chosen in every live round under each objective."""
    if task.player.policy in APART:
        return _elsewhere(task) if task.player.policy == PARETO else _routed(task)
    stages = [{1: Stage(tuple(range(task.sample.shape[1])), objective)} for objective in task.objectives]
    games = []
    for stage in stages:
        trial = Trial(
            task.world, task.seed, task.order, task.sample, stage, FeedbackChannel(), task.player.warm_up
        )
        with in_place(task.usual):
            policy = ALL[task.player.policy](task.world, task.seed)
            if task.prior:
                begin(policy, task.prior, task.world.vectors)
            games.append(stream(policy, trial, task.batch)[-len(task.live) :])
    return games


def _routed(task: _Task) -> list[list[int]]:
    fitted = Fitted.of(task.world, task.history)
    if task.player.policy == STATIC:
        accuracy, cost = fitted.predicted(list(task.order))
        return [best_arms(accuracy, cost, objective.shadow_price) for objective in task.objectives]
    o = task.world.outcomes

    def outcome(question: int, arm: int) -> tuple[float, float]:
        place = (task.sample[question, arm], question, arm)
        return float(o.correct[place]), float(o.log_cost[place])

    online = OnlineRidge(fitted)
    return [online.play(task.order, objective.shadow_price, outcome) for objective in task.objectives]


def _elsewhere(task: _Task) -> list[list[int]]:
    o, history = task.world.outcomes, list(task.history)
    q, a = np.indices(task.sample.shape)
    assert task.paretobandit is not None
    with tempfile.TemporaryDirectory() as folder:
        games, arms = Path(folder, "games.npz"), Path(folder, "arms.npy")
        np.savez(
            games,
            vectors=task.world.queries[:, : -len(COUNTS)],
            history=np.array(history),
            history_correct=o.correct.mean(axis=0)[history],
            history_cost=o.cost.mean(axis=0)[history],
            order=np.array(task.order),
            correct=o.correct[task.sample, q, a],
            prices=np.array([objective.shadow_price for objective in task.objectives]),
            seed=task.seed,
        )
        script = ROOT / "experiments" / "paretobandit.py"
        subprocess.run([task.paretobandit, script, games, arms], check=True)
        found: list[list[int]] = np.load(arms).tolist()
    return found


SPACES = ("tts", "routing", "uis")


def joint_frontier(worlds: Mapping[str, BanditWorld]) -> dict[str, Any]:
    """Return the frontier of each scenario's mixes, and the joint space's gain over it.

    `accuracy` belongs to the configuration that is most accurate on history. `area` is the mean accuracy of the
    cheapest mixes over the logarithm of the cost, in percent, from the joint space's cheapest configuration to its most
    accurate one. `uis_gains_points` is the joint space's area minus the scenario's, paired by question.
    `uis_cost_ratio` is the joint space's cost at 90, 95 and 98 % of the scenario's accuracy, relative to the cost of
    the scenario's cheapest mix.

    Args:
        worlds: Worlds keyed by scenario; the result is empty unless they include `uis`, `routing` and `tts`.
    """
    if any(name not in worlds for name in SPACES):
        return {}
    history, live = split([each.question_id for each in worlds["uis"].outcomes.questions])
    if not history or not live:
        return {}
    past = {name: points_of(worlds[name], history) for name in SPACES}
    now = {name: points_of(worlds[name], live) for name in SPACES}
    mixes = {name: now[name].of(corners_of(past[name])) for name in SPACES}
    joint = Yardstick(now["uis"], most_accurate(past["uis"]))
    areas = {
        name: np.array(
            [100 * area(hull(a, c), *joint.span) for a, c in zip(*mix.means(joint.weights), strict=True)]
        )
        for name, mix in mixes.items()
    }
    table = {}
    for name in SPACES:
        own = Yardstick(now[name], most_accurate(past[name]))
        table[name] = {
            "configurations": len(now[name].accuracy),
            "accuracy": _interval(100 * own.aims),
            "area": _interval(areas[name]),
            "uis_gains_points": _interval(areas["uis"] - areas[name]) if name != "uis" else None,
            "uis_cost_ratio": own.judge(mixes["uis"])["mean_cost_ratio"] if name != "uis" else None,
        }
    found: dict[str, Any] = tidied(table)
    return found


def points_of(world: BanditWorld, questions: list[int]) -> Points:
    """Return every arm's accuracy and cost on some questions, averaged over samples."""
    o = world.outcomes
    return Points(o.correct[:, questions].mean(axis=0).T, o.cost[:, questions].mean(axis=0).T)


def _interval(values: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return {"mean": float(values[0]), "low": float(low), "high": float(high)}
