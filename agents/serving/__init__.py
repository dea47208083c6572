"""Model serving, below the executor and the verifier: engines in this process, servers elsewhere, and their states.

engine    the engine protocol: prefixes in, drafts of one step out
vllm_*    vLLM in this process: callers submit from any thread, and one thread owns and steps every engine
  settings    what to host, the environment variables vLLM needs, and how much KV cache an engine gets
  requests    what goes into an engine and what comes out: token ids in, text or class probabilities out
  host        the thread-safe face: submit, run, load, unload, close
  loop        the engine thread's body; steps every engine with work in turn
  adapter     the one file that speaks vLLM's API, and a process reward model that vLLM has no class for
http      models served elsewhere, over HTTP, with keys and a circuit breaker
retries   the one retry policy, and what a deadline cuts off
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
from agents.serving.vllm_host import EngineHost
from agents.serving.vllm_requests import GeneratedDraft, Generation, Pooled, Pooling
from agents.serving.vllm_settings import HostedModel

__all__ = [
    "GeneratedDraft",
    "EngineDiedError",
    "EngineFaultError",
    "EngineHost",
    "Generation",
    "HostedModel",
    "Pooled",
    "Pooling",
    "PromptTooLongError",
    "RequestRefusedError",
    "ServingError",
]
