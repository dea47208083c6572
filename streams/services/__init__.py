"""Start here: the services in stream order, and which topics each reads and writes.

    query ──────────────▶ embedder ──▶ context ──▶ decider ──▶ action-decision, action-decision.<group>
                             ▲                        ▲                     │
    answer (admission) ──────┘         reward ────────┘                     ▼
                                          ▲          verification.<group> ▶ executor <group> ──▶ search-step
    answer, feedback, due,                │                     ▲           │                        │
    action-decision ─────▶ aggregator ────┘                     └─ verifier ◀────────────────────────┘
                             │    │                                         ▼
                             │    └──▶ answer (expired), due              answer
    control and heartbeat are followed by every process that needs them; every service may write `answer`
    (rejected, failed) and `dead-letter`. Text goes from executors to gateways on answer-chunk while it is generated.

A record is acknowledged when its handler returns, and a handler returns when all of the record's effects have been
delivered. Handlers are idempotent, so redelivery changes nothing.

SERVICES lists them. Importing this package loads no engine, encoder or policy; a service's `build` does that.
"""

from typing import Any

from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.decision import Decision
from schemas.query import Query, QueryContext
from schemas.reward import Due, Feedback, Reward
from schemas.search import SearchStep, Verification
from streams.log.base import ConsumerRecord, Outgoing
from streams.runtime.effects import BatchEffects, Effects, KeyedService, OrderedService, Rows
from streams.runtime.runtime import Input, Runtime, ServiceSpec

__all__ = [
    "SERVICES",
    # for writing a service
    "ServiceSpec",
    "Input",
    "KeyedService",
    "Effects",
    "Rows",
    "OrderedService",
    "BatchEffects",
    "ConsumerRecord",
    "Outgoing",
    "Runtime",
]

# The embedder: admits queries, and encodes each Query into a Context.


async def _build_embedder(runtime: Runtime) -> KeyedService[None]:
    from streams.services.embedder import EmbedderService

    return await EmbedderService.build(runtime)


EMBEDDER = ServiceSpec(
    name="embedder",
    inputs={"query": Input(Query, "embed", waits=True)},
    outputs=("context", "answer", "dead-letter"),
    follows=("answer", "dead-letter"),
    build=_build_embedder,
)


# The decider: the deployment's learner, its log and its policy.


async def _build_decider(runtime: Runtime) -> OrderedService:
    from streams.services.decider import DeciderService
    from streams.services.previews import Previews

    service = await DeciderService.build(runtime)
    if runtime.settings.previews.port:
        runtime.background("previews", Previews(service).serve)
    return service


DECIDER = ServiceSpec(
    name="decider",
    # One partition each: learning has a single order. A batch shares one delivery and one BLAS pass.
    inputs={
        "context": Input(QueryContext, "decide", most=32),
        "reward": Input(Reward, "learn", most=32),
        "attempt-failed": Input(AttemptFailed, "retry", most=32),
    },
    outputs=("action-decision", "action-decision.<group>", "answer", "dead-letter"),
    state=("decider-pending-changelog", "learner-snapshot"),
    one_writer=True,
    build=_build_decider,
)


# The executor: the searches and engines of one group of models.


async def _build_executor(runtime: Runtime) -> KeyedService[None]:
    from streams.services.executor import ExecutorService

    return await ExecutorService.build(runtime)


EXECUTOR = ServiceSpec(
    name="executor",
    inputs={
        "action-decision.<group>": Input(Decision, "begin"),
        "verification.<group>": Input(Verification, "search"),
    },
    outputs=("search-step", "answer-chunk", "answer", "attempt-failed", "heartbeat", "dead-letter"),
    follows=("cancel.<group>", "attempt-failed"),
    build=_build_executor,
    grouped=True,
)


# The verifier: scores the steps of all groups.


async def _build_verifier(runtime: Runtime) -> KeyedService[None]:
    from streams.services.verifier import VerifierService

    return await VerifierService.build(runtime)


VERIFIER = ServiceSpec(
    name="verifier",
    inputs={"search-step": Input(SearchStep, "verify")},
    outputs=("verification.<group>", "answer", "dead-letter"),
    build=_build_verifier,
)


# The aggregator: joins Decision, Answer, Feedback and Due into Rewards.


async def _build_aggregator(runtime: Runtime) -> KeyedService[Any]:
    from streams.services.aggregator import AggregatorService

    return await AggregatorService.build(runtime)


AGGREGATOR = ServiceSpec(
    name="aggregator",
    # Four topics with equal partition counts are joined in one table. Each query's records are handled one at a time.
    inputs={
        "action-decision": Input(Decision, "open"),
        "answer": Input(Answer, "close"),
        "feedback": Input(Feedback, "feedback"),
        "due": Input(Due, "due"),
    },
    outputs=("reward", "answer", "due", "feedback", "dead-letter"),
    follows=("reward",),
    state=("aggregator-join-changelog",),
    build=_build_aggregator,
)


# The gateway: an OpenAI-compatible HTTP API in front of the topics. It sends queries and follows their progress.


async def _build_gateway(runtime: Runtime) -> None:
    """Read the topics into the index, then serve HTTP."""
    from streams.gateway.app import serve
    from streams.gateway.service import GatewayService

    settings = runtime.settings.gateway
    service = GatewayService(runtime, settings.recent, tuple(SERVICES.values()))
    await service.follow()
    await serve(service, settings.host, settings.port, frozenset(settings.hosts))


GATEWAY = ServiceSpec(
    name="gateway",
    inputs={},
    outputs=("query", "answer", "feedback", "control", "cancel.<group>"),
    follows=(
        "query",
        "action-decision",
        "answer",
        "reward",
        "feedback",
        "dead-letter",
        "search-step",
        "answer-chunk",
    ),
    build=_build_gateway,
    optional=True,
)


# The tracer: traces of queries over OTLP, derived from the topics. No query waits for it.


async def _build_tracer(runtime: Runtime) -> None:
    from streams.services.tracer import SpanExporting, TracerService

    await TracerService(runtime, SpanExporting()).follow()


TRACER = ServiceSpec(
    name="tracer",
    inputs={},
    outputs=(),
    follows=("query", "context", "action-decision", "search-step", "attempt-failed", "answer", "reward"),
    build=_build_tracer,
    optional=True,
)


# Each service binds the pure code in one package of `agents` to its topics: a file, a `ServiceSpec`, and one line here.

SERVICES: dict[str, ServiceSpec] = {
    spec.name: spec for spec in (EMBEDDER, DECIDER, EXECUTOR, VERIFIER, AGGREGATOR, GATEWAY, TRACER)
}
"""Every service by name, in stream order."""
