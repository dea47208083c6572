"""Model serving for the executor and the verifier: engines in this process, remote servers, and their states.

engine       the engine protocol: prefixes in, drafts of one step out
vllm_*       vLLM in this process: callers submit from any thread, and one thread owns and steps every engine
  settings   what to host, the environment variables vLLM needs, and how much KV cache an engine gets
  requests   an engine's inputs and outputs: token ids in, text or class probabilities out
  host       the thread-safe interface: submit, run, load, unload, close
  loop       the body of the engine thread; steps each engine that has work in turn
  adapter    the only file that uses vLLM's API; also defines a process reward model that vLLM lacks
  engine     the engine protocol, implemented on a host
http         models on other servers, over HTTP, with API keys; `circuit_breaker` stops requests to one that fails
chat_*       models behind an OpenAI-compatible chat API; `event_stream` and `completion_stream` read streamed replies
retries      the one retry policy, and the time limit that a query's deadline sets
recorded     recorded searches, looked up instead of run
registry     turns catalogue entries into engines; loads a process's models in the background and tracks their states
health_checks  probes that suspend a model that is failing and lift the suspension; `listing` asks for a server's models
prompts      chat templates: messages and steps to token ids
calibration  token prices of a self-hosted server, from its price per hour
errors       the errors of this package
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
