"""What the settings say of the policy, and what is refused before a record is read."""

from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from agents.bandit.exploration import Explored
from agents.catalogue.file import load_catalogue
from agents.encoders import encoder_of
from schemas.control import CatalogueEntry
from schemas.record import encode
from streams.control_follower import Control
from streams.log.base import ConsumerRecord
from streams.services.decider import check_control_group, policy_of, prior_of, read_prior
from streams.settings import Settings, SettingsError

HASHED = encoder_of(Settings().replace(encoder="hashed").encoder)
MODEL = load_catalogue(Path("infra/catalogue/mini.yaml")).model_names[-1]


def of(**settings: object) -> Settings:
    return Settings().replace(**settings)


@pytest.mark.parametrize("name", ["linucb", "contextual", "random", "sliding-window"])
def test_any_registered_policy_is_deployed_by_name(name: str) -> None:
    assert policy_of(of(policy=name, warm_up=9), HASHED).name == f"explored-{name}"
    assert policy_of(of(policy=name, warm_up=0), HASHED).name == name


def test_learner_computes_on_one_thread() -> None:
    with threadpool_limits(2, user_api="blas"):
        policy_of(of(), HASHED)
        assert {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"} == {1}


def test_only_the_papers_policies_have_a_default_warm_up() -> None:
    assert policy_of(of(policy="contextual"), HASHED).name == "contextual"
    paper = policy_of(of(policy="linucb"), HASHED)
    assert isinstance(paper, Explored)
    assert paper.warm_up == 50


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"policy": "best"}, "policy: 'best' is unknown; choose one of contextual"),
        ({"policy_options": '{"gamma": 0.9}'}, "'gamma' is unknown to policy 'contextual'; choose from"),
        ({"policy_options": '{"alpha": -1}'}, "alpha is -1.0; give"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        policy_of(of(**settings), HASHED)


def grouped(action: str) -> tuple[Settings, Control]:
    """Return the settings and what is in force of a deployment whose control group gets an action."""
    options = f'{{"control_share": 0.05, "control_action": "{action}"}}'
    settings = of(policy_options=options, catalogue="infra/catalogue/mini.yaml", parallelism="all")
    return settings, Control(settings)


def test_a_control_action_must_be_on_offer() -> None:
    check_control_group(*grouped(f"{MODEL}/1/1/1"))
    with pytest.raises(SettingsError, match="control_action: model 'gpt' is not in the space; choose one of"):
        check_control_group(*grouped("gpt/1/1/1"))


def test_removed_control_model_leaves_an_empty_control_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings, control = grouped(f"{MODEL}/1/1/1")
    removal = CatalogueEntry(name=MODEL, op="remove")
    control._on_control(ConsumerRecord("control", 0, 0, 0, removal.key.encode(), encode(removal)))
    check_control_group(settings, control)
    assert f"model '{MODEL}' is not in the space" in caplog.text
    assert "no query is in the control group" in caplog.text


def test_a_prior_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"UNISCALE_PRIOR: .*cannot be read .*make it with `python -m streams prior`"
    ):
        read_prior(tmp_path / "no.bin")


def test_prior_setting_overrides_the_catalogues_prior() -> None:
    named = prior_of(of(catalogue="infra/catalogue/mini.yaml"))
    assert named is not None
    assert named.name == "mini.bin"
    assert named.is_file()
    assert prior_of(of(catalogue="infra/catalogue/qwen3.yaml")) is None
    assert prior_of(of(prior="mine.bin")) == Path("mine.bin")
    assert prior_of(of(prior="none")) is None
