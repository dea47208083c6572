"""A prior from what users have: outcomes of single configurations; bad rows are named."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from agents.bandit.contextual import Contextual
from agents.bandit.features import counts
from agents.bandit.learner import values
from agents.bandit.logged import LogError, LoggedOutcome, logged_outcome, prior_of_log
from agents.bandit.prior import begin
from agents.bandit.registry import build_policy
from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Catalogue
from agents.embedding import encoder_id
from agents.encoders import HashedEncoder
from schemas.prices import Prices
from streams.services.decider import action_vectors

CATALOGUE = load_catalogue(Path(__file__).parents[3] / "infra" / "catalogue" / "mini-six.yaml")
ENCODER = HashedEncoder(16)
USD = """
name: usd
verifier: none
models:
  - name: small
    endpoint: {kind: chat, url: "http://127.0.0.1:1/v1", model: small}
    price: {input: 1.0, output: 4.0}
  - name: large
    endpoint: {kind: chat, url: "http://127.0.0.1:1/v1", model: large}
    price: {input: 5.0, output: 20.0}
"""
ROW: dict[str, Any] = {
    "text": "1 + 1?",
    "action": "mini-2m/1/1/1",
    "correct": 1,
    "cost": 1e9,
    "propensity": 0.5,
}


def policy(catalogue: Catalogue = CATALOGUE) -> Contextual:
    encoder = encoder_id(ENCODER)
    made = build_policy("contextual", query_dim=16, action_dim=16, encoder=encoder, unit=catalogue.unit)
    assert isinstance(made, Contextual)
    return made


def log(catalogue: Catalogue = CATALOGUE, count: int = 80) -> list[LoggedOutcome]:
    rng = random.Random(0)
    return [
        LoggedOutcome(
            text=f"What is {n} + {n % 7}?",
            action=f"{rng.choice(catalogue.model_names[:3])}/1/1/1",
            correct=rng.randint(0, 1),
            cost=rng.uniform(1e9, 2e9),
            propensity=1 / 3,
        )
        for n in range(count)
    ]


def test_a_deployment_starts_from_a_log() -> None:
    prior, questions = prior_of_log(log(), policy(), ENCODER, CATALOGUE)
    assert questions == 80
    fresh = policy()
    # Half of the models never ran, and no action was wide: all are on offer, known by size and shape.
    actions = action_vectors(CATALOGUE, ENCODER)
    begin(fresh, prior, actions)
    fresh.offer(actions)
    assert sum(fresh.features.active) == len(actions) == 28 * len(CATALOGUE.model_names)
    assert fresh.estimates.right.outcomes == pytest.approx(80.0)
    assert values(prior)["pricing"] == CATALOGUE.cost_basis
    assert prior_of_log(log(), policy(), ENCODER, CATALOGUE)[0] == prior


def test_columns_of_a_log_are_learned_as_categories() -> None:
    fields = {"text": "1 + 1?", "action": "small/1/1/1", "correct": 1, "cost": 1e9, "propensity": 1}
    row = logged_outcome({**fields, "route": "code", "user": ""}, "row 1", ["route", "user"])
    assert row.features == ("route=code",)
    with pytest.raises(LogError, match="row 1: has no column 'task'"):
        logged_outcome(fields, "row 1", ["task"])
    rows = [replace(each, features=(f"route={at % 2}",)) for at, each in enumerate(log())]
    prior, questions = prior_of_log(rows, policy(), ENCODER, CATALOGUE)
    fresh = policy()
    fresh.load(prior)
    assert questions == 80
    assert fresh.features.outcomes == {"route=0": 40, "route=1": 40}


def test_prior_in_usd_follows_the_prices_in_force(tmp_path: Path) -> None:
    """Tokens are learned, so that the first decision after a new price already counts with it."""
    path = tmp_path / "usd.yaml"
    path.write_text(USD)
    catalogue = load_catalogue(path)
    rows = [
        replace(each, action="small/1/1/1", cost=0.01, unit="usd", tokens=200, prompt_tokens=50)
        for each in log()
    ]
    prior, _ = prior_of_log(rows, policy(catalogue), ENCODER, catalogue)
    fresh, actions = policy(catalogue), action_vectors(catalogue, ENCODER)
    begin(fresh, prior, actions)
    fresh.offer(actions, {"small": Prices(input=2.0, output=10.0)})
    embedding = np.concatenate([ENCODER.encode([rows[0].text])[0], counts(rows[0].text)])
    (query,) = fresh.features.queries([("q", embedding)])
    cost = fresh.estimates.predicted(fresh.features.short(query))[
        fresh.features.position("q", "small/1/1/1"), -1
    ]
    assert cost == pytest.approx((200 * 10.0 + 50 * 2.0) / 1e6, rel=0.15)
    with pytest.raises(LogError, match="lacks tokens"):
        prior_of_log([replace(rows[0], tokens=None)], policy(catalogue), ENCODER, catalogue)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"action": "mini"}, "row 6: .*mini"),
        ({"cost": 0}, "row 6: cost is 0.0; give the cost of the search"),
        ({"cost": None}, "row 6: .*missing required field `cost`"),
        ({"correct": "yes"}, r"row 6: .*\$.correct"),
        ({"correct": 2}, "row 6: correct is 2.0; give a grade"),
        ({"propensity": 0}, "row 6: propensity is 0.0"),
        ({"text": None}, "row 6: .*missing required field `text`"),
        ({"text": " "}, "row 6: text is ' '; give the question"),
    ],
)
def test_a_bad_row_is_named(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(LogError, match=why):
        logged_outcome({**ROW, **changes}, "row 6")


def test_csv_text_is_read_as_numbers() -> None:
    row = {name: str(value) for name, value in ROW.items()}
    assert logged_outcome({**row, "score": ""}, "row 1") == logged_outcome(ROW, "row 1")


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "no outcome to learn from"),
        (
            [{**ROW, "action": "gpt/1/1/1"}],
            r"model 'gpt' of an outcome is not in the catalogue \(mini.*leave out",
        ),
        ([{**ROW, "unit": "usd"}], "costs 1e.09 usd, but the catalogue counts in eflops"),
    ],
    ids=["empty", "unknown model", "other unit"],
)
def test_a_log_that_does_not_fit_is_refused(rows: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(LogError, match=why):
        prior_of_log([logged_outcome(row, "row 1") for row in rows], policy(), ENCODER, CATALOGUE)
