"""A real broker and real processes for the tests of the whole loop.

The broker is the one that `--broker` names: by default Apache Kafka when `KAFKA_HOME` names one or `../shared/kafka` is
there, else the embedded one. Engines are recordings made here, so that a search is deterministic and takes no time;
everything else is the product.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from schemas.query import Query
from streams.local.broker import Kind, LocalBroker, free_port
from streams.local.deployment import python, settings_for
from streams.settings import Settings
from tests.support.deployment import Deployment, recorded_in
from tests.support.recorded import question


@pytest.fixture(scope="session")
def broker(broker_of: Callable[[Kind], LocalBroker], broker_kind: Kind) -> LocalBroker:
    """The session's broker of the kind that this run asks for."""
    return broker_of(broker_kind)


Deploy = Callable[..., Deployment]


_running: list[Deployment] = []


@pytest.fixture(autouse=True)
def _ended_with_its_test() -> Iterator[None]:
    """Stop what a test itself has deployed: services without work still ask the broker, and slow down the next test."""
    before = len(_running)
    yield
    while len(_running) > before:
        _running.pop().close()


@pytest.fixture(scope="module")
def deploy_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    """Start services on a broker; stopped with the test, or with the module where one of its fixtures starts them."""

    def start(
        broker: Any,
        *,
        only: tuple[str, ...] | None = None,
        commands: Mapping[str, Sequence[str]] | None = None,
        wait: bool = True,
        **fields: Any,
    ) -> Deployment:
        folder = tmp_path_factory.mktemp("deployment")
        settings = settings_for(recorded_in(folder, **fields), broker)
        deployment = Deployment(settings, folder / "services.log", only, commands)
        deployment.supervisor.start()
        _running.append(deployment)
        if wait:
            deployment.supervisor.wait_ready(240)
        return deployment

    before = len(_running)
    yield start
    while len(_running) > before:
        _running.pop().close()


@pytest.fixture(scope="module")
def deploy(broker: LocalBroker, deploy_on: Deploy) -> Deploy:
    """Start services on the session's broker."""
    return partial(deploy_on, broker)


@pytest.fixture(scope="module")
def deploy_gateway(deploy: Deploy) -> Callable[..., tuple[Deployment, str]]:
    """Start services and a gateway on the session's broker; return them and where it listens."""

    def start(**fields: Any) -> tuple[Deployment, str]:
        port = free_port()
        commands = {"gateway": [*python(), "worker", "gateway"]}
        return deploy(commands=commands, gateway_port=port, **fields), f"http://127.0.0.1:{port}"

    return start


@pytest.fixture(scope="session")
def recorded() -> Callable[..., Settings]:
    """Return the settings of a deployment that answers from a recording in a folder."""
    return recorded_in


@pytest.fixture(scope="session")
def ask() -> Callable[[int], Query]:
    """Return the query of a number, with its reference."""

    def query(number: int) -> Query:
        text, answer = question(number % 40)
        return Query(query_id=f"q{number}", text=text, reference=answer)

    return query
