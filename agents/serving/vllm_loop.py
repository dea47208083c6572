"""The body of the engine thread: one loop that owns all engines and steps those that have work, in turn.

Commands arrive through a queue, and results are returned through futures. When no request is in flight, the loop blocks
on the queue, so an idle host uses no CPU. In each round, every engine with work makes exactly one step, and the queue
is read between steps. So no model starves another, and a new request joins its engine's batch at the next step.
"""

import logging
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any

from agents.serving import vllm_adapter
from agents.serving.errors import (
    EngineDiedError,
    EngineFaultError,
    EngineStartError,
    HostClosedError,
    ServingError,
    UnknownEngineError,
)
from agents.serving.vllm_requests import RequestGroup
from agents.serving.vllm_settings import HostedModel

log = logging.getLogger(__name__)

Command = Callable[["EngineLoop"], None]


class OwnedEngine:
    """One vLLM engine and the groups it is working on. Only the engine thread changes it; any thread may read it.

    Attributes:
        aborted: Number of requests dropped because their caller no longer waited.
        steps: Number of steps made.
        step_began_s: When the current step began; None between steps.
    """

    def __init__(self, model: HostedModel) -> None:
        self.name = model.name
        self.engine = vllm_adapter.build_engine(model)
        self.context_tokens = vllm_adapter.context_tokens(self.engine)
        self.in_flight: dict[str, tuple[RequestGroup, int]] = {}
        self.died: EngineDiedError | None = None
        self.aborted = self.steps = 0
        self.step_began_s: float | None = None

    def add(self, group: RequestGroup) -> None:
        """Add all requests of a group, or none if one is refused."""
        added: list[str] = []
        try:
            for request_id, request in zip(group.ids, group.requests, strict=True):
                vllm_adapter.add(self.engine, request_id, request, streamed=group.on_text is not None)
                added.append(request_id)
        except ServingError as error:
            self.engine.abort_request(added)
            group.fail(error)
            return
        self.in_flight |= {request_id: (group, index) for index, request_id in enumerate(group.ids)}

    def abort(self, group: RequestGroup) -> None:
        """Drop the remaining requests of a group whose caller no longer waits."""
        left = [request_id for request_id in group.ids if self.in_flight.pop(request_id, None)]
        if left and self.died is None:
            self.aborted += len(left)
            self.engine.abort_request(left)

    def step(self, clock: Callable[[], float]) -> None:
        """Make one step of the batch and deliver its outputs."""
        self.step_began_s = clock()
        try:
            replies = self.engine.step()
        finally:
            self.step_began_s = None
        self.steps += 1
        for reply in replies:
            self._deliver(reply)
        if self.in_flight and not self.engine.has_unfinished_requests():
            # Never observed, but otherwise a lost request would make this loop spin.
            self.fail_all(
                EngineFaultError(f"{self.name}: vllm forgot {len(self.in_flight)} requests; try again")
            )

    def _deliver(self, reply: Any) -> None:
        waiting = self.in_flight.get(reply.request_id)
        if waiting is None:
            return
        group, index = waiting
        if not reply.finished:
            group.pass_on(vllm_adapter.text_so_far(reply))
            return
        del self.in_flight[reply.request_id]
        try:
            output = vllm_adapter.output_of(reply)
        except EngineFaultError as error:
            group.fail(error)
            self.abort(group)
            return
        group.take(index, output)

    def fail_all(self, error: ServingError) -> None:
        """Fail every group with one error."""
        groups = {id(group): group for group, _ in self.in_flight.values()}
        self.in_flight.clear()
        for group in groups.values():
            group.fail(error)


class EngineLoop:
    """All engines of the process and their command queue. Runs in its own thread."""

    def __init__(self, inbox: "SimpleQueue[Command]", clock: Callable[[], float]) -> None:
        self.engines: dict[str, OwnedEngine] = {}
        self.stopping = False
        self._over: ServingError | None = None
        self._inbox = inbox
        self._clock = clock

    def load(self, model: HostedModel) -> int:
        """Load one model; return its context length in tokens.

        Raises:
            EngineStartError: vLLM could not load it. The message names the model, its path and vLLM's reason.
        """
        if self._over is not None:
            raise self._over
        if model.name in self.engines:
            raise EngineStartError(f"{model.name}: already hosted; unload it first")
        began = self._clock()
        try:
            owned = OwnedEngine(model)
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            raise EngineStartError(f"{model.name}: vllm could not load {model.path}: {reason}") from error
        self.engines[model.name] = owned
        log.info("loaded %s from %s in %.1f s", model.name, model.path, self._clock() - began)
        return owned.context_tokens

    def unload(self, name: str) -> None:
        """Drop one model; requests still waiting for it fail."""
        if name not in self.engines:
            raise UnknownEngineError(f"{name}: not hosted here; hosted are {_listed(self.engines)}")
        owned = self.engines.pop(name)
        owned.fail_all(UnknownEngineError(f"{name}: unloaded while a request was in flight"))
        self._free(owned)

    def submit(self, name: str, group: RequestGroup) -> None:
        """Add a group to an engine's batch, unless its caller has already cancelled it."""
        if group.future.cancelled():
            return
        try:
            owned = self._owned(name)
        except ServingError as error:
            group.fail(error)
            return
        try:
            owned.add(group)
        except Exception as error:
            self._mark_dead(owned, error)
            group.fail(owned.died or EngineDiedError(f"{name}: died"))

    def abort(self, name: str, group: RequestGroup) -> None:
        """Stop working on a group."""
        if name in self.engines:
            self.engines[name].abort(group)

    def run(self) -> None:
        """Serve until stopped."""
        while not self.stopping:
            self._obey(wait=not any(owned.in_flight for owned in self.engines.values()))
            for owned in list(self.engines.values()):
                if owned.in_flight and not self.stopping:
                    self._step(owned)
                    self._obey(wait=False)

    def close(self, error: ServingError | None) -> None:
        """Fail all waiting callers, free the engines, and reject further commands."""
        self._over = error or HostClosedError("the engine host was closed while a request was in flight")
        for owned in self.engines.values():
            owned.fail_all(self._over)
            self._free(owned)
        if self.engines:
            self.engines.clear()
            vllm_adapter.shut_down()

    def _owned(self, name: str) -> OwnedEngine:
        if self._over is not None:
            raise self._over
        owned = self.engines.get(name)
        if owned is None:
            raise UnknownEngineError(f"{name}: not hosted here; hosted are {_listed(self.engines)}")
        if owned.died is not None:
            raise owned.died
        return owned

    def _obey(self, *, wait: bool) -> None:
        """Run every command in the queue. If `wait` is true and the queue is empty, block until a command arrives."""
        try:
            command = self._inbox.get() if wait else self._inbox.get_nowait()
            while True:
                command(self)
                command = self._inbox.get_nowait()
        except Empty:
            return

    def _step(self, owned: OwnedEngine) -> None:
        try:
            owned.step(self._clock)
        except Exception as error:
            self._mark_dead(owned, error)

    def _free(self, owned: OwnedEngine) -> None:
        try:
            vllm_adapter.free(owned.engine)
        except Exception:  # freeing a dead engine may fail too
            log.exception("%s: vllm did not free everything", owned.name)

    def _mark_dead(self, owned: OwnedEngine, error: Exception) -> None:
        """Mark an engine as dead after an exception, and fail its requests: its state cannot be trusted any more."""
        log.exception("%s: vllm engine died", owned.name)
        owned.died = EngineDiedError(
            f"{owned.name}: vllm died ({type(error).__name__}: {error}); restart the process"
        )
        owned.fail_all(owned.died)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
