"""Skywork-o1-Open-PRM for vLLM: architecture `Qwen2ForPrmModel`, which vLLM has no class for.

A Qwen2 body and one linear value head over every hidden state; the score of a position is the sigmoid of
its value. Weights are named `model.*` and `v_head.summary.*`. The engine host registers the class itself;
a separate `vllm serve --runner pooling` finds it through the entry point group `vllm.general_plugins`, which
`pyproject.toml` points at `agents.serving.vllm_adapter:register_models`.
"""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.pooler.activations import PoolerClassify
from vllm.model_executor.layers.pooler.tokwise import pooler_for_token_classify
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix
from vllm.sequence import IntermediateTensors

ARCHITECTURE = "Qwen2ForPrmModel"


class ValueHead(nn.Module):
    """One value a position. `summary` is the name the checkpoint gives the layer."""

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
    """Return one sigmoid value for every token of a prompt."""

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
        """Return the value of every token before the sigmoid, which the pooler applies."""
        hidden_states = self.model(input_ids, positions, intermediate_tensors, inputs_embeds)
        if isinstance(hidden_states, IntermediateTensors):
            return hidden_states
        values: torch.Tensor = self.v_head(hidden_states.to(self.head_dtype))
        return values

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load a checkpoint; return the names of the weights taken."""
        loaded: set[str] = AutoWeightsLoader(self, ignore_unexpected_prefixes=["lm_head."]).load_weights(
            weights
        )
        return loaded
