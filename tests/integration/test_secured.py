"""TLS and SASL settings reach every client: kafka-python, aiokafka and faust, on a broker that insists on both."""

import base64
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streams.local.broker import LocalBroker
from streams.local.deployment import Supervisor
from tests.support import command_line

pytestmark = [pytest.mark.broker, pytest.mark.kafka("the embedded broker has no TLS or SASL listener")]

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
VALIDATOR = f"{_OAUTH}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
"""Of tokens without a signature, which Kafka has for tests."""


@pytest.fixture(scope="module")
def secured(
    broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalBroker, Path]]:
    """An Apache Kafka whose only listener is SASL_SSL, and the certificate it shows."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("secured")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    store = folder / "store.pem"
    store.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    safe = LocalBroker("kafka", directory=folder / "kafka", home=broker.home)
    safe.directory.mkdir()
    properties = safe._format()
    jaas = (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="b" '
        'user_broker="b" user_operator="right";'
    )
    oauth = f"{_OAUTH}.OAuthBearerLoginModule required;"
    # The last of two lines with one name holds.
    with properties.open("a") as more:
        more.write("\n".join([
            properties_line(properties, "listeners").replace("PLAINTEXT://", "SASL_SSL://", 1),
            f"advertised.listeners=SASL_SSL://127.0.0.1:{safe.port}",
            "listener.security.protocol.map=SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name=SASL_SSL", "sasl.mechanism.inter.broker.protocol=PLAIN",
            "sasl.enabled.mechanisms=PLAIN,OAUTHBEARER",
            f"listener.name.sasl_ssl.oauthbearer.sasl.jaas.config={oauth}",
            f"listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class={VALIDATOR}",
            f"listener.name.sasl_ssl.plain.sasl.jaas.config={jaas}",
            "ssl.keystore.type=PEM", f"ssl.keystore.location={store}",
            "ssl.truststore.type=PEM", f"ssl.truststore.location={folder / 'cert.pem'}",
        ]) + "\n")  # fmt: skip
    with safe as running:
        yield running, folder / "cert.pem"


def properties_line(properties: Path, name: str) -> str:
    return next(line for line in properties.read_text().splitlines() if line.startswith(f"{name}="))


def secrets(secured: tuple[LocalBroker, Path], **other: str) -> Mapping[str, Any]:
    running, certificate = secured
    return {
        "bootstrap": running.bootstrap, "security_protocol": "SASL_SSL", "ssl_cafile": str(certificate),
        "sasl_username": "operator", "sasl_password": "right", **other,
    }  # fmt: skip


def tokens(folder: Path, life_s: float) -> dict[str, str]:
    """Return the settings of a token that Kafka's validator for tests accepts while it lives."""
    parts = ({"alg": "none"}, {"sub": "operator", "iat": time.time(), "exp": time.time() + life_s})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    file = folder / "token"
    file.write_text(".".join(encoded) + ".\n")
    nobody = {"sasl_username": "", "sasl_password": ""}
    return {"sasl_mechanism": "OAUTHBEARER", "sasl_token_file": str(file), **nobody}


def streams(environ: Mapping[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return command_line.streams(*words, env={"PATH": "/usr/bin:/bin", **environ})


def started(environ: Mapping[str, str], service: str, folder: Path) -> None:
    """Start a service, wait until it is ready, and stop it."""
    command = {service: [sys.executable, "-m", "streams", "worker", service]}
    there = {"PATH": "/usr/bin:/bin", **environ}
    with Supervisor(command, environ=there, log_path=folder / "log") as services:
        services.wait_ready(200)


def test_commands_and_services_connect_by_tls_and_password(
    secured: tuple[LocalBroker, Path], recorded: Callable[..., Any], tmp_path: Path
) -> None:
    settings = recorded(tmp_path, **secrets(secured))
    environ = settings.environ()
    done = streams(environ, "topics", "create")
    assert done.returncode == 0, done.stderr
    assert re.search(r"created (\d+) of \1 topics", done.stdout)
    # faust's consumer and producer, and the aiokafka reader of `control`, in one process.
    started(environ, "aggregator", tmp_path)
    assert streams(environ, "feedback", "q-1", "true").returncode == 0
    plain = streams(settings.environ() | {"UNISCALE_SECURITY_PROTOCOL": "PLAINTEXT"}, "topics", "check")
    assert plain.returncode == 1
    assert "accepts connections, but not ours as PLAINTEXT" in plain.stderr


def test_commands_and_services_connect_by_token(
    secured: tuple[LocalBroker, Path], recorded: Callable[..., Any], tmp_path: Path
) -> None:
    environ = recorded(tmp_path, prefix="token.", **secrets(secured, **tokens(tmp_path, 600))).environ()
    done = streams(environ, "topics", "create")
    assert done.returncode == 0, done.stderr
    started(environ, "decider", tmp_path)  # it writes in transactions, too
    tokens(tmp_path, -600)
    late = streams(environ, "topics", "check")
    assert late.returncode == 1
    assert "sasl_token_file" in late.stderr


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"sasl_password": "wrong"}, "not ours as SASL_SSL"),
        ({"ssl_cafile": ""}, "not ours as SASL_SSL"),
        ({"ssl_cafile": "/no/such.pem"}, "ssl_cafile, ssl_certfile or ssl_keyfile: cannot be read"),
    ],
    ids=["password", "authority", "file"],
)
def test_what_is_refused_names_the_settings(
    secured: tuple[LocalBroker, Path],
    recorded: Callable[..., Any],
    tmp_path: Path,
    other: dict[str, str],
    words: str,
) -> None:
    environ = recorded(tmp_path, **secrets(secured, **other)).environ()
    # By kafka-python and by aiokafka; both at once, because each tries for its while.
    for done in [run.result() for run in pair(environ, ["topics", "check"], ["worker", "aggregator"])]:
        assert done.returncode == 1, done.stderr
        assert words in done.stderr, done.stderr
        assert "ssl_cafile" in done.stderr
        assert "Traceback" not in done.stderr


def pair(
    environ: Mapping[str, str], *commands: list[str]
) -> list["Future[subprocess.CompletedProcess[str]]"]:
    with ThreadPoolExecutor() as pool:
        return [pool.submit(streams, environ, *command) for command in commands]
