"""Engine for a model that vLLM hosts in this process. All drafts of all queries share one continuous batch."""

from collections.abc import Sequence

from agents.catalogue.models import Sampling
from agents.serving.engine import Continuer, Drafted, Prefix, check_seeds, finish_of
from agents.serving.prompts import ChatPrompts
from agents.serving.retries import USUAL, Retries, retrying
from agents.serving.vllm_host import EngineHost
from agents.serving.vllm_requests import Generation
from schemas.search import Served


class VllmEngine:
    """Drafts steps with one model of an engine host; whoever started the host closes it.

    Args:
        host: A started host that has loaded the model.
        model: The model's name in the host.
        prompts: The model's chat template.
        instruction: A system message for conversations without one.
        retries: Number of attempts per batch, and the pauses between them.
    """

    def __init__(
        self,
        host: EngineHost,
        model: str,
        prompts: ChatPrompts,
        *,
        instruction: str = "",
        retries: Retries = USUAL,
    ) -> None:
        self.model = model
        self.served = Served(name=host.vllm_name, version=host.vllm_version, model=model)
        self._host = host
        self._retries = retries
        self._continuer = Continuer(model, prompts, host.context_tokens[model], instruction=instruction)

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        """Return `n` drafts for each prefix; see `Engine.generate`."""
        check_seeds(prefixes, n, seeds)
        plans = [plan for prefix in prefixes for plan in [self._continuer.plan(prefix, sampling)] * n]
        requests = [
            Generation(
                prompt_token_ids=plan.prompt_ids,
                seed=seed,
                max_tokens=plan.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                stop=(sampling.delimiter,),
            )
            for plan, seed in zip(plans, seeds, strict=True)
            if plan.max_tokens
        ]
        made = iter(await retrying(lambda: self._host.run(self.model, requests), self._retries))
        drafts = []
        for plan in plans:
            if not plan.max_tokens:
                drafts.append(self._continuer.full(plan))
                continue
            completion = next(made)
            finish = finish_of(completion.finish, completion.stop, sampling.delimiter)
            drafts.append(
                self._continuer.draft(
                    plan, text=completion.text, finish=finish, token_ids=completion.token_ids
                )
            )
        return drafts

    async def close(self) -> None:
        """Do nothing: the host is closed by whoever started it."""
