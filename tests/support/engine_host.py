"""The one vLLM host that a process of tests may have.

Importing vLLM takes about 10 s of CPU and loading the four micro models 3 s, once, and only when a test asks for it.
"""

from typing import Any

from tests.support.checkpoints import CONTEXT_TOKENS, Micro, make_tokenizer


class HostKeeper:
    """Keeps one living host: a process may have one only, and starting costs seconds."""

    def __init__(self, micro: Micro) -> None:
        self.micro = micro
        self.host: Any = None

    def living(self) -> Any:
        from agents.serving.vllm_host import EngineHost
        from agents.serving.vllm_settings import HostedModel

        if self.host is None or self.host.failure is not None:
            step_tag_id = make_tokenizer().convert_tokens_to_ids("<|step|>")
            generators = [
                HostedModel(name=name, path=self.micro.path(name), context_tokens=CONTEXT_TOKENS)
                for name in ("micro-a", "micro-b")
            ]
            reward_models = [
                HostedModel(
                    name=name,
                    path=self.micro.path(name),
                    runner="pooling",
                    context_tokens=CONTEXT_TOKENS,
                    prefix_caching=False,
                    step_tag_id=tag,
                )
                for name, tag in (("micro-prm", step_tag_id), ("micro-skywork", None))
            ]
            self.host = EngineHost(threads=1).start()
            for model in (*generators, *reward_models):
                self.host.load(model).result(600)
        return self.host

    def close(self) -> None:
        """Close the host, for a test that starts one of its own; the next that asks for it starts it anew."""
        if self.host is not None:
            self.host.close()
            self.host = None
