"""What every test may use: a seeded generator, micro checkpoints of what we serve, one vLLM host for the session.

Weights are random, so texts are nonsense; what is tested is that they are the nonsense the weights say. Importing
vLLM takes about 10 s of CPU and loading the four models 3 s, once, and only when a test asks for `host`.
"""

import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from streams.local.broker import BrokerError, Kind, kafka_home

# What a test finds does not depend on how fast the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say which broker the tests run on: `make test` asks for the embedded one, `make test-kafka` for Apache Kafka."""
    parser.addoption(
        "--broker", choices=["auto", "embedded", "kafka"], default="auto",
        help="broker of the tests that need one; auto: Apache Kafka where KAFKA_HOME or ../shared/kafka has it",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to start where Apache Kafka is asked for and there is none."""
    chosen_broker(config)


def chosen_broker(config: pytest.Config) -> Kind:
    """Return the broker that this run's tests are to run on."""
    wanted = config.getoption("broker")
    if wanted == "embedded":
        return "embedded"
    try:
        home = kafka_home(os.environ)
    except BrokerError as error:
        raise pytest.UsageError(str(error)) from None
    if home and shutil.which("java"):
        return "kafka"
    if wanted == "kafka":
        missing = "needs Java 17 or later on the PATH" if home else "was not found"
        raise pytest.UsageError(
            f"--broker kafka: Apache Kafka {missing}; set KAFKA_HOME to an unpacked distribution "
            "(https://kafka.apache.org/downloads), or put one in ../shared/kafka beside the checkout"
        )
    return "embedded"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs Apache Kafka or public data that is not here, and say so."""
    on_kafka = chosen_broker(config) == "kafka"
    for item in items:
        if not on_kafka and (why := item.get_closest_marker("kafka")):
            item.add_marker(pytest.mark.skip(reason=f"needs Apache Kafka (make test-kafka): {why.args[0]}"))
        for needed in item.iter_markers("data"):
            if missing := [name for name in needed.args if not (DATA / name).exists()]:
                item.add_marker(pytest.mark.skip(reason=f"needs ../shared/data/{missing[0]}"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole files; the first process begins with those that need a broker, any other with the rest.

    A file's fixtures are then made once, and what mostly waits runs beside what mostly computes.
    """
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0]

        def _assign_work_unit(self, node: Any) -> None:
            first = node is self.nodes[0]
            preferred = (name for name in self.workqueue if name.startswith(_ON_BROKER) is first)
            self.workqueue.move_to_end(next(preferred, next(iter(self.workqueue))), last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what was skipped by its reason: a test that is never run looks like one that passes."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", ()):
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[said.removeprefix("Skipped: ")].append(report.nodeid.partition("[")[0])
    if not reasons:
        return
    terminalreporter.section(f"{sum(map(len, reasons.values()))} skipped")
    for reason, nodeids in sorted(reasons.items(), key=lambda each: (-len(each[1]), each[0])):
        terminalreporter.line(f"{len(nodeids):3} {reason}")
        for nodeid, times in Counter(nodeids).items():
            terminalreporter.line(f"      {nodeid}{f' ({times})' if times > 1 else ''}")


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


@pytest.fixture(scope="session")
def broker_kind(request: pytest.FixtureRequest) -> Kind:
    """Which broker tests use that need one, whichever it is."""
    return chosen_broker(request.config)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator of its own for each test, always seeded alike."""
    return np.random.default_rng(3)


@pytest.fixture
def root() -> Path:
    """The checkout: where `python -m …` starts."""
    return ROOT
