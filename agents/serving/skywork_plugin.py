"""vLLM plugin for a separate `vllm serve` of Skywork-o1-Open-PRM (entry point group `vllm.general_plugins`).

vLLM loads it in the server and in its worker processes, so the class is named and not imported here. Start the
server with `--runner pooling`; it returns a value for every token, and the client picks the steps' places.
"""

ARCHITECTURE = "Qwen2ForPrmModel"


def register() -> None:
    """Tell vLLM's model registry where the class is."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, "agents.serving.skywork:Qwen2ForPrmModel")
