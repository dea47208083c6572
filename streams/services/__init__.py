"""The services, in stream order: what each reads and writes. SERVICES is the one list; importing it loads no engine."""

from streams.runtime.base import Runtime, ServiceSpec

# The embedder: admits queries, and encodes each Query into a Context.


async def _build_embedder(runtime: Runtime) -> None:
    """Load what the service needs and bind its handlers."""
    from streams.services.embedder import EmbedderService

    service = await EmbedderService.build(runtime)
    runtime.each(runtime.topics.query, service.on_query, stage="embed", waits=True)


EMBEDDER = ServiceSpec(
    name="embedder",
    inputs=("query",),
    outputs=("context", "answer", "dead-letter"),
    follows=("answer", "dead-letter"),
    build=_build_embedder,
)


# The decider: the learner of the deployment, its log and its policy.


async def _build_decider(runtime: Runtime) -> None:
    """Load what the service needs and bind its handlers."""
    from streams.services.decider import DeciderService
    from streams.services.previews import Previews

    service = await DeciderService.build(runtime)
    topics = runtime.topics
    # One partition each: learning has one order. Batches share one delivery and one pass of BLAS.
    runtime.batches(topics.context, service.on_contexts, stage="decide", most=32)
    runtime.batches(topics.reward, service.on_rewards, stage="learn", most=32)
    if runtime.settings.previews.port:
        runtime.background("previews", Previews(service).serve)


DECIDER = ServiceSpec(
    name="decider",
    inputs=("context", "reward"),
    outputs=("action-decision", "action-decision.<group>", "answer", "dead-letter"),
    state=("decider-pending-changelog", "learner-snapshot"),
    one_writer=True,
    build=_build_decider,
)


# The executor: the searches of one group of models, and their engines.


async def _build_executor(runtime: Runtime) -> None:
    """Load what the service needs and bind its handlers."""
    from streams.services.executor import CANCELS, ExecutorService

    service = await ExecutorService.build(runtime)
    topics, group = runtime.topics, runtime.group
    begin = CANCELS // runtime.settings.kafka.group_partitions  # of each partition
    await runtime.follow([topics.cancel_for(group)], service.on_cancel, begin=begin)
    runtime.each(topics.decision_for(group), service.on_decision, stage="begin")
    runtime.each(topics.verification_for(group), service.on_verification, stage="search")


EXECUTOR = ServiceSpec(
    name="executor",
    inputs=("action-decision.<group>", "verification.<group>"),
    outputs=("search-step", "answer", "heartbeat", "dead-letter"),
    follows=("cancel.<group>",),
    build=_build_executor,
    grouped=True,
)


# The verifier: scores the steps of all groups.


async def _build_verifier(runtime: Runtime) -> None:
    """Load what the service needs and bind its handlers."""
    from streams.services.verifier import VerifierService

    service = await VerifierService.build(runtime)
    runtime.each(runtime.topics.search_step, service.on_step, stage="verify")


VERIFIER = ServiceSpec(
    name="verifier",
    inputs=("search-step",),
    outputs=("verification.<group>", "answer", "dead-letter"),
    build=_build_verifier,
)


# The aggregator: Decision, Answer, Feedback and Due joined into Rewards.


async def _build_aggregator(runtime: Runtime) -> None:
    """Load what the service needs and bind its handlers."""
    from streams.services.aggregator import AggregatorService

    service = await AggregatorService.build(runtime)
    topics = runtime.topics
    # Four topics with equal partitions meet in one table, one record of a query at a time.
    runtime.each(topics.decision, service.on_decision, stage="open")
    runtime.each(topics.answer, service.on_answer, stage="close")
    runtime.each(topics.feedback, service.on_feedback, stage="feedback")
    runtime.each(topics.due, service.on_due, stage="due")


AGGREGATOR = ServiceSpec(
    name="aggregator",
    inputs=("action-decision", "answer", "feedback", "due"),
    outputs=("reward", "answer", "due", "feedback", "dead-letter"),
    follows=("reward",),
    state=("aggregator-join-changelog",),
    build=_build_aggregator,
)


# The gateway: an OpenAI-compatible HTTP API in front of the topics. It sends queries and follows their progress.


async def _build_gateway(runtime: Runtime) -> None:
    """Read the topics into the index, then serve HTTP."""
    from streams.gateway.app import GatewayService, serve

    settings = runtime.settings.gateway
    service = GatewayService(runtime, settings.recent)
    await service.follow()
    await serve(service, settings.host, settings.port, frozenset(settings.hosts))


GATEWAY = ServiceSpec(
    name="gateway",
    inputs=(),
    outputs=("query", "answer", "feedback", "control", "cancel.<group>"),
    follows=("query", "action-decision", "answer", "reward", "feedback", "dead-letter", "search-step"),
    build=_build_gateway,
    optional=True,
)


# The services: each binds the pure code of one package of `agents` to its topics.
#
# SERVICES is the one list of services. A service is a file with a `ServiceSpec`, and one line here.
# Importing this package loads no engine, encoder or policy: a service's `build` does.

__all__ = ["SERVICES", "ServiceSpec"]

SERVICES: dict[str, ServiceSpec] = {
    spec.name: spec
    for spec in (
        EMBEDDER,
        DECIDER,
        EXECUTOR,
        VERIFIER,
        AGGREGATOR,
        GATEWAY,
    )
}
"""Every service by name, in stream order."""
