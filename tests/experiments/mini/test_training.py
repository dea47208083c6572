"""Training really lowers the loss, saves what loads, and goes on after a kill to the same weights."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import AutoTokenizer, Qwen3ForCausalLM

from experiments.mini.corpus import IGNORED, Batch, batches, make_pool, problems_of
from experiments.mini.judging import Labelled, train_verifier
from experiments.mini.labels import step_labels
from experiments.mini.ladder import Rung, generator_config
from experiments.mini.train import Schedule, Trainer, train_generator
from experiments.mini.verifier import load_verifier

MICRO = Rung("micro", 32, 1, 1, 1, 32, 60, 1e-2)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_a_short_run_lowers_the_loss_and_saves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    trained, outcome = train_generator(
        MICRO, Schedule(120, 1e-2), tmp_path, pool_size=2_000, batch_tokens=1024
    )
    assert outcome.last_loss < 0.75 * outcome.first_loss
    loaded = Qwen3ForCausalLM.from_pretrained(tmp_path / "micro", dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(tmp_path / "micro")("Ada has 3 apples.", return_tensors="pt")[
        "input_ids"
    ]
    assert torch.equal(loaded(ids).logits, trained(ids).logits)


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    pool = make_pool(500, 0)
    schedule = Schedule(30, 1e-2, save_every=10)

    def run(folder: Path, stop_after: int | None) -> torch.nn.Module:
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(generator_config(MICRO))

        def loss(batch: Batch) -> torch.Tensor:
            hidden = model.model(input_ids=torch.from_numpy(batch.tokens)).last_hidden_state
            labels = torch.from_numpy(batch.labels)
            wanted = labels != IGNORED
            return functional.cross_entropy(model.lm_head(hidden[wanted]), labels[wanted])

        def stream(first: int) -> Iterator[Batch]:
            for number, batch in enumerate(batches(pool, 512, 0, first)):
                if number == stop_after:
                    raise KeyboardInterrupt
                yield batch

        Trainer(model, loss, stream, schedule, folder).run("micro")
        return model

    whole = run(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "part", 25)
    resumed = run(tmp_path / "part", None)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_verifier_learns_from_labelled_solutions_and_loads(tmp_path: Path) -> None:
    samples = []
    for problem in islice(problems_of("level_1", "train", 0), 300):
        samples.append(
            Labelled(problem.question, problem.solution, tuple(step_labels(problem, problem.solution)))
        )
        wrong = "".join(["no: 1+1=1\n\n", *problem.steps[1:]])
        samples.append(Labelled(problem.question, wrong, tuple(step_labels(problem, wrong))))
    _, outcome = train_verifier(
        Rung("tiny", 32, 2, 1, 1, 32, 80, 1e-2, reading=1, reading_steps=40),
        Schedule(80, 1e-2),
        samples,
        tmp_path,
        pool_size=1_000,
    )
    assert outcome.last_loss < 0.8 * outcome.first_loss
    loaded = load_verifier(tmp_path / "tiny")
    problem = next(problems_of("level_1", "test", 0))
    scores = loaded.step_scores(problem.question, ["no: 1+1=1", problem.steps[0]])
    assert len(scores) == 2
    assert all(0 <= score <= 1 for score in scores)
