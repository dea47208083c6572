"""A prior from what users have: logged decisions, one configuration each; bad rows are named."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from agents.bandit.contextual import Contextual
from agents.bandit.learner import values
from agents.bandit.prior import begin
from agents.bandit.registry import build_policy
from agents.catalogue.file import load_catalogue
from agents.embedding import encoder_id
from agents.encoders import HashedEncoder
from experiments.outcomes import OutcomeError
from experiments.prior import prior_of_log
from streams.services.decider import action_vectors

CATALOGUE = load_catalogue(Path(__file__).parents[2] / "infra" / "catalogue" / "mini.yaml")
ENCODER = HashedEncoder(16)


def log(path: Path, count: int = 80, **changes: Any) -> Path:
    rng = random.Random(0)
    rows = []
    for n in range(count):
        model = rng.choice(CATALOGUE.model_names[:3])
        row = {"text": f"What is {n} + {n % 7}?", "action": f"{model}/1/1/1", "correct": rng.randint(0, 1)}
        rows.append(row | {"cost": rng.uniform(1e9, 2e9), "propensity": 1 / 3})
    rows[5] |= changes
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_log_makes_a_prior_that_the_deployment_takes(tmp_path: Path) -> None:
    prior, questions = prior_of_log(log(tmp_path / "log.jsonl"), ENCODER, CATALOGUE, {})
    assert questions == 80
    policy = build_policy("contextual", query_dim=16, action_dim=16, encoder=encoder_id(ENCODER))
    assert isinstance(policy, Contextual)
    # Half of the models never ran, and no action was wide: all are on offer, known by size and shape.
    actions = action_vectors(CATALOGUE, ENCODER)
    begin(policy, prior, actions)
    policy.offer(actions)
    assert sum(policy.features.active) == len(actions) == 28 * len(CATALOGUE.model_names)
    assert policy.estimates.right.outcomes == pytest.approx(80.0)
    assert values(prior)["pricing"] == CATALOGUE.cost_basis
    again, _ = prior_of_log(log(tmp_path / "again.jsonl"), ENCODER, CATALOGUE, {})
    assert again == prior


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"action": "gpt/1/1/1"}, r"row 6: model 'gpt' is not in the catalogue \(mini"),
        ({"action": "mini"}, "row 6: needs text, action"),
        ({"cost": 0}, "row 6: cost is 0.0; give what the search cost"),
        ({"correct": "yes"}, "row 6: needs text, action"),
        ({"text": None}, "row 6: text is None; give what was asked"),
        ({"text": " "}, "row 6: text is ' '; give what was asked"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(OutcomeError, match=why):
        prior_of_log(log(tmp_path / "log.jsonl", **changes), ENCODER, CATALOGUE, {})


def test_an_empty_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(OutcomeError, match="holds no row"):
        prior_of_log(tmp_path / "log.jsonl", ENCODER, CATALOGUE, {})
