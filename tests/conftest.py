"""What every test may use: a seeded generator, micro checkpoints of what we serve, one vLLM host for the session.

Weights are random, so texts are nonsense; what is tested is that they are the nonsense the weights say. Importing
vLLM takes about 10 s of CPU and loading the four models 3 s, once, and only when a test asks for `host`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# What a test finds does not depend on how fast the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

ROOT = Path(__file__).parent.parent
_ON_BROKER = "tests/integration/"
CONTEXT_TOKENS = 256
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|step|>"]
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.2,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest when two processes run the tests (`make test`)."""
    if getattr(config.option, "loadgroup", False):  # set by xdist, in its processes
        items.sort(key=lambda item: not item.nodeid.startswith(_ON_BROKER))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep together what shares a broker, else each file: then fixtures of a module and of the broker are made once.

    The mark `xdist_group` would say so too, but its name is lost on the way from a process of pytest 9.
    """
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByBrokerOrFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _ON_BROKER if nodeid.startswith(_ON_BROKER) else nodeid.partition("::")[0]

    return ByBrokerOrFile(config, log) if config.getvalue("dist") == "loadgroup" else None


def make_tokenizer() -> Any:
    """A character-level tokenizer whose blank line is one token, and which merges `ab` and `\\n\\nQ`."""
    characters = ["\n", *(chr(code) for code in range(32, 127))]
    merges = [("\n", "\n"), ("a", "b"), ("\n\n", "Q")]
    return character_tokenizer(characters, merges, SPECIAL, CHAT_TEMPLATE)


def character_tokenizer(
    characters: Sequence[str], merges: Sequence[tuple[str, str]], special: Sequence[str], template: str
) -> Any:
    """A tokenizer of single characters and merged pairs; the first special token ends a message."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    merged = [first + second for first, second in merges]
    ids = {token: at for at, token in enumerate([*characters, *merged, "<unk>"])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(merges), unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=special[0],
        pad_token=special[0],
        unk_token="<unk>",
        additional_special_tokens=list(special[1:]),
    )
    fast.chat_template = template
    return fast


def save_generator(folder: Path, seed: int, tokenizer: Any, shape: Mapping[str, Any]) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        **shape,
        vocab_size=len(tokenizer),
        head_dim=32,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_reward_model(
    folder: Path, seed: int, tokenizer: Any, shape: Mapping[str, Any], architecture: str
) -> None:
    """Save a Qwen2 body with the head of the architecture, under the names its public checkpoints use."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen2Config, Qwen2Model

    torch.manual_seed(seed)
    config = Qwen2Config(**shape, vocab_size=len(tokenizer))
    body = Qwen2Model(config).eval()
    weights = {f"model.{name}": weight.contiguous() for name, weight in body.state_dict().items()}
    head = _head(architecture, shape["hidden_size"])
    weights |= {name: weight.contiguous() for name, weight in head.state_dict().items()}
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    described = config.to_dict() | {
        "architectures": [architecture],
        "num_labels": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(described))
    tokenizer.save_pretrained(folder)


def _head(architecture: str, hidden: int) -> Any:
    from torch import nn

    if architecture == "Qwen2ForPrmModel":
        return nn.ModuleDict({"v_head": nn.ModuleDict({"summary": nn.Linear(hidden, 1)})})
    return nn.ModuleDict({"score": nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))})


class Micro:
    """The micro checkpoints' folders, and what plain transformers says about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def greedy(self, name: str, prompt_ids: Sequence[int], tokens: int) -> list[int]:
        import torch
        from transformers import Qwen3ForCausalLM

        model = Qwen3ForCausalLM.from_pretrained(self.path(name), dtype=torch.float32).eval()
        with torch.no_grad():
            ids = model.generate(
                torch.tensor([list(prompt_ids)]), do_sample=False, max_new_tokens=tokens, pad_token_id=0
            )
        return [int(token) for token in ids[0, len(prompt_ids) :]]

    def rewards(self, name: str, prompt_ids: Sequence[int]) -> Any:
        """Class probabilities of every token, shape (tokens, labels), by a plain forward pass."""
        import torch
        from safetensors.torch import load_file
        from transformers import Qwen2Config, Qwen2Model

        weights = load_file(self.folder / name / "model.safetensors")
        body = Qwen2Model(Qwen2Config.from_pretrained(self.path(name))).eval()
        body.load_state_dict({key[6:]: weight for key, weight in weights.items() if key.startswith("model.")})
        with torch.no_grad():
            hidden = body(torch.tensor([list(prompt_ids)])).last_hidden_state[0]
            if "v_head.summary.weight" in weights:
                values = hidden @ weights["v_head.summary.weight"].T + weights["v_head.summary.bias"]
                return torch.sigmoid(values).numpy()
            inner = torch.relu(hidden @ weights["score.0.weight"].T + weights["score.0.bias"])
            return torch.softmax(inner @ weights["score.2.weight"].T + weights["score.2.bias"], -1).numpy()


@pytest.fixture(scope="session")
def checkpoints() -> SimpleNamespace:
    """How checkpoints of random weights are made, for tests that need others than the micro ones."""
    return SimpleNamespace(
        tokenizer=character_tokenizer, generator=save_generator, reward_model=save_reward_model
    )


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Micro:
    folder = tmp_path_factory.mktemp("micro")
    tokenizer = make_tokenizer()
    save_generator(folder / "micro-a", 0, tokenizer, SHAPE)
    save_generator(folder / "micro-b", 1, tokenizer, SHAPE)
    save_reward_model(folder / "micro-prm", 2, tokenizer, SHAPE, "Qwen2ForProcessRewardModel")
    save_reward_model(folder / "micro-skywork", 3, tokenizer, SHAPE, "Qwen2ForPrmModel")
    return Micro(folder)


class HostKeeper:
    """Keeps one living host: a process may have one only, and starting costs seconds."""

    def __init__(self, micro: Micro) -> None:
        self.micro = micro
        self.host: Any = None

    def living(self) -> Any:
        from agents.serving.vllm.host import EngineHost
        from agents.serving.vllm.settings import HostedModel, HostSettings

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
            settings = HostSettings.of([*generators, *reward_models], threads=1)
            self.host = EngineHost(settings).start()
        return self.host

    def close(self) -> None:
        """Close the host, for a test that starts one of its own; the next that asks for it starts it anew."""
        if self.host is not None:
            self.host.close()
            self.host = None


@pytest.fixture(scope="session")
def host_keeper(micro: Micro) -> Iterator[HostKeeper]:
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed (extra `engine`)")
    keeper = HostKeeper(micro)
    yield keeper
    keeper.close()


@pytest.fixture
def host(host_keeper: HostKeeper) -> Any:
    """The session's engine host with micro-a, micro-b, micro-prm and micro-skywork."""
    return host_keeper.living()


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator of its own for each test, always seeded alike."""
    return np.random.default_rng(3)


@pytest.fixture
def root() -> Path:
    """The checkout: where `python -m …` starts."""
    return ROOT


@pytest.fixture(scope="session")
def poison() -> Any:
    """The module `poison.py`: records that nobody should have written."""
    spec = spec_from_file_location("poison", Path(__file__).with_name("poison.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
