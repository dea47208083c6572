"""Model serving, below the executor and the verifier: engines in this process, servers elsewhere, and their states.

engine    the engine protocol: prefixes in, drafts of one step out
vllm      vLLM in this process: one thread hosts every engine
http      models served elsewhere, over HTTP; the one retry policy, and what a deadline cuts off
recorded  recorded searches, looked up instead of computed
registry  from a catalogue entry to one of these; the models of a process, loaded in the background, and their states
prompts   chat templates: messages and steps to token ids
errors    what can go wrong
"""

from agents.serving.errors import (
    EngineDiedError,
    EngineFaultError,
    PromptTooLongError,
    RequestRefusedError,
    ServingError,
)
from agents.serving.vllm.host import EngineHost
from agents.serving.vllm.requests import GeneratedDraft, Generation, Pooled, Pooling
from agents.serving.vllm.settings import HostedModel, HostSettings

__all__ = [
    "GeneratedDraft",
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
