"""The plain sampler: the same logits as transformers, the same drafts alone and in a crowd."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Sampling, VerifierModel
from agents.serving.engine import Continuer, Drafted, Prefix
from agents.serving.prompts import ChatPrompts
from agents.verifier.formats import StepTagFormat
from experiments.sampler.decoder import Decoder
from experiments.sampler.engine import (
    Pump,
    Reencoding,
    Stepwise,
    TorchEngine,
    bits,
    closes,
    cumulative,
    draw,
    uniforms,
)
from experiments.sampler.verifier import TorchRows
from schemas.query import Message

SAMPLING = Sampling(temperature=1.0, step_tokens=10, depth_limit=5)


def ask(text: str, *steps: str) -> Prefix:
    return Prefix(messages=(Message(role="user", content=text),), steps=steps)


def engine(tiny: Path) -> TorchEngine:
    return TorchEngine("tiny", tiny / "models" / "tiny", 200, Pump())


def test_forward_is_that_of_transformers(tiny: Path) -> None:
    from transformers import Qwen3ForCausalLM

    folder = tiny / "models" / "tiny"
    decoder, reference = Decoder(folder), Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        long, short = torch.randint(0, 20, (1, 17)), torch.randint(0, 20, (1, 6))
        pieces = []
        for ids in (long, short):
            cache = decoder.cache([[]], [0], ids.shape[1])
            decoder.forward(ids, cache)
            pieces.append([cache.values[:, :, 0]])
        new = torch.randint(0, 20, (2, 3))
        logits = decoder.logits(decoder.forward(new, decoder.cache(pieces, [0, 1], 3)))
        for row, ids in enumerate((long, short)):
            expected = reference(torch.cat([ids, new[row : row + 1]], 1)).logits[0, -3:]
            assert torch.allclose(logits[row], expected, atol=1e-5)


def test_greedy_drafts_are_those_of_transformers(tiny: Path) -> None:
    from transformers import Qwen3ForCausalLM

    folder = tiny / "models" / "tiny"
    reference = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = ChatPrompts.load(str(folder))
    greedy = Sampling(temperature=0, step_tokens=10, depth_limit=5)
    for text in ("12 a", "b 3 c 4", "ox"):
        (draft,) = asyncio.run(engine(tiny).generate("q/1", [ask(text)], 1, [7], greedy))
        ids = list(prompts.prompt([("user", text)]))
        for token in draft.token_ids or ():
            with torch.inference_mode():
                assert token == int(reference(torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(token)
        assert draft.tokens == len(draft.token_ids or ())


def test_a_draft_hangs_on_its_seed_alone(tiny: Path) -> None:
    async def crowd(made: TorchEngine) -> list[list[Drafted]]:
        calls = [
            made.generate(f"q{i}/1", [ask("12 a" + "b" * i)], 6, range(i * 10, i * 10 + 6), SAMPLING)
            for i in range(9)
        ]
        return list(await asyncio.gather(*calls))

    together = asyncio.run(crowd(engine(tiny)))
    for i in (0, 4, 8):
        alone = asyncio.run(
            engine(tiny).generate("x/1", [ask("12 a" + "b" * i)], 6, range(i * 10, i * 10 + 6), SAMPLING)
        )
        assert alone == together[i]
    assert {draft.finish for drafts in together for draft in drafts} >= {"separator", "eos", "length"}


def test_a_path_goes_on_alike_whether_its_keys_are_kept_or_not(tiny: Path) -> None:
    made = engine(tiny)
    first = asyncio.run(made.generate("q/1", [ask("3 ox")], 24, range(24), SAMPLING))
    going = [ask("3 ox", draft.text) for draft in first if draft.finish == "separator"]
    assert len(going) > 2
    kept = asyncio.run(made.generate("q/2", going, 2, range(100, 100 + 2 * len(going)), SAMPLING))
    fresh = asyncio.run(engine(tiny).generate("q/2", going, 2, range(100, 100 + 2 * len(going)), SAMPLING))
    assert [d.text for d in kept] == [d.text for d in fresh]


def test_random_numbers_are_those_of_splitmix64() -> None:
    seed = np.array([1234567], dtype=np.uint64)
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [int(bits(seed, at)[0]) for at in range(4)] == known


def test_tokens_are_drawn_from_the_tempered_distribution() -> None:
    rng = np.random.default_rng(3)
    logits = torch.tensor(rng.normal(size=12))
    u = uniforms(rng.integers(2**63, size=40_000).astype(np.uint64), 5)
    for sampling in (
        Sampling(temperature=0.7, step_tokens=1, depth_limit=1),
        Sampling(temperature=1.0, step_tokens=1, depth_limit=1, top_k=4),
        Sampling(temperature=1.0, step_tokens=1, depth_limit=1, top_p=0.6),
    ):
        drawn = draw(cumulative(logits[None], sampling), np.zeros(len(u), dtype=np.int64), u)
        p = np.exp(logits.numpy() / sampling.temperature)
        p /= p.sum()
        order = np.argsort(-p)
        keep = np.ones(12, dtype=bool)
        if sampling.top_k:
            keep[order[sampling.top_k :]] = False
        keep[order[np.cumsum(p[order]) - p[order] >= sampling.top_p]] = False
        p = np.where(keep, p, 0) / p[keep].sum()
        assert np.abs(np.bincount(drawn, minlength=12) / len(drawn) - p).max() < 0.01
        assert p[np.unique(drawn)].min() > 0


@pytest.mark.parametrize("steps", [("12",), ("1\n\n", "ab 2\n\n", "x")])
def test_reward_rows_are_those_of_a_plain_pass(tiny: Path, steps: tuple[str, ...]) -> None:
    from safetensors.torch import load_file
    from transformers import Qwen2Config, Qwen2Model

    from agents.verifier.formats import StepTagFormat

    folder = tiny / "models" / "prm-a"
    weights = load_file(folder / "model.safetensors")
    body = Qwen2Model(Qwen2Config.from_pretrained(folder)).eval()
    body.load_state_dict({name[6:]: w for name, w in weights.items() if name.startswith("model.")})
    prompts = ChatPrompts.load(str(folder))
    form = StepTagFormat(prompts, "<|step|>")
    rows = TorchRows(folder, form.tag_id, Pump())
    for upto in range(1, len(steps) + 1):
        rendered = form.render("3 ox", steps[:upto])
        (found,) = asyncio.run(rows.rows([rendered.token_ids]))
        with torch.inference_mode():
            hidden = body(torch.tensor([rendered.token_ids])).last_hidden_state[0, list(rendered.positions)]
            inner = torch.relu(hidden @ weights["score.0.weight"].T + weights["score.0.bias"])
            expected = (inner @ weights["score.2.weight"].T + weights["score.2.bias"]).softmax(-1)
        assert np.allclose(found, expected.numpy(), atol=1e-5)


# Paths rendered step by step have the tokens of paths rendered whole.

ROOT = Path(__file__).parents[3]
MINI = load_catalogue(ROOT / "infra" / "catalogue" / "mini-six.yaml")
SMALLEST = str(ROOT / MINI.models[0].checkpoint)
QUESTION = "A farm stores 19 potatoes. 3 potatoes spoil. How many are left?"
PATHS = [
    ("spoiled: 19-3=16\n\n",),
    ("spoiled: 19-3=16\n\n", "\\boxed{16}"),
    ("\nspoiled: 19\n\n", "\n\n", " -3=16\n\n", "16"),
    ("cut in the mid", "dle: 19-3\n\n", "<|step|> is no tag\n\n", ""),
]


@pytest.mark.parametrize("steps", PATHS)
@pytest.mark.parametrize("verifier", MINI.verifiers, ids=lambda each: each.name)
def test_verifier_prompts(verifier: VerifierModel, steps: tuple[str, ...]) -> None:
    whole = StepTagFormat(ChatPrompts.load(str(ROOT / verifier.checkpoint)), "<|step|>")
    stepwise = Stepwise(whole)
    for _ in range(2):  # the second is remembered
        assert stepwise.render(QUESTION, steps) == whole.render(QUESTION, steps)


@pytest.mark.parametrize("steps", PATHS)
def test_generator_prompts(steps: tuple[str, ...]) -> None:
    prompts = ChatPrompts.load(SMALLEST)
    sampling = Sampling(temperature=1.0, step_tokens=32, depth_limit=10)
    prefix = Prefix(messages=(Message(role="user", content=QUESTION),), steps=steps)
    whole = Continuer("m", prompts, 1024, remembered_bytes=0).plan(prefix, sampling)
    assert Reencoding("m", prompts, 1024, "\n\n").plan(prefix, sampling) == whole


def test_a_delimiter_that_tokens_reach_over_closes_nothing(tiny: Path) -> None:
    assert closes(ChatPrompts.load(SMALLEST), "\n\n")
    assert not closes(ChatPrompts.load(str(tiny / "models" / "tiny")), "\n")
