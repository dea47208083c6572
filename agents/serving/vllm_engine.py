"""Engine for a model that vLLM hosts in this process. All drafts of all queries share one continuous batch."""

from collections.abc import Sequence

from agents.catalogue.models import Sampling
from agents.serving.engine import (
    Continuation,
    Continuer,
    Drafted,
    OnText,
    Prefix,
    check_seeds,
    finish_of,
)
from agents.serving.errors import ServingError, StreamBrokenError
from agents.serving.prompts import ChatPrompts
from agents.serving.retries import USUAL, Retries, retrying
from agents.serving.vllm_host import EngineHost
from agents.serving.vllm_requests import GeneratedDraft, Generation
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
            _request(plan, seed, sampling) for plan, seed in zip(plans, seeds, strict=True) if plan.max_tokens
        ]
        made = iter(await retrying(lambda: self._host.run(self.model, requests), self._retries))
        return [
            self._drafted(plan, next(made), sampling) if plan.max_tokens else self._continuer.full(plan)
            for plan in plans
        ]

    async def stream(
        self, step_id: str, prefix: Prefix, seed: int, sampling: Sampling, on_text: OnText
    ) -> Drafted:
        """Return one draft; see `StreamingEngine.stream`."""
        plan = self._continuer.plan(prefix, sampling)
        if not plan.max_tokens:
            return self._continuer.full(plan)
        request, began = _request(plan, seed, sampling), False

        def pass_on(text: str) -> None:
            nonlocal began
            began = True
            on_text(text)

        async def attempt() -> GeneratedDraft:
            try:
                return await self._host.stream(self.model, request, pass_on)
            except ServingError as error:
                if error.retryable and began:
                    raise StreamBrokenError(str(error)) from error
                raise

        return self._drafted(plan, await retrying(attempt, self._retries), sampling)

    def _drafted(self, plan: Continuation, completion: GeneratedDraft, sampling: Sampling) -> Drafted:
        finish = finish_of(completion.finish, completion.stop, sampling.delimiter)
        return self._continuer.draft(
            plan, text=completion.text, finish=finish, token_ids=completion.token_ids
        )

    async def close(self) -> None:
        """Do nothing: the host is closed by whoever started it."""


def _request(plan: Continuation, seed: int, sampling: Sampling) -> Generation:
    return Generation(
        prompt_token_ids=plan.prompt_ids,
        seed=seed,
        max_tokens=plan.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        stop=(sampling.delimiter,),
    )
