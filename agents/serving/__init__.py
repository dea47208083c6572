"""Model serving, below the executor and the verifier: one thread hosts every vLLM engine of a process.

settings      what to host
host          the thread-safe face: submit, run, load, unload, close
loop          the engine thread's body; steps every engine with work in turn
vllm_adapter  the one file that speaks vLLM's API
requests      token ids in, text or class probabilities out
prompts       chat templates: messages and steps to token ids
http          JSON over HTTP, for models served elsewhere
retry         the one retry policy, and what a deadline cuts off
breaker       circuit breaker of an endpoint
keys          API keys by host
hosting       from a catalogue entry to where it runs
fleet         the models of a process, loaded in the background, and their states
skywork       a process reward model vLLM has no class for
"""

from agents.serving.errors import (
    EngineDiedError,
    EngineFaultError,
    PromptTooLongError,
    RequestRefusedError,
    ServingError,
)
from agents.serving.host import EngineHost
from agents.serving.requests import Completion, Generation, Pooled, Pooling
from agents.serving.settings import HostedModel, HostSettings

__all__ = [
    "Completion",
    "EngineDiedError",
    "EngineFaultError",
    "EngineHost",
    "Generation",
    "HostSettings",
    "HostedModel",
    "Pooled",
    "Pooling",
    "PromptTooLongError",
    "RequestRefusedError",
    "ServingError",
]
