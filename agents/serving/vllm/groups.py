"""Requests asked together: the unit between a caller's future and an engine's batch. Imports no vLLM."""

from collections.abc import Sequence
from concurrent.futures import Future

from agents.serving.errors import ServingError
from agents.serving.vllm.requests import Output, Request


class Group:
    """Requests answered together by one future.

    Args:
        number: Unique in the host; names the requests to vLLM.
        requests: In the order of the outputs.
        future: Resolved by the engine thread, or cancelled by the caller.
    """

    def __init__(self, number: int, requests: Sequence[Request], future: "Future[list[Output]]") -> None:
        self.ids = [f"{number}-{index}" for index in range(len(requests))]
        self.requests = requests
        self.future = future
        self._outputs: dict[int, Output] = {}

    def take(self, index: int, output: Output) -> None:
        """Store one output; resolve the future with the last."""
        self._outputs[index] = output
        if len(self._outputs) == len(self.requests) and self._still_wanted():
            self.future.set_result([self._outputs[index] for index in range(len(self.requests))])

    def fail(self, error: ServingError) -> None:
        """Resolve the future with an error."""
        if self._still_wanted():
            self.future.set_exception(error)

    def _still_wanted(self) -> bool:
        return not self.future.done() and self.future.set_running_or_notify_cancel()
