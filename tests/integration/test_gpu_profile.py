r"""The gpu profile's commands and settings, on micro checkpoints of the same architectures and vLLM's CPU build.

What differs from a machine with GPUs: the checkpoints (Qwen3 and Skywork's reward model with random weights), their
context, the number type and the port. Commands, entry point, environment, catalogue entries, engines and the verifier
are those of docker-compose.yml, infra/qwen3.env and infra/catalogue/qwen3.yaml.
"""

import asyncio
import os
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Catalogue
from agents.serving.engine import Prefix
from schemas.query import Message
from streams.services.hosting import engines_of, verifier_of
from streams.settings import Settings
from tests.support.compose import GPU_ENV, env_of, environment_of, services_of
from tests.support.vllm_servers import vllm_servers

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed (extra `engine`)"),
]

ROOT = Path(__file__).parents[2]
CONTEXT_TOKENS = 256
GENERATOR, VERIFIER = "vllm-qwen3-0-6b", "vllm-skywork-1-5b"
MICRO = {GENERATOR: "micro-a", VERIFIER: "micro-skywork"}


def compose() -> dict[str, dict[str, Any]]:
    """The services under `--env-file infra/qwen3.env`."""
    return services_of(env_of(GPU_ENV))


def profile_environment() -> dict[str, str]:
    """The executor's environment in the profile."""
    given = environment_of(compose()["executor"])
    return {key: value for key, value in given.items() if key.startswith("UNISCALE_")}


def installed(folder: Path) -> Path:
    """Make the product's entry points visible, as `pip install .` does in the image `vllm`."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "uniscale_streams-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: uniscale-streams\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items()) for group, each in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def servers(micro: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of one generator and one verifier, started by the profile's own commands."""
    folder = tmp_path_factory.mktemp("gpu-profile")
    paths = os.pathsep.join([str(installed(folder / "site")), str(ROOT)])
    environ = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    arguments = {}
    for service, name in MICRO.items():
        checkpoint, *flags = compose()[service]["command"]
        flags[flags.index("--max-model-len") + 1] = str(CONTEXT_TOKENS)
        model = ["--model", micro.path(name), "--served-model-name", checkpoint]
        arguments[service] = [*model, *flags, "--max-num-seqs", "8"]
    with vllm_servers(arguments, environ, folder) as found:
        yield found


def here(entry: Any, url: str, checkpoint: str) -> Any:
    """A catalogue entry whose server runs here under the same name, with a micro checkpoint's tokenizer."""
    replace = msgspec.structs.replace
    endpoint = replace(entry.endpoint, url=url, served_name=entry.checkpoint)
    engine = replace(entry.engine, context_tokens=CONTEXT_TOKENS, dtype="float32")
    return replace(entry, checkpoint=checkpoint, endpoint=endpoint, engine=engine)


def test_a_service_of_the_profile_drafts_and_scores(servers: dict[str, str], micro: Any) -> None:
    settings = Settings.from_env(profile_environment())
    catalogue: Catalogue = load_catalogue(ROOT / settings.catalogue)
    known: list[Any] = [*catalogue.models, *catalogue.verifiers]
    by_checkpoint = {each.checkpoint: each for each in known}
    model, verifier = (
        here(by_checkpoint[compose()[service]["command"][0]], servers[service], micro.path(MICRO[service]))
        for service in (GENERATOR, VERIFIER)
    )
    question = Prefix(messages=(Message(role="user", content="How many is 12 + 7?"),))
    sampling = msgspec.structs.replace(model.sampling, step_tokens=24)

    async def run() -> tuple[Any, Any, Any]:
        engines = engines_of(settings, catalogue)
        engines.want([model])
        judge = await verifier_of(settings, verifier, catalogue)
        try:
            await engines.settled()
            engine = await engines.get(model)
            drafts = await engine.generate("q/1", [question], 3, [0, 1, 2], sampling)
            again = await engine.generate("q/1", [question], 3, [0, 1, 2], sampling)
            scores = await judge.score("How many is 12 + 7?", [(draft.text,) for draft in drafts])
            return drafts, again, scores
        finally:
            await engines.close()
            await judge.close()

    drafts, again, scores = asyncio.run(run())
    assert [draft.text for draft in drafts] == [draft.text for draft in again]
    assert len({draft.text for draft in drafts}) > 1
    assert all(0 < draft.tokens <= 24 for draft in drafts)
    assert all(0.0 <= scored.score <= 1.0 for scored in scores)
    assert len({scored.score for scored in scores}) > 1


def test_the_instruction_reaches_the_model(servers: dict[str, str], micro: Any) -> None:
    settings = Settings.from_env(profile_environment())
    catalogue = load_catalogue(ROOT / settings.catalogue)
    model = here(catalogue.models[0], servers[GENERATOR], micro.path(MICRO[GENERATOR]))
    question = Prefix(messages=(Message(role="user", content="How many is 12 + 7?"),))
    greedy = msgspec.structs.replace(model.sampling, temperature=0.0, step_tokens=24)

    async def prompt_tokens(instruction: str) -> int:
        engines = engines_of(settings.replace(instruction=instruction), catalogue)
        engines.want([model])
        try:
            await engines.settled()
            [draft] = await (await engines.get(model)).generate("q/1", [question], 1, [0], greedy)
            return int(draft.prompt_tokens)
        finally:
            await engines.close()

    longer, plain = asyncio.run(prompt_tokens(settings.engine.instruction)), asyncio.run(prompt_tokens(""))
    # The micro tokenizer has a token for each character.
    assert longer - plain >= len(settings.engine.instruction)
