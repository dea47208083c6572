"""Settings are parsed once and refuse what cannot work, naming the field."""

import re
from pathlib import Path

import pytest

from streams.settings import SECRETS, KafkaSettings, Settings, SettingsError, variable


def test_environment_gives_settings_and_settings_give_the_environment_back() -> None:
    environ = {
        "UNISCALE_BOOTSTRAP": "a:1,b:2",
        "UNISCALE_MAX_IN_FLIGHT": "7",
        "UNISCALE_SESSION_TIMEOUT_S": "6",
        "PATH": "x",
    }
    settings = Settings.from_env(environ)
    assert (settings.kafka.bootstrap, settings.queries.max_in_flight, settings.kafka.session_timeout_s) == (
        "a:1,b:2",
        7,
        6.0,
    )
    assert Settings.from_env(settings.environ()) == settings


def test_flags_override_the_environment_and_absent_flags_do_not() -> None:
    settings = Settings.from_env({"UNISCALE_SEED": "5", "UNISCALE_WARM_UP": "9"}, seed=6, warm_up=None)
    assert (settings.policy.seed, settings.policy.warm_up) == (6, 9)


FILE = """
name: mine
settings:
  bootstrap: "kafka:9092"
  policy: linucb
  policy_options: {alpha: 0.5}
  gateway_group_by: [family]
  seed: 7
"""


def test_a_catalogue_s_file_holds_settings_and_the_environment_wins(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    environ = {"UNISCALE_CATALOGUE": str(path), "UNISCALE_POLICY": "contextual", "UNISCALE_SEED": "8"}
    settings = Settings.from_env(environ, seed=9)
    assert (settings.kafka.bootstrap, settings.gateway.group_by) == ("kafka:9092", ("family",))
    assert (settings.policy.name, settings.policy.options, settings.policy.seed) == (
        "contextual",
        {"alpha": 0.5},
        9,
    )
    # A process that is started with them reads the same file: what the environment set back to a default stays so.
    assert Settings.from_env(settings.environ()) == settings


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("sead: 3", "mine.yaml, field settings: UNISCALE_SEAD: there is no such setting"),
        ("seed: many", "mine.yaml, field settings: UNISCALE_SEED: must be a value of type int, is 'many'"),
        ("catalogue: x.yaml", "mine.yaml, field settings.catalogue: is this file"),
    ],
)
def test_a_setting_in_the_file_that_cannot_be_is_refused(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"settings:\n  {line}\n")
    with pytest.raises(SettingsError, match=re.escape(complaint)):
        Settings.from_env({}, catalogue=str(path))


def test_an_empty_variable_leaves_a_setting_to_its_default() -> None:
    assert Settings.from_env({"UNISCALE_WARM_UP": ""}).policy.warm_up is None


NAMES = [
    "bootstrap", "catalogue", "commit_interval_s", "concurrency",
    "device", "early_exit", "encoder", "encoder_dimension",
    "encoder_key", "encoder_model", "encoder_url", "engine_attempts", "engine_key", "engine_keys",
    "engine_threads", "eta", "feedback_wait_s", "gateway_host", "gateway_hosts", "gateway_port",
    "gateway_group_by", "gateway_recent", "gateway_strict", "group_partitions", "heartbeat_grace_s",
    "heartbeat_s",
    "instruction", "join_partitions", "log_level", "max_in_flight", "max_record_bytes", "metrics_port",
    "objective", "offline", "policy", "policy_options", "prefix", "prior", "query_partitions",
    "rebalance_timeout_s", "recorded", "replication", "sasl_mechanism", "sasl_password", "sasl_token_file",
    "sasl_username", "security_protocol", "seed", "send_interval_ms", "session_timeout_s", "snapshot_every",
    "ssl_cafile", "ssl_certfile", "ssl_keyfile", "state_dir", "timeout_s", "verifier_system", "warm_up",
]  # fmt: skip


def test_the_variables_keep_their_names() -> None:
    assert {variable(name) for name in NAMES} <= Settings().variables().keys()


def test_lists_and_objects_are_parsed_and_given_back() -> None:
    environ = {
        "UNISCALE_GATEWAY_HOSTS": "a.example, b.example,",
        "UNISCALE_POLICY_OPTIONS": '{"alpha": 0.5}',
        "UNISCALE_EARLY_EXIT": "false",
        "UNISCALE_GATEWAY_PORT": "81",
    }
    settings = Settings.from_env(environ)
    assert settings.gateway.hosts == ("a.example", "b.example")
    assert (settings.policy.options, settings.executor.early_exit) == ({"alpha": 0.5}, False)
    assert settings == settings.replace(policy_options={"alpha": 0.5}, gateway_port=81)
    assert Settings.from_env(settings.environ()) == settings
    assert settings.environ().keys() == environ.keys()


def test_replacing_checks_what_it_is_given_and_leaves_the_original() -> None:
    settings = Settings(kafka=KafkaSettings(prefix="a."))
    other = settings.replace(prefix="b.", sasl_password="hunter2")
    assert (settings.kafka.prefix, other.kafka.prefix) == ("a.", "b.")
    assert other.replace(prefix="a.", sasl_password="") == settings
    with pytest.raises(SettingsError, match="UNISCALE_REPLICATION: must be at least 1, is 0"):
        settings.replace(replication=0)
    with pytest.raises(SettingsError, match="UNISCALE_REPLICATION: must be at least 1, is 0"):
        KafkaSettings(replication=0)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("UNISCALE_GUARANTEE", "exactly_once", "UNISCALE_GUARANTEE: there is no such setting"),
        ("UNISCALE_MAX_IN_FLIGHT", "0", "UNISCALE_MAX_IN_FLIGHT: must be at least 1, is 0"),
        ("UNISCALE_MAX_IN_FLIGHT", "many", "UNISCALE_MAX_IN_FLIGHT: must be a value of type int, is 'many'"),
        ("UNISCALE_WARM_UP", "few", "UNISCALE_WARM_UP: must be a value of type int, is 'few'"),
        ("UNISCALE_EARLY_EXIT", "maybe", "UNISCALE_EARLY_EXIT: must be a value of type bool, is 'maybe'"),
        (
            "UNISCALE_SECURITY_PROTOCOL",
            "TLS",
            "UNISCALE_SECURITY_PROTOCOL: must be one of PLAINTEXT, .*'TLS'",
        ),
        ("UNISCALE_SECURITY_PROTOCOL", "SASL_SSL", "UNISCALE_SASL_USERNAME: is needed by"),
        ("UNISCALE_ENCODER", "http", "UNISCALE_ENCODER_URL: is needed by UNISCALE_ENCODER=http, e.g. http"),
        ("UNISCALE_TIMEOUT_S", "-1", "UNISCALE_TIMEOUT_S: must be above 0 seconds"),
        ("UNISCALE_MAX_RECORD_BYTES", "100", "UNISCALE_MAX_RECORD_BYTES: must be at least 65536, is 100"),
        ("UNISCALE_DEAD_LETTER_BYTES", "-1", "UNISCALE_DEAD_LETTER_BYTES: must be 0"),
        ("UNISCALE_BOOTSTRAP", ",", "UNISCALE_BOOTSTRAP: must be HOST:PORT"),
        ("UNISCALE_POLICY_OPTIONS", "{", "UNISCALE_POLICY_OPTIONS: must be a JSON object, .*is '{'"),
        ("UNISCALE_POLICY_OPTIONS", "[1]", "UNISCALE_POLICY_OPTIONS: must be a JSON object"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Settings.from_env({name: value})


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_shown_nowhere(name: str) -> None:
    settings = Settings.from_env({}, **{name: "hunter2", "prefix": "x."})
    assert "hunter2" not in repr(settings) + str(settings) + f"{settings}"
    assert "prefix='x.'" in repr(settings)
    assert f"{name.rpartition('_')[2]}=***" in repr(settings)
    assert settings.variables()[variable(name)] == "***"
    assert settings.environ()[variable(name)] == "hunter2", "the processes it starts need it"


def test_what_is_named_like_a_secret_is_one() -> None:
    for name in Settings().variables():
        alike = name.endswith(("_KEY", "_KEYS", "_PASSWORD", "_SECRET", "_TOKEN"))
        assert not alike or name.removeprefix("UNISCALE_").lower() in SECRETS, name
