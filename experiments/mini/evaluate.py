"""The family's evaluation: every generator and verifier through vLLM, on test questions made from the seed given.

One sample is the mean over all 16; pass@16 asks whether any is right; best-of-16 is the one whose path mean the
verifier scores highest. Results of finished models are kept beside the output, so a killed run goes on where it was.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from experiments.measures.verifier_scores import Judged, measure
from experiments.mini.corpus import problems_of
from experiments.mini.labels import is_right, split_steps
from experiments.mini.problems import CONTEST, LEVELS, Problem
from experiments.mini.programs import LEVELS as CODE_LEVELS
from experiments.mini.sampling import MAX_NEW_TOKENS
from experiments.mini.tokenizer import END, STEP, prompt_of, token_id
from experiments.mini.verifier import GOOD_LABEL, verifier_tokens

SAMPLES = 16
TEMPERATURE = 0.8
CONTEXT_TOKENS = 1024


@dataclass(frozen=True)
class Questions:
    """The evaluated questions: mini-math of five levels, the contest set, and mini-code."""

    math: tuple[Problem, ...]
    contest: tuple[Problem, ...]
    code: tuple[Problem, ...]


def test_questions(count: int, seed: int) -> Questions:
    """Return `count` mini-math questions (a fifth each level), and as many contest and code ones as a level has.

    Raises:
        ValueError: when the count is not a positive multiple of five.
    """
    if count < 5 or count % len(LEVELS):
        raise ValueError(
            f"--questions {count}: give a positive multiple of {len(LEVELS)}, as many for each level"
        )
    each = count // len(LEVELS)

    def drawn(level: str, number: int) -> list[Problem]:
        return list(islice(problems_of(level, "test", seed), number))

    return Questions(
        tuple(problem for level in LEVELS for problem in drawn(level, each)),
        tuple(drawn(CONTEST, each)),
        tuple(problem for level in CODE_LEVELS for problem in drawn(level, max(1, each // len(CODE_LEVELS)))),
    )


# An engine that is collected takes the process group of all others with it.
_ENGINES: list[Any] = []


def open_engine(folder: Path, seed: int, pooling: bool = False) -> Any:
    """Return a vLLM engine over a checkpoint of the family. Engines live in this process until it ends."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("SETUPTOOLS_USE_DISTUTILS", "stdlib")
    from vllm import LLM
    from vllm.config import PoolerConfig

    shared: dict[str, Any] = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": CONTEXT_TOKENS,
        "max_num_seqs": 256,
        "distributed_executor_backend": "uni",
        "seed": seed,
        "disable_log_stats": True,
    }
    if not pooling:
        _ENGINES.append(LLM(str(folder), enable_prefix_caching=True, **shared))
        return _ENGINES[-1]
    tag = token_id(STEP)
    pooler = PoolerConfig(tok_pooling_type="STEP", step_tag_id=tag)
    _ENGINES.append(LLM(str(folder), runner="pooling", pooler_config=pooler, **shared))
    return _ENGINES[-1]


def sampled(engine: Any, problems: Sequence[Problem], count: int, temperature: float) -> list[list[str]]:
    """Return `count` solutions a problem, sampled through vLLM."""
    from vllm import SamplingParams

    end = token_id(END)
    sampling = SamplingParams(
        n=count, temperature=temperature, max_tokens=MAX_NEW_TOKENS, stop_token_ids=[end]
    )
    outputs = engine.generate([prompt_of(p.question) for p in problems], sampling)
    return [[choice.text for choice in output.outputs] for output in outputs]


def path_means(engine: Any, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """Return the mean step score of each (question, solution), scored by vLLM's pooling runner.

    Raises:
        RuntimeError: when the engine returns another number of scores than there are steps.
    """
    wanted = [pair for pair in dict.fromkeys(pairs) if split_steps(pair[1])]
    prompts = [{"prompt_token_ids": verifier_tokens(q, split_steps(s))} for q, s in wanted]
    outputs = engine.encode(prompts, pooling_task="token_classify")
    means = dict.fromkeys(pairs, 0.0)
    for (question, solution), output in zip(wanted, outputs, strict=True):
        scores = np.asarray(output.outputs.data, dtype=np.float64)[:, GOOD_LABEL]
        if len(scores) != len(split_steps(solution)):
            raise RuntimeError(
                f"{len(scores)} scores for {len(split_steps(solution))} steps: is the step tag right?"
            )
        means[question, solution] = float(scores.mean())
    return means


def evaluate(
    models: Path, generators: Sequence[str], verifiers: Sequence[str], count: int, seed: int, out: Path
) -> dict[str, object]:
    """Evaluate the family found in `models` and write the result to `out`; return what was written."""
    import vllm

    questions = test_questions(count, seed)
    kept = out.with_suffix("") / f"{count}-{seed}"
    kept.mkdir(parents=True, exist_ok=True)
    drawn = {
        name: _samples(models / name, questions, seed, kept) for name in tqdm(generators, desc="generators")
    }
    scores = {
        name: _scores(models / name, questions, drawn, seed, kept)
        for name in tqdm(verifiers, desc="verifiers")
    }
    report = {
        "engine": {"name": "vllm", "version": vllm.__version__},
        "questions": count,
        "seed": seed,
        "samples": SAMPLES,
        "temperature": TEMPERATURE,
        "generators": [_generator_row(models, name, questions, drawn[name], scores) for name in generators],
        "verifiers": [_verifier_row(models, name, questions, drawn, scores[name]) for name in verifiers],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    return report


Drawn = dict[str, list[list[str]]]


def _kept_file(kept: Path, folder: Path, *others: Path) -> Path:
    """Return where the part of one model is kept, by its weights: a model trained anew is measured anew."""
    digest = sha256()
    for each in (folder, *others):
        digest.update((each / "model.safetensors").read_bytes())
    return kept / f"{folder.name}-{digest.hexdigest()[:12]}.json"


def _samples(folder: Path, questions: Questions, seed: int, kept: Path) -> Drawn:
    file = _kept_file(kept, folder)
    if not file.exists():
        engine = open_engine(folder, seed)
        drawn: Drawn = {
            "greedy": sampled(engine, [*questions.math, *questions.contest, *questions.code], 1, 0.0),
            "math": sampled(engine, questions.math, SAMPLES, TEMPERATURE),
            "code": sampled(engine, questions.code, SAMPLES, TEMPERATURE),
        }
        file.write_text(json.dumps(drawn))
    return dict(json.loads(file.read_text()))


def _scores(
    folder: Path, questions: Questions, drawn: dict[str, Drawn], seed: int, kept: Path
) -> dict[tuple[str, str], float]:
    # Another generator draws other solutions, which have no scores yet: its weights are part of the name too.
    file = _kept_file(kept, folder, *(folder.parent / name for name in drawn))
    pairs = [
        (problem.question, text)
        for each in drawn.values()
        for problem, texts in zip(questions.math, each["math"], strict=True)
        for text in texts
    ]
    if not file.exists():
        engine = open_engine(folder, seed, pooling=True)
        file.write_text(json.dumps([[*pair, score] for pair, score in path_means(engine, pairs).items()]))
    return {(question, text): score for question, text, score in json.loads(file.read_text())}


def _generator_row(
    models: Path,
    name: str,
    questions: Questions,
    drawn: Drawn,
    scores: dict[str, dict[tuple[str, str], float]],
) -> dict[str, object]:
    asked = [*questions.math, *questions.contest, *questions.code]
    greedy = [is_right(problem, texts[0]) for problem, texts in zip(asked, drawn["greedy"], strict=True)]

    def share(levels: Sequence[str]) -> float:
        return float(
            np.mean([ok for problem, ok in zip(asked, greedy, strict=True) if problem.level in levels])
        )

    right = _right(questions.math, drawn["math"])
    code = _right(questions.code, drawn["code"])
    best = {
        verifier: float(
            np.mean(
                [
                    right[i, int(np.argmax([table[problem.question, text] for text in texts]))]
                    for i, (problem, texts) in enumerate(zip(questions.math, drawn["math"], strict=True))
                ]
            )
        )
        for verifier, table in scores.items()
    }
    return {
        "name": name,
        "parameters": parameters_of(models / name),
        "greedy": {level: share([level]) for level in (*LEVELS, CONTEST)} | {"all": share(LEVELS)},
        "one_sample": float(right.mean()),
        f"pass_at_{SAMPLES}": float(right.any(axis=1).mean()),
        f"best_of_{SAMPLES}": best,
        "code": {
            "greedy": share(CODE_LEVELS),
            "one_sample": float(code.mean()),
            f"pass_at_{SAMPLES}": float(code.any(axis=1).mean()),
        },
    }


def _verifier_row(
    models: Path,
    name: str,
    questions: Questions,
    drawn: dict[str, Drawn],
    scores: dict[tuple[str, str], float],
) -> dict[str, object]:
    judged = [
        Judged(f"{generator}/{i}", scores[problem.question, text], is_right(problem, text))
        for generator, each in drawn.items()
        for i, (problem, texts) in enumerate(zip(questions.math, each["math"], strict=True))
        for text in texts
    ]
    return {"name": name, "parameters": parameters_of(models / name), **measure(judged)}


def _right(problems: Sequence[Problem], drawn: Sequence[Sequence[str]]) -> Any:
    return np.array([[is_right(p, text) for text in texts] for p, texts in zip(problems, drawn, strict=True)])


def parameters_of(folder: Path) -> int:
    """Return the number of stored weights, read from the header of the safetensors file."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="np") as weights:
        return sum(int(np.prod(weights.get_slice(key).get_shape())) for key in weights.keys())  # noqa: SIM118
