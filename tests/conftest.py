"""What every test may use: a seeded generator, micro checkpoints of what we serve, one vLLM host for the session."""

import asyncio
import inspect
import logging
import os
import shutil
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from streams.local.broker import BrokerError, Kind, LocalBroker, kafka_home
from tests.support.checkpoints import (
    SHAPE,
    Micro,
    make_tokenizer,
    save_generator,
    save_reward_model,
)
from tests.support.engine_host import HostKeeper

# What a test finds does not depend on how fast the machine is. A test that names no number of examples has 25 of them
# in everyday runs; `make test-long` asks for the other profile.
settings.register_profile("long", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("everyday", settings.get_profile("long"), max_examples=25)
settings.load_profile("everyday")

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
_WAITS = ("orderly_stop", "operator", "demo_command", "loop", "audit", "learner", "gateway")
"""Files of tests/integration that take longest, the longest first: they wait for brokers and processes."""
_APART = "tests/streams/runtime/test_contract.py"
"""Its tests share nothing, and each waits for the embedded broker: they are handed out one by one, before the rest."""
_ENGINE = {"micro", "host_keeper"}
"""Fixtures that load torch, transformers or vLLM."""
_NETWORKS = {"mlp", "neural-ucb", "neural-ucb-per-width"}
"""Policies that do, where a test runs over all of them."""
_HEAVY = {"torch", "transformers", "vllm"}
_blamed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say which broker the tests run on: `make test` asks for the embedded one, `make test-kafka` for Apache Kafka."""
    parser.addoption(
        "--broker", choices=["auto", "embedded", "kafka"], default="auto",
        help="broker of the tests that need one; auto: Apache Kafka where KAFKA_HOME or ../shared/kafka has it",
    )  # fmt: skip
    parser.addoption(
        "--light",
        action="store_true",
        help="a test that loads torch, transformers or vLLM into this process fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to start where Apache Kafka is asked for and there is none; end brokers and servers where told to stop."""
    chosen_broker(config)
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C does: fixtures close what they started


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine; those of the streams on a virtual clock."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    if pyfuncitem.path.is_relative_to(ROOT / "tests" / "streams"):
        from streams.runtime import memory

        memory.run(test)
    else:
        asyncio.run(test)
    return True


def chosen_broker(config: pytest.Config) -> Kind:
    """Return the broker that this run's tests are to run on."""
    wanted = config.getoption("broker")
    if wanted == "embedded":
        return "embedded"
    try:
        home = kafka_home(os.environ)
    except BrokerError as error:
        raise pytest.UsageError(str(error)) from None
    if home and shutil.which("java"):
        return "kafka"
    if wanted == "kafka":
        missing = "needs Java 17 or later on the PATH" if home else "was not found"
        raise pytest.UsageError(
            f"--broker kafka: Apache Kafka {missing}; set KAFKA_HOME to an unpacked distribution "
            "(https://kafka.apache.org/downloads), or put one in ../shared/kafka beside the checkout"
        )
    return "embedded"


@pytest.hookimpl(tryfirst=True)  # marks are there when `-m` and xdist look for them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs Apache Kafka or public data that is not here, and say so; mark what loads an engine."""
    on_kafka = chosen_broker(config) == "kafka"
    for item in items:
        if _ENGINE & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("vllm"):
            item.add_marker("torch")
            item.add_marker(pytest.mark.xdist_group("engine"))  # one process loads it, once
        elif _NETWORKS & {value for value in _parameters(item) if isinstance(value, str)}:
            item.add_marker("torch")
        if not on_kafka and (why := item.get_closest_marker("kafka")):
            item.add_marker(pytest.mark.skip(reason=f"needs Apache Kafka (make test-kafka): {why.args[0]}"))
        for needed in item.iter_markers("data"):
            if missing := [name for name in needed.args if not (DATA / name).exists()]:
                item.add_marker(pytest.mark.skip(reason=f"needs ../shared/data/{missing[0]}"))


@pytest.fixture(autouse=True)
def _logging_enabled() -> Iterator[None]:
    """What a test runs in this process may switch logging off; the next one may want to read it."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def _light(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold `make test-fast` to what it says: it loads no torch, no transformers, no vLLM."""
    yield
    if request.config.getoption("light") and (loaded := (_HEAVY & sys.modules.keys()) - _blamed):
        _blamed.update(loaded)
        pytest.fail(f"this test, or importing its file, loads {', '.join(sorted(loaded))}: mark it `torch`")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole files, and as one what needs an engine: the last process begins there, the others with what waits.

    Fixtures of a file are then made once, vLLM is loaded once, and what mostly waits runs beside what mostly computes.
    What takes long comes first, so that the processes end together.
    """
    from xdist.scheduler.loadscope import LoadScopeScheduling

    waiting = {f"tests/integration/test_{name}.py": at for at, name in enumerate(_WAITS)}

    def waiting_first(scope: str) -> int:
        return waiting.get(scope, len(waiting) + (not scope.startswith(("tests/integration/", _APART))))

    def computing_first(scope: str) -> int:
        return -waiting_first(scope) if scope != "engine" else -len(waiting) - 2

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            test, _, group = nodeid.rpartition("@")
            if nodeid.startswith(_APART):
                return nodeid
            # An "@" may also be in a parameter; behind it there is a bracket then.
            return group if test and "]" not in group else nodeid.partition("::")[0]

        def _assign_work_unit(self, node: Any) -> None:
            order = computing_first if node is self.nodes[-1] else waiting_first
            self.workqueue.move_to_end(min(self.workqueue, key=order), last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


def _parameters(item: pytest.Item) -> Collection[Any]:
    """Return the values that a parametrised test runs with."""
    return item.callspec.params.values() if hasattr(item, "callspec") else ()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what was skipped by its reason: a test that is never run looks like one that passes."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", ()):
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[said.removeprefix("Skipped: ")].append(report.nodeid.partition("[")[0])
    if not reasons:
        return
    terminalreporter.section(f"{sum(map(len, reasons.values()))} skipped")
    for reason, nodeids in sorted(reasons.items(), key=lambda each: (-len(each[1]), each[0])):
        terminalreporter.line(f"{len(nodeids):3} {reason}")
        for nodeid, times in Counter(nodeids).items():
            terminalreporter.line(f"      {nodeid}{f' ({times})' if times > 1 else ''}")


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Micro:
    folder = tmp_path_factory.mktemp("micro")
    tokenizer = make_tokenizer()
    save_generator(folder / "micro-a", 0, tokenizer, SHAPE)
    save_generator(folder / "micro-b", 1, tokenizer, SHAPE)
    save_reward_model(folder / "micro-prm", 2, tokenizer, SHAPE, "Qwen2ForProcessRewardModel")
    save_reward_model(folder / "micro-skywork", 3, tokenizer, SHAPE, "Qwen2ForPrmModel")
    return Micro(folder)


@pytest.fixture(scope="session")
def host_keeper(micro: Micro) -> Iterator[HostKeeper]:
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed (extra `engine`)")
    keeper = HostKeeper(micro)
    yield keeper
    keeper.close()


@pytest.fixture
def host(host_keeper: HostKeeper) -> Any:
    """The session's engine host with micro-a, micro-b, micro-prm and micro-skywork."""
    return host_keeper.living()


@pytest.fixture(scope="session")
def broker_kind(request: pytest.FixtureRequest) -> Kind:
    """Which broker tests use that need one, whichever it is."""
    return chosen_broker(request.config)


@pytest.fixture(scope="session")
def broker_of() -> Iterator[Callable[[Kind], LocalBroker]]:
    """Return the session's one broker of a kind, which starts when it is first asked for."""
    with ExitStack() as running:
        yield cache(lambda kind: running.enter_context(LocalBroker.choose(kind, os.environ)))


@pytest.fixture(scope="session")
def embedded_broker(broker_of: Callable[[Kind], LocalBroker]) -> LocalBroker:
    return broker_of("embedded")


@pytest.fixture(scope="session")
def kafka_broker(broker_of: Callable[[Kind], LocalBroker]) -> LocalBroker:
    return broker_of("kafka")


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator of its own for each test, always seeded alike."""
    return np.random.default_rng(3)


@pytest.fixture
def root() -> Path:
    """The checkout: where `python -m …` starts."""
    return ROOT
