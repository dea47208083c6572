"""Tokens of SASL OAUTHBEARER."""

import asyncio
from pathlib import Path

import pytest

from streams.log.kafka_clients import TokenFile, asynchronous_token
from streams.settings import Settings, SettingsError


def test_a_token_is_read_again_and_outlives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    file = TokenFile(path)
    assert file.token() == asyncio.run(asynchronous_token(file).token()) == "first"
    path.write_text("second")
    assert file.token() == asyncio.run(asynchronous_token(file).token()) == "second"
    path.unlink()
    assert file.token() == "second"


@pytest.mark.parametrize("text", ["", "\n", "two words", "a\x01b", "ü"])
def test_what_is_no_token_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(SettingsError, match="sasl_token_file"):
        TokenFile(tmp_path / "token")
    with pytest.raises(SettingsError, match=r"missing cannot be read"):
        TokenFile(tmp_path / "missing")


def test_each_mechanism_needs_its_own_setting() -> None:
    secured = Settings().replace(security_protocol="SASL_SSL", sasl_username="me")
    with pytest.raises(
        SettingsError, match="UNISCALE_SASL_TOKEN_FILE: must be set when UNISCALE_SASL_MECHANISM"
    ):
        secured.replace(sasl_mechanism="OAUTHBEARER")
    assert secured.replace(sasl_mechanism="OAUTHBEARER", sasl_token_file="/token", sasl_username="")
