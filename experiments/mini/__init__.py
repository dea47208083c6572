"""The mini family: small language models and process reward models, really trained, that vLLM serves like Qwen3."""
