"""Settings are parsed once and refuse what cannot work, naming the field."""

import pytest

from streams.settings import SECRETS, Settings, SettingsError


def test_environment_gives_settings_and_settings_give_the_environment_back() -> None:
    environ = {
        "UNISCALE_BOOTSTRAP": "a:1,b:2",
        "UNISCALE_MAX_IN_FLIGHT": "7",
        "UNISCALE_SESSION_TIMEOUT_S": "6",
        "PATH": "x",
    }
    settings = Settings.from_env(environ)
    assert (settings.bootstrap, settings.max_in_flight, settings.session_timeout_s) == ("a:1,b:2", 7, 6.0)
    assert Settings.from_env(settings.environ()) == settings


def test_flags_override_the_environment_and_absent_flags_do_not() -> None:
    settings = Settings.from_env({"UNISCALE_SEED": "5", "UNISCALE_WARM_UP": "9"}, seed=6, warm_up=None)
    assert (settings.seed, settings.warm_up) == (6, 9)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("UNISCALE_GUARANTEE", "exactly_once", "guarantee"),
        ("UNISCALE_MAX_IN_FLIGHT", "0", "max_in_flight: must be at least 1"),
        ("UNISCALE_MAX_IN_FLIGHT", "many", "max_in_flight"),
        ("UNISCALE_SECURITY_PROTOCOL", "TLS", "SASL_SSL"),
        ("UNISCALE_SECURITY_PROTOCOL", "SASL_SSL", "sasl_username: needed"),
        ("UNISCALE_ENCODER", "http", "encoder_url"),
        ("UNISCALE_TIMEOUT_S", "-1", "timeout_s"),
        ("UNISCALE_TYPO", "1", "UNISCALE_TYPO: there is no such setting"),
        ("UNISCALE_BOOTSTRAP", ",", "bootstrap"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(variable: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Settings.from_env({variable: value})


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_shown_nowhere(name: str) -> None:
    settings = Settings.from_env({}, **{name: "hunter2", "prefix": "x."})
    assert "hunter2" not in repr(settings) + str(settings) + f"{settings}"
    assert repr(settings) == f"Settings(prefix='x.', {name}='***')"
    # Whatever is named like a secret is one.
    for field in Settings.__struct_fields__:
        alike = field.endswith(("_key", "_keys", "_password", "_secret", "_token"))
        assert not alike or field in SECRETS, field
