"""The engines: vLLM in this process, a server over HTTP, or a recording."""
