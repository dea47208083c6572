"""Settings are parsed once and refuse what cannot work, naming the field."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from agents.catalogue.file import load_catalogue
from streams.control_follower import Control
from streams.settings import SECRETS, KafkaSettings, Settings, SettingsError, origins, variable
from tests.support.settings_page import page

SETTINGS_PAGE = Path("docs/settings.md")


def test_environment_and_settings_round_trip() -> None:
    environ = {
        "UNISCALE_BOOTSTRAP": "a:1,b:2",
        "UNISCALE_MAX_IN_FLIGHT": "7",
        "UNISCALE_SESSION_TIMEOUT_S": "6",
        "UNISCALE_GATEWAY_HOSTS": "a.example, b.example,",
        "UNISCALE_POLICY_OPTIONS": '{"alpha": 0.5}',
        "UNISCALE_EARLY_EXIT": "false",
        "UNISCALE_GATEWAY_PORT": "81",
    }
    settings = Settings.from_env({**environ, "PATH": "x"})
    assert (settings.kafka.bootstrap, settings.queries.max_in_flight) == ("a:1,b:2", 7)
    assert settings.kafka.session_timeout_s == 6.0
    assert settings.gateway.hosts == ("a.example", "b.example")
    assert (settings.policy.options, settings.executor.early_exit) == ({"alpha": 0.5}, False)
    assert settings == settings.replace(policy_options={"alpha": 0.5}, gateway_port=81)
    assert Settings.from_env(settings.environ()) == settings
    assert settings.environ().keys() == environ.keys()


FILE = """
bootstrap: "kafka:9092"
policy: linucb
policy_options: {alpha: 0.5}
gateway_group_by: [family]
timeout_s: 60
early_exit: false
seed: 7
sasl_password: hunter2
objectives:
  thrifty: {accuracy: 0.9}
"""


def of_file(folder: Path, text: str, environ: Mapping[str, str] = {}) -> Settings:
    """Return the settings of a configuration file, and of an environment besides."""
    (folder / "mine.yaml").write_text(text)
    return Settings.from_env(environ, config=str(folder / "mine.yaml"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    of_file(tmp_path, FILE)
    return tmp_path / "mine.yaml"


def test_flags_override_environment_overrides_file(config: Path) -> None:
    environ = {"UNISCALE_CONFIG": str(config), "UNISCALE_POLICY": "contextual", "UNISCALE_SEED": "8"}
    environ |= {"UNISCALE_WARM_UP": "9"}
    settings = Settings.from_env(environ, seed=9, warm_up=None)
    assert (settings.kafka.bootstrap, settings.gateway.group_by) == ("kafka:9092", ("family",))
    assert (settings.queries.timeout_s, settings.executor.early_exit) == (60.0, False)
    assert settings.queries.own_objectives()["thrifty"].accuracy == 0.9
    policy = settings.policy
    assert (policy.name, policy.options, policy.seed) == ("contextual", {"alpha": 0.5}, 9)
    assert policy.warm_up == 9, "an absent flag says nothing"
    found = origins(environ, {"seed": 9, "prefix": None})
    of = {"BOOTSTRAP": str(config), "POLICY": "environment", "SEED": "command line", "PREFIX": "default"}
    assert {name: found[f"UNISCALE_{name}"] for name in of} == of


def test_every_setting_but_config_may_be_in_the_file(tmp_path: Path) -> None:
    texts = Settings(kafka=KafkaSettings(prefix="x.")).variables()
    names = {name.removeprefix("UNISCALE_").lower(): text for name, text in texts.items()}
    del names["config"]
    settings = of_file(tmp_path, yaml.safe_dump(names))
    assert settings == Settings(config=settings.config, kafka=KafkaSettings(prefix="x."))
    assert origins({}, {"config": settings.config}).keys() == texts.keys()


def test_children_inherit_settings_but_no_file_secrets(config: Path) -> None:
    around = {"UNISCALE_CONFIG": str(config), "UNISCALE_PREFIX": "x.", "UNISCALE_SEED": "8", "PATH": "/bin"}
    settings = Settings.from_env(around, prefix="uniscale.", seed=3, policy="contextual")
    environ = settings.environ(around)
    assert Settings.from_env(environ) == settings, "set back to a default it stays so"
    assert environ["PATH"] == "/bin"
    assert "hunter2" not in environ.values()


def test_the_file_of_the_folder_is_read_where_there_is_one(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(config.parent)
    assert Settings.from_env({}) == Settings()
    config.rename("uniscale.yaml")
    assert Settings.from_env({}).policy.seed == 7
    assert Settings.from_env({"UNISCALE_CONFIG": ""}) == Settings(config="")
    with pytest.raises(
        SettingsError, match=r"other.yaml: cannot be read .* give the path of a configuration"
    ):
        Settings.from_env({}, config="other.yaml")


def test_what_the_file_leaves_out_may_come_from_the_environment(tmp_path: Path) -> None:
    settings = of_file(tmp_path, "security_protocol: SASL_SSL\n", {"UNISCALE_SASL_USERNAME": "me"})
    assert settings.security.sasl_username == "me"


def test_a_catalogue_in_the_file_is_read_from_there(tmp_path: Path) -> None:
    mini = yaml.safe_load(Path("infra/catalogue/mini.yaml").read_text())
    mini |= {"prior": None, "family": str(Path("models/family.json").resolve())}
    said = {"catalogue": mini, "objectives": {"thrifty": {"accuracy": 0.9}}}
    control = Control(of_file(tmp_path, yaml.safe_dump(said)))
    assert control.base.model_names == load_catalogue(Path("infra/catalogue/mini.yaml")).model_names
    assert control.objectives.in_force("thrifty").accuracy == 0.9


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("sead: 3", "mine.yaml: sead: there is no such setting; did you mean 'seed'?"),
        ("seed: many", "mine.yaml: seed: must be a value of type int; got 'many'"),
        ("prefix: 3", "mine.yaml: prefix: must be a value of type str in quotes; got 3"),
        ("sasl_password: 3141", "mine.yaml: sasl_password: must be a value of type str in quotes; got ***"),
        ("gateway_hosts: [1]", "mine.yaml: gateway_hosts: must be a list of texts, or one text with commas"),
        ("policy_options: [1]", "mine.yaml: policy_options: must be a mapping; got [1]"),
        ("policy_options: {1: 2}", "mine.yaml: policy_options: must be a mapping; got {1: 2}"),
        ("policy_options: {alfa: 1}", "mine.yaml: policy_options: 'alfa' is unknown to policy 'contextual'"),
        (
            "policy_options: {alpha: x}",
            "mine.yaml: policy_options: Expected `float`, got `str` - at `$.alpha`",
        ),
        ("replication: 0", "mine.yaml: replication: must be at least 1; got 0"),
        ("config: x.yaml", "mine.yaml: config: is this file"),
        ("objectives: {o: {acuracy: 1}}", "objectives: o.acuracy: is unknown; did you mean 'accuracy'?"),
        (
            "objectives: {o: {weights: {corect: 1}}}",
            "objectives: o.weights.corect: is unknown; did you mean 'correct'?",
        ),
        ("objectives: {o: {accuracy: 2}}", "mine.yaml: objectives: o, field accuracy"),
        ("objectives: {o: {}}", "mine.yaml: objectives: o, field weights: is missing"),
        ("objectives: {o: 3}", "mine.yaml: objectives: o: expected a mapping"),
        ("- seed", "mine.yaml: expected a mapping"),
        ("seed: 3\nseed: 4", "mine.yaml: is not YAML ('seed' appears twice"),
    ],
)
def test_what_cannot_be_in_the_file_is_refused_by_file_and_key(
    tmp_path: Path, line: str, complaint: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(complaint)):
        of_file(tmp_path, f"{line}\n")


def test_a_variable_over_the_file_is_named_when_it_is_at_fault(config: Path) -> None:
    with pytest.raises(SettingsError, match=r"^UNISCALE_SEED: must be"):
        Settings.from_env({"UNISCALE_CONFIG": str(config), "UNISCALE_SEED": "many"})


def test_the_example_in_the_docs_is_a_configuration_file(tmp_path: Path) -> None:
    page = Path("docs/operating.md").read_text(encoding="utf-8")
    settings = of_file(tmp_path, page.split("```yaml\n")[1].split("```")[0])
    assert Control(settings).objectives.default == "thrifty"


def test_an_empty_variable_leaves_a_setting_to_its_default() -> None:
    assert Settings.from_env({"UNISCALE_WARM_UP": ""}).policy.warm_up is None


def test_a_mixed_fleet_waits_an_hour_for_feedback_unless_told() -> None:
    unset, own = Settings().queries, Settings.from_env({"UNISCALE_FEEDBACK_WAIT_S": "0"}).queries
    assert (unset.feedback_waits_s(mixed=True), unset.feedback_waits_s(mixed=False)) == (3600.0, 0.0)
    assert (own.feedback_waits_s(mixed=True), own.feedback_waits_s(mixed=False)) == (0.0, 0.0)


NAMES = [
    "bootstrap", "catalogue", "commit_interval_s", "concurrency", "cut_completes",
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


def test_replace_validates_and_leaves_the_original() -> None:
    settings = Settings(kafka=KafkaSettings(prefix="a."))
    other = settings.replace(prefix="b.", sasl_password="hunter2")
    assert (settings.kafka.prefix, other.kafka.prefix) == ("a.", "b.")
    assert other.replace(prefix="a.", sasl_password="") == settings
    with pytest.raises(SettingsError, match="UNISCALE_REPLICATION: must be at least 1; got 0"):
        settings.replace(replication=0)
    with pytest.raises(SettingsError, match="UNISCALE_REPLICATION: must be at least 1; got 0"):
        KafkaSettings(replication=0)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("UNISCALE_GUARANTEE", "exactly_once", "UNISCALE_GUARANTEE: there is no such setting"),
        ("UNISCALE_MAX_IN_FLIGHT", "0", "UNISCALE_MAX_IN_FLIGHT: must be at least 1; got 0"),
        ("UNISCALE_MAX_IN_FLIGHT", "many", "UNISCALE_MAX_IN_FLIGHT: must be a value of type int; got 'many'"),
        ("UNISCALE_WARM_UP", "few", "UNISCALE_WARM_UP: must be a value of type int; got 'few'"),
        ("UNISCALE_EARLY_EXIT", "maybe", "UNISCALE_EARLY_EXIT: must be a value of type bool; got 'maybe'"),
        (
            "UNISCALE_SECURITY_PROTOCOL",
            "TLS",
            "UNISCALE_SECURITY_PROTOCOL: must be one of PLAINTEXT, .*'TLS'",
        ),
        ("UNISCALE_SECURITY_PROTOCOL", "SASL_SSL", "UNISCALE_SASL_USERNAME: must be set when"),
        (
            "UNISCALE_ENCODER",
            "http",
            "UNISCALE_ENCODER_URL: must be set when UNISCALE_ENCODER=http, e.g. http",
        ),
        ("UNISCALE_TIMEOUT_S", "-1", "UNISCALE_TIMEOUT_S: must be above 0 seconds"),
        ("UNISCALE_TIMEOUT_S", "inf", "UNISCALE_TIMEOUT_S: must be a finite number; got inf"),
        ("UNISCALE_TIMEOUT_S", "1e300", "UNISCALE_TIMEOUT_S: must be at most 21600; got 1e"),
        ("UNISCALE_FEEDBACK_WAIT_S", "nan", "UNISCALE_FEEDBACK_WAIT_S: must be a finite number"),
        ("UNISCALE_FEEDBACK_WAIT_S", "-5", "UNISCALE_FEEDBACK_WAIT_S: must be at least 0"),
        ("UNISCALE_ETA", "0.9", "UNISCALE_ETA: must be at least 1; got 0.9"),
        ("UNISCALE_HEARTBEAT_GRACE_S", "-1", "UNISCALE_HEARTBEAT_GRACE_S: must be at least 0"),
        ("UNISCALE_SESSION_TIMEOUT_S", "1e12", "UNISCALE_SESSION_TIMEOUT_S: must be at most 86400"),
        (
            "UNISCALE_MAX_RECORD_BYTES",
            "999999999999",
            "UNISCALE_MAX_RECORD_BYTES: must be at most 1073741824",
        ),
        ("UNISCALE_GATEWAY_PORT", "99999", "UNISCALE_GATEWAY_PORT: must be at most 65535"),
        ("UNISCALE_METRICS_PORT", "-1", "UNISCALE_METRICS_PORT: must be at least 0"),
        ("UNISCALE_DECIDER_PORT", "-1", "UNISCALE_DECIDER_PORT: must be at least 0"),
        ("UNISCALE_GATEWAY_RECENT", "-1", "UNISCALE_GATEWAY_RECENT: must be at least 1"),
        ("UNISCALE_ENGINE_THREADS", "-3", "UNISCALE_ENGINE_THREADS: must be at least 0"),
        ("UNISCALE_WARM_UP", "-4", "UNISCALE_WARM_UP: must be at least 0"),
        ("UNISCALE_PREFIX", "a b/", "UNISCALE_PREFIX: may contain only letters, digits"),
        ("UNISCALE_LOG_LEVEL", "loud", "UNISCALE_LOG_LEVEL: must be one of DEBUG, INFO, .*'LOUD'"),
        ("UNISCALE_MAX_RECORD_BYTES", "100", "UNISCALE_MAX_RECORD_BYTES: must be at least 65536; got 100"),
        ("UNISCALE_DEAD_LETTER_BYTES", "-1", "UNISCALE_DEAD_LETTER_BYTES: must be 0"),
        ("UNISCALE_BOOTSTRAP", ",", "UNISCALE_BOOTSTRAP: must be HOST:PORT"),
        ("UNISCALE_POLICY_OPTIONS", "{", "UNISCALE_POLICY_OPTIONS: must be a JSON object, .*truncated"),
        ("UNISCALE_POLICY_OPTIONS", "[1]", "UNISCALE_POLICY_OPTIONS: must be a JSON object"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Settings.from_env({name: value})


SERVICE_LINKS = {
    # A Service `uniscale-api` with a port named `http`, as the kubelet hands it to every pod of the namespace.
    "UNISCALE_API_SERVICE_HOST": "10.96.0.7",
    "UNISCALE_API_SERVICE_PORT": "80",
    "UNISCALE_API_SERVICE_PORT_HTTP": "80",
    "UNISCALE_API_PORT": "tcp://10.96.0.7:80",
    "UNISCALE_API_PORT_80_TCP": "tcp://10.96.0.7:80",
    "UNISCALE_API_PORT_80_TCP_PROTO": "tcp",
    "UNISCALE_API_PORT_80_TCP_PORT": "80",
    "UNISCALE_API_PORT_80_TCP_ADDR": "10.96.0.7",
    # Of a Service `uniscale`, and of one whose variable is named as a setting is.
    "UNISCALE_SERVICE_HOST": "10.96.0.8",
    "UNISCALE_PORT_53_UDP_ADDR": "10.96.0.8",
    "UNISCALE_GATEWAY_PORT": "tcp://10.96.0.9:8080",
}


def test_every_setting_stands_in_the_page_with_what_it_is() -> None:
    text = page()
    if os.environ.get("WRITE_GOLDEN"):
        SETTINGS_PAGE.write_text(text, encoding="utf-8")
    rows = dict(re.findall(r"^\| `(UNISCALE_\w+)` \| .* \| (.*) \|$", text, re.MULTILINE))
    assert rows.keys() == Settings().variables().keys()
    assert [name for name, told in rows.items() if len(told) < 10] == [], "say what it is, above the field"
    assert SETTINGS_PAGE.read_text(encoding="utf-8") == text, (
        "WRITE_GOLDEN=1 python -m pytest tests/streams/test_settings.py writes docs/settings.md again"
    )


def test_a_service_of_kubernetes_named_like_us_sets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings.from_env({**SERVICE_LINKS, "UNISCALE_SEED": "5"})
    assert settings == Settings().replace(seed=5)
    [said] = caplog.messages
    assert set(re.findall(r"UNISCALE_\w+", said)) == SERVICE_LINKS.keys()
    assert origins(SERVICE_LINKS, {})["UNISCALE_GATEWAY_PORT"] == "default"


def test_a_port_of_ours_is_set_beside_such_a_service(caplog: pytest.LogCaptureFixture) -> None:
    ours = {"UNISCALE_GATEWAY_PORT": "8081", "UNISCALE_METRICS_PORT": "9100", "UNISCALE_DECIDER_PORT": "9101"}
    settings = Settings.from_env(SERVICE_LINKS | ours)
    assert (settings.gateway.port, settings.metrics_port, settings.previews.port) == (8081, 9100, 9101)
    assert not set(re.findall(r"UNISCALE_\w+", caplog.text)) & ours.keys()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("UNISCALE_GATWAY_PORT", "8081"),
        ("UNISCALE_SERVICE_HOSTS", "10.96.0.7"),
        ("UNISCALE_API_PORT_HTTP", "80"),
    ],
)
def test_what_only_resembles_such_a_variable_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: there is no such setting"):
        Settings.from_env({name: text})


def test_a_log_level_may_be_written_in_any_case() -> None:
    assert Settings.from_env({"UNISCALE_LOG_LEVEL": "debug"}).log_level == "DEBUG"


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_shown_nowhere(name: str) -> None:
    settings = Settings.from_env({}, **{name: "hunter2", "prefix": "x."})
    assert "hunter2" not in repr(settings) + str(settings) + f"{settings}"
    assert "prefix='x.'" in repr(settings)
    assert f"{name.rpartition('_')[2]}=***" in repr(settings)
    assert settings.variables()[variable(name)] == "***"
    assert settings.environ()[variable(name)] == "hunter2", "the processes it starts need it"


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_may_be_in_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    environ = {f"{variable(name)}_FILE": str(tmp_path / "secret")}
    settings = Settings.from_env(environ)
    assert settings.environ()[variable(name)] == "hunter2"
    assert origins(environ, {})[variable(name)] == "environment"
    with pytest.raises(
        SettingsError, match=f"{variable(name)}: is given as well as {variable(name)}_FILE"
    ) as both:
        Settings.from_env(environ | {variable(name): "hunter3"})
    assert "hunter" not in str(both.value)
    with pytest.raises(SettingsError, match=f"{variable(name)}_FILE: {tmp_path}/none cannot be read"):
        Settings.from_env({f"{variable(name)}_FILE": f"{tmp_path}/none"})
    # What Docker Compose mounts where a deployment has no such secret.
    assert Settings.from_env({f"{variable(name)}_FILE": "/dev/null"}) == Settings().replace(**{name: ""})


def test_no_other_setting_is_read_from_a_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="UNISCALE_PREFIX_FILE: there is no such setting"):
        Settings.from_env({"UNISCALE_PREFIX_FILE": "/dev/null"})


def test_what_is_refused_is_not_shown_where_it_may_hold_a_secret() -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({"UNISCALE_POLICY_OPTIONS": '{"control_salt": "hunter2"'})
    assert "hunter2" not in str(refused.value)


def test_what_is_named_like_a_secret_is_one() -> None:
    named = Settings().variables().keys() - {"UNISCALE_CONTEXT_KEYS"}  # keys of metadata
    for name in named:
        alike = name.endswith(("_KEY", "_KEYS", "_PASSWORD", "_SECRET", "_TOKEN"))
        assert not alike or name.removeprefix("UNISCALE_").lower() in SECRETS, name
