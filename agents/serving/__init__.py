"""Model serving for the executor and the verifier: engines in this process, remote servers, and their states.

engine    the engine protocol: prefixes in, drafts of one step out
vllm_*    vLLM in this process: callers submit from any thread, and one thread owns and steps every engine
  settings    what to host, the environment variables vLLM needs, and how much KV cache an engine gets
  requests    an engine's inputs and outputs: token ids in, text or class probabilities out
  host        the thread-safe interface: submit, run, load, unload, close
  loop        the body of the engine thread; steps each engine that has work in turn
  adapter     the only file that uses vLLM's API; also defines a process reward model that vLLM lacks
http      models on other servers, over HTTP, with API keys and a circuit breaker
retries   the one retry policy, and the time limit that a query's deadline sets
recorded  recorded searches, looked up instead of run
registry  turns catalogue entries into engines; loads a process's models in the background and tracks their states
prompts   chat templates: messages and steps to token ids
errors    the errors of this package
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
