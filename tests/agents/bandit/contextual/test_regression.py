"""The hierarchical regression: what it predicts and how surely, and the variances that it estimates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agents.bandit.contextual import Contextual, ContextualSettings, Regression
from agents.bandit.contextual_features import ContextualFeatures, QueryTransform
from agents.bandit.features import FeatureSettings
from agents.bandit.history import History, _chosen_ridge, _supervised, _Twins, fit_directions, set_anchors
from agents.bandit.policy import ActionVector, Context
from agents.bandit.posterior import Ridge
from agents.bandit.variances import Evidence, estimated, evidence_of, usual_mean, usual_variance
from tests.support.traffic import DIM, MODELS, Traffic, actions, contextual, learn, teach


def features(models: int = 6, rank: int = 20, widths: tuple[int, ...] = (1,)) -> ContextualFeatures:
    """Models of unknown sizes, a configuration of each width, and directions as if they were learned."""
    made = ContextualFeatures(FeatureSettings(DIM, models, query_rank=rank))
    plain, learned = made.transform, rank - 9
    axes = np.eye(rank, DIM)
    made.transform = QueryTransform(plain.offset, axes, plain.landmarks, 1.0, np.zeros((learned, 0)), learned)
    named, sides = [f"m{i}" for i in range(models)], np.eye(models)
    made.offer([ActionVector(f"{m}/{n}/1/1", m, sides[i], 0.0) for i, m in enumerate(named) for n in widths])
    return made


def plain_features(rank: int, models: int = 4) -> ContextualFeatures:
    """Models of unknown sizes that are described alike, before anything is known."""
    made = ContextualFeatures(FeatureSettings(DIM, 4, query_rank=rank))
    made.offer([ActionVector(f"m{i}/1/1/1", f"m{i}", np.ones(4), 0.0) for i in range(models)])
    return made


def regression(on: ContextualFeatures) -> Regression:
    made = Regression(on, 0, np.array([0.5, 0.5]), 0.2)
    made.arrange()
    return made


def penalties(of: Regression, on: ContextualFeatures) -> np.ndarray:
    """Return σ²/τ² of every column, each named by its feature of the action and its part of z."""
    parts = ["constant"] + ["counts"] * 9 + ["directions"] * (on.rank - 10)
    names = [f"{name.split(' ')[0]} × {part}" for name in on.names for part in parts]
    return np.array([of.noise / of.variances[name] for name in names])


def table(
    on: ContextualFeatures,
    theta: np.ndarray,
    questions: int,
    *,
    whole: bool,
    noise: float = 0.1,
    own: float = 0.0,
    seed: int = 0,
) -> tuple[History, np.ndarray, np.ndarray]:
    """Return a history, z of its questions, and its targets, of coefficients with two noises.

    Args:
        on: The actions.
        theta: The coefficients, shape (D,).
        questions: How many.
        whole: Whether every action answered each question; otherwise one did, drawn at random.
        noise: Standard deviation of an outcome.
        own: Standard deviation of what all outcomes of a question share.
        seed: Of the draws.
    """
    rng, n = np.random.default_rng(seed), len(on.ids)
    z = np.concatenate([np.ones((questions, 1)), rng.normal(size=(questions, on.rank - 1)) / 3], axis=1)
    question = np.repeat(np.arange(questions), n if whole else 1)
    action = np.tile(np.arange(n), questions) if whole else rng.integers(n, size=questions)
    y = on.rows(z[question], action) @ theta + noise * rng.normal(size=len(action))
    y += own * rng.normal(size=questions)[question]
    blank = np.full(len(action), 0.5)
    history = History(np.zeros((questions, DIM)), question, action, blank, blank, blank, np.ones(len(action)))
    return history, z, np.stack([y, y], axis=1)


def drawn(on: ContextualFeatures, variances: dict[str, float], seed: int = 1) -> np.ndarray:
    """Return coefficients drawn from a prior; blocks left out are zero."""
    spread = np.sqrt([variances.get(block, 0.0) for block in on.column_blocks])
    return np.asarray(spread * np.random.default_rng(seed).normal(size=len(spread)))


@pytest.mark.parametrize("sizes", [True, False])
def test_predictions_solve_the_normal_equations_per_block(sizes: bool) -> None:
    policy = contextual(refits=())
    policy.offer(actions() if sizes else actions(tuple((name, 0.0) for name, _ in MODELS)))
    traffic, rows, right, paid = Traffic(), [], [], []
    d, e = policy.features, policy.estimates
    for at in range(60):
        query_id, query, hard = traffic.question()
        action = at % 9
        correct, log_cost = traffic.outcome(d.ids[action], hard)
        learn(policy, Context(query_id, query), d.ids[action], (correct, log_cost), score=0.4)
        rows.append(np.kron(d.sides[action], d.short(query)))
        right.append([correct, 0.4])
        paid.append([log_cost - math.log(d.anchors[action])])
    x, z = np.array(rows), d.short(traffic.question()[1])
    probes = np.array([np.kron(side, z) for side in d.sides])
    for of, targets in ((e.right, np.array(right)), (e.paid, np.array(paid))):
        gram = np.diag(penalties(of, d)) + x.T @ x
        # Coefficients are held towards their usual means, and those are the sizes' alone.
        means = np.zeros(d.dim)
        if sizes:
            means[d.names.index("size") * d.rank] = usual_mean(
                "size", "size × constant", 0 if of is e.right else 1
            )
        theta = means[:, None] + np.linalg.solve(gram, x.T @ (targets - of.centre - (x @ means)[:, None]))
        assert of.predicted(z) == pytest.approx(of.centre + probes @ theta)
        inverse = np.linalg.inv(gram)
        width = np.sqrt(of.noise * np.einsum("nd,de,ne->n", probes, inverse, probes))
        assert of.widths(z, d.sides) == pytest.approx(width)


def test_forecasts_of_many_queries_are_the_predictions_of_each() -> None:
    policy, traffic = contextual(), Traffic()
    policy.offer(actions())
    teach(policy, traffic, 80, in_turn=True)
    z = np.array([policy.features.short(traffic.question()[1]) for _ in range(10)])
    offered = np.array([1, 4, 8])
    found = policy.estimates.forecast(z, offered)
    terms = np.array([policy.estimates.predicted(each)[offered] for each in z])
    assert found.cost == pytest.approx(terms[:, :, 4])
    best = found.accuracy.argmax(axis=1)
    assert (best == terms[:, :, 0].argmax(axis=1)).all()
    assert found.doubt > 0


def test_loosened_coefficient_gains_variance_keeps_value() -> None:
    rng = np.random.default_rng(0)
    ridge = Ridge(np.full(6, 2.0), 2)
    for _ in range(20):
        ridge.add(rng.normal(size=6), rng.normal(size=2))
    half, theta = ridge.half.copy(), ridge.theta.copy()
    ridge.loosen(3, 0.7)
    half[3, 3] += 0.7
    assert ridge.half == pytest.approx(half)
    assert np.tril(ridge.a) == pytest.approx(np.tril(np.linalg.inv(half + np.tril(half, -1).T)))
    assert ridge.theta == pytest.approx(theta)
    ridge.factorise()
    assert ridge.theta == pytest.approx(theta)
    assert ridge.half == pytest.approx(half)


def test_snapshot_of_matrix_halves_restores_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    ridge, other = Ridge(np.full(7, 2.0), 2), Ridge(np.zeros(0), 2)
    for at in range(50):
        ridge.add(rng.normal(size=7), rng.normal(size=2))
        if at % 9 == 0:
            ridge.loosen(at % 7, 0.1)
    arrays = {name: array.copy() for name, array in ridge.snapshot().items()}
    assert arrays["ridge.inverse"].shape == (28,)
    other.restore(arrays, ridge.rows)
    for name in ("half", "b", "theta"):
        assert np.array_equal(getattr(other, name), getattr(ridge, name))
    assert np.array_equal(np.tril(other.a), np.tril(ridge.a))
    x, targets = rng.normal(size=7), rng.normal(size=2)
    for each in (ridge, other):
        each.loosen(2, 0.1)
        each.add(x, targets)
        each.factorise()
    assert {k: v.tobytes() for k, v in other.snapshot().items()} == {
        k: v.tobytes() for k, v in ridge.snapshot().items()
    }


def test_variances_of_blocks_are_found_and_useless_ones_vanish() -> None:
    on = features()
    true = {"one × constant": 0.1, "model × constant": 0.05, "model × directions": 0.1}
    of = regression(on)
    of.replace(*table(on, drawn(on, true), 400, whole=True), math.inf)
    assert of.variances["model × directions"] == pytest.approx(true["model × directions"], rel=0.4)
    for useless in ("model × counts", "one × counts"):
        assert of.variances[useless] < 0.35 * usual_variance(useless, 0)
    assert of.variances["model × counts"] < 0.01 * of.variances["model × directions"]
    assert of.noise == pytest.approx(0.01, rel=0.35)  # held towards what it was before, by twenty outcomes


@pytest.mark.parametrize("whole", [True, False], ids=["tables", "single rows"])
def test_a_history_teaches_the_coefficients_it_was_drawn_from(whole: bool) -> None:
    on = features()
    theta = drawn(on, {"one × constant": 0.1, "model × constant": 0.05, "model × counts": 0.1})
    of = regression(on)
    of.replace(*table(on, theta, 200 if whole else 1500, whole=whole), math.inf)
    _, z, _ = table(on, theta, 50, whole=True, seed=5)
    truth = np.einsum("aj,jr,qr->qa", on.sides, theta.reshape(len(on.names), -1), z)
    found = np.array([of.predicted(each)[:, 0] for each in z])
    assert np.sqrt(np.mean((found - truth) ** 2)) < 0.1 * truth.std()


def test_what_a_question_has_of_its_own_is_a_noise_apart() -> None:
    """Two noises: rows of one question say precisely how actions differ, and not how hard questions are."""
    on = features()
    theta = drawn(on, {"model × constant": 0.05, "model × counts": 0.05})
    together, alone = regression(on), regression(on)
    together.replace(*table(on, theta, 200, whole=True, own=0.5), math.inf)
    alone.replace(*table(on, theta, 1200, whole=False, own=0.5), math.inf)
    for of in (together, alone):
        assert of.noise == pytest.approx(0.1**2 + 0.5**2, rel=0.25)
    z = np.concatenate([[1.0], np.zeros(on.rank - 1)])
    apart = on.sides[:1] - on.sides[1:2]
    assert together.widths(z, apart) < 0.5 * alone.widths(z, apart)
    assert together.widths(z, on.sides).mean() > together.widths(z, apart)[0]


@pytest.mark.parametrize(
    ("whole", "widths", "counts"),
    [(True, (1, 4), [210, 140, 70]), (True, (1,), [140, 70]), (False, (1, 4), [70])],
    ids=["searches", "models", "single rows"],
)
def test_evidence_splits_into_rows_models_and_questions(
    whole: bool, widths: tuple[int, ...], counts: list[int]
) -> None:
    on = features(models=3, rank=9, widths=widths)
    history, z, targets = table(on, drawn(on, {"model × counts": 1.0}), 70, whole=whole)
    found = evidence_of(on, history, z, targets)
    x = np.array([np.kron(on.sides[a], z[q]) for q, a in zip(history.question, history.action, strict=True)])
    rows = np.append(x, targets, axis=1)
    models = history.question * 3 + history.action // len(widths)
    groups, spread = [np.arange(len(rows)), models, history.question], []
    for group in groups:
        means = [rows[group == g].mean(axis=0) * math.sqrt(np.sum(group == g)) for g in np.unique(group)]
        spread.append(np.array(means).T @ np.array(means))
    kinds = [spread[0] - spread[1], spread[1] - spread[2], spread[2]][3 - len(counts) :]
    assert [each.count for each in found] == counts
    for seen, pairs in zip(found, kinds, strict=True):
        assert seen.gram == pytest.approx(pairs[: on.dim, : on.dim], abs=1e-9)
        assert seen.moment == pytest.approx(pairs[: on.dim, on.dim :], abs=1e-9)
        assert seen.square == pytest.approx(pairs[on.dim, on.dim])


def test_what_a_model_makes_of_a_question_is_a_noise_of_its_own() -> None:
    """Searches of one model on one question are not as many outcomes: they say less of models than they seem to."""
    on = features(models=3, widths=(1, 4, 16))
    history, z, targets = table(on, drawn(on, {"model × constant": 0.05}), 300, whole=True)
    shared = 0.5 * np.random.default_rng(9).normal(size=(300, 3))[history.question, history.action // 3]
    of, fooled = regression(on), regression(on)
    of.replace(history, z, targets + shared[:, None], math.inf)
    fooled.replace(history, z, targets + 0.5 * np.random.default_rng(9).normal(size=(2700, 1)), math.inf)
    z0 = np.concatenate([[1.0], np.zeros(on.rank - 1)])
    apart = on.sides[:1] - on.sides[3:4]
    assert of.noise == pytest.approx(0.1**2 + 0.5**2, rel=0.25)
    assert of.widths(z0, apart) > 1.5 * fooled.widths(z0, apart)


def test_without_evidence_the_usual_variances_stay() -> None:
    on = features()
    nothing = Evidence(np.zeros((on.dim, on.dim)), np.zeros((on.dim, 1)), 0.0, 0.0, 0.3)
    found, (noise,) = estimated([nothing], on.column_blocks, 1)
    assert found == pytest.approx({block: usual_variance(block, 1) for block in on.column_blocks})
    assert noise == pytest.approx(0.3)


def test_a_capped_history_predicts_the_same_less_surely() -> None:
    on = features()
    theta = drawn(on, {"one × constant": 0.1, "model × constant": 0.05, "model × counts": 0.1})
    seen = table(on, theta, 400, whole=True)
    full, capped = regression(on), regression(on)
    full.replace(*seen, math.inf)
    capped.replace(*seen, 240.0)
    z = seen[1][0]
    assert capped.predicted(z) == pytest.approx(full.predicted(z))
    assert capped.widths(z, on.sides) == pytest.approx(math.sqrt(10.0) * full.widths(z, on.sides))
    assert (full.outcomes, capped.outcomes) == (2400.0, 240.0)


def test_new_features_change_no_existing_prediction() -> None:
    policy, traffic = contextual(refits=()), Traffic()
    policy.offer(actions())
    teach(policy, traffic, 60, in_turn=True)
    z = policy.features.short(traffic.question()[1])
    before = policy.estimates.predicted(z)
    width = policy.estimates.right.widths(z, policy.features.sides)
    policy.offer([*actions(), ActionVector("new/1/1/1", "new", np.ones(4), 0.0)])
    assert np.array_equal(policy.estimates.predicted(z)[:9], before)
    after = policy.estimates.right.widths(z, policy.features.sides)
    assert after[:9] == pytest.approx(width)
    assert after[9] > width.max()


@pytest.mark.parametrize("models", [4, 12, 40, 60])
def test_with_many_models_directions_replace_counts(models: int) -> None:
    on = plain_features(40, models)
    assert on.rank == 10, "before anything is known, the counts"
    fit_directions(on, *told(on, 60))
    counts = on.transform.parts.count("counts")
    assert on.rank - 1 - counts >= 8, "directions there are always"
    assert counts == {4: 9, 12: 9, 40: 2, 60: 0}[models]
    assert on.rank == 41 if models == 4 else on.rank < 41
    assert len(on.column_blocks) == on.dim == len(on.names) * on.rank


@pytest.mark.parametrize(("questions", "learned"), [(12, False), (DIM, False), (DIM + 1, True)])
def test_directions_need_more_questions_than_dimensions(questions: int, learned: bool) -> None:
    on = plain_features(20)
    history, targets = told(on, questions)
    z = fit_directions(on, history, targets)
    assert ("one × directions" in on.column_blocks) == learned
    assert "one × kernel" in on.column_blocks
    fitted = np.array([on.short(query) for query in history.queries])
    kernel = 10 + on.transform.learned
    assert fitted[:, kernel:] == pytest.approx(z[:, kernel:]), "nothing of an outcome is in them"
    within = np.array_equal(fitted[:, 10:kernel], z[:, 10:kernel])
    assert within != learned, "fitted without the question itself"


@pytest.mark.parametrize("shown", [True, False])
def test_a_question_is_held_out_with_its_twins(shown: bool) -> None:
    rng, (questions, dim) = np.random.default_rng(5), (40, 6)
    inputs = rng.normal(size=(questions, dim))
    inputs[1:4] = inputs[0]  # one text four times, twice in each category
    categories = [("route=b",) if i in (2, 3) else ("route=a",) for i in range(questions)] if shown else ()
    wanted = inputs @ rng.normal(size=(dim, 1)) + 0.5 * rng.normal(size=(questions, 1))
    of_rows, terms = np.zeros(0, int), np.zeros(0)
    history = History(inputs, of_rows, of_rows, terms, terms, terms, terms, categories=categories)
    _, coordinates = _supervised(inputs, [wanted], 1, _Twins(history))
    squares, axes = np.linalg.eigh(inputs.T @ inputs)
    ridge = _chosen_ridge(squares, (inputs @ axes).T @ wanted, wanted)
    others = [{i} for i in range(questions)]
    if shown:
        others[:4] = [{0, 2, 3}, {1, 2, 3}, {2, 0, 1}, {3, 0, 1}]
    told = []
    for i, held_out in enumerate(others):
        rest = [j for j in range(questions) if j not in held_out]
        x, y = inputs[rest], wanted[rest]
        told.append(inputs[i] @ np.linalg.solve(x.T @ x + ridge * np.eye(dim), x.T @ y))
    direction = np.array(told) / coordinates  # one direction: they differ by one factor
    assert direction == pytest.approx(np.full_like(direction, direction[0, 0]))


def test_kernel_features_approximate_similarity() -> None:
    rng = np.random.default_rng(3)
    on = plain_features(30)
    history, targets = told(on, 20)
    z = fit_directions(on, history, targets)[:, 10:]
    distance = np.linalg.norm(history.queries[:, None, :-9] - history.queries[:, :-9], axis=2)
    similarity = np.exp(-on.transform.kappa * distance**2)
    assert np.corrcoef((z @ z.T).ravel(), similarity.ravel())[0, 1] > 0.95
    far = history.queries[0].copy()
    far[:-9] = 9.0 * rng.normal(size=DIM - 9)
    assert np.abs(on.short(far)[10:]).max() < 0.01


def told(on: ContextualFeatures, questions: int) -> tuple[History, np.ndarray]:
    """Return questions with one outcome each, and its targets."""
    rng, n = np.random.default_rng(questions), len(on.ids)
    queries = rng.normal(size=(questions, DIM)).astype(np.float32).astype(np.float64)
    action = rng.integers(n, size=questions)
    right = (queries[:, 0] > 0).astype(float)
    ones = np.ones(questions)
    history = History(queries, np.arange(questions), action, right, right, ones, ones)
    return history, np.stack([right, ones], axis=1)


def test_settings_do_not_change_what_is_learned() -> None:
    states = []
    for settings in (ContextualSettings(), ContextualSettings(alpha=2.0, accuracy_of="best")):
        policy = Contextual(contextual().features, settings)
        policy.offer(actions())
        teach(policy, Traffic(), 60, in_turn=True)
        states.append(policy.state())
    assert states[0] == states[1]


def costs(questions: int, *models: float) -> History:
    """Return questions that every model answered rightly, at its cost."""
    asked, action = np.divmod(np.arange(questions * len(models)), len(models))
    queries, ones = np.random.default_rng(0).normal(size=(questions, DIM)), np.ones(len(asked))
    return History(queries, asked, action, ones, ones, np.log(models)[action], ones)


def test_the_size_of_a_hosted_model_is_read_from_what_it_costs() -> None:
    """Three models cost as cost grows with size: whose size is told, whose is not, and who is not tried yet."""
    made = ContextualFeatures(FeatureSettings(DIM, 4, query_rank=10))
    sizes = {"small": 1e9, "large": 1e11, "hosted": 0.0, "new": 0.0}
    made.offer(
        [ActionVector(f"{name}/1/1/1", name, np.eye(4)[i], sizes[name]) for i, name in enumerate(sizes)]
    )
    size = made.names.index("size")
    assert made.sides[:, size].tolist() == [-1.0, 1.0, 0.0, 0.0]
    for hosted, expected in ((1e10, 0.0), (1e9, -1.0)):
        set_anchors(made, costs(200, 1e9**0.75, 1e11**0.75, hosted**0.75))
        assert made.sides[:, size] == pytest.approx([-1.0, 1.0, expected, 0.0], abs=0.06)  # shrunk a little


def test_without_sizes_the_dearest_model_counts_as_largest() -> None:
    made = features(models=3)
    size = made.names.index("size")
    assert not made.sides[:, size].any()
    set_anchors(made, costs(100, 3.0, 30.0, 300.0))
    assert made.sides[:, size] == pytest.approx([-1.0, 0.0, 1.0], abs=0.02)
