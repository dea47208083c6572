"""The whole loop in memory: every service, from Query to Reward, without Kafka and without a model, deterministically.

The services are those of a deployment; the memory runtime takes Kafka's place, and a recording takes the models'. Its
clock jumps to the next timer, so waiting takes no time.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, "")  # the packages lie in the repository root, where this is run

from agents.catalogue import load_catalogue
from agents.serving.recorded import RecordedPath, RecordedStep, write_paths
from schemas import Answer, Query, Reward, decode, encode
from streams.services import SERVICES
from streams.testing import Cluster, Settings, run

COUNT = 20


def recording(folder: Path) -> str:
    """Record one answer for each question and model; the larger half of the family is right."""
    catalogue = load_catalogue(Path("infra/catalogue/mini-six.yaml"))
    paths = []
    for n in range(COUNT):
        for rank, model in enumerate(catalogue.model_names):
            right = rank >= len(catalogue.model_names) // 2
            steps = (
                RecordedStep(text=f"{n} and 2 together.\n\n", tokens=9, score=0.8 if right else 0.4),
                RecordedStep(
                    text=f"So \\boxed{{{n + 2 if right else n}}}.",
                    tokens=8,
                    score=0.9 if right else 0.3,
                    finish="eos",
                ),
            )
            paths.append(
                RecordedPath(
                    question=f"How many are {n} and 2?", model=model, path=0, prompt_tokens=20, steps=steps
                )
            )
    write_paths(folder / "recording.jsonl", paths)
    return str(folder / "recording.jsonl")


async def loop(settings: Settings) -> tuple[Cluster, float]:
    """Start every service, ask the questions, and return when every reward is closed, with the seconds it took."""
    cluster = Cluster(settings, SERVICES)
    await cluster.up()
    began = time.process_time()
    for n in range(COUNT):
        query = Query(query_id=f"q{n}", text=f"How many are {n} and 2?", reference=str(n + 2))
        cluster.produce(cluster.topics.query, query.query_id.encode(), encode(query))
    await cluster.until(lambda: len(cluster.broker.records(cluster.topics.reward)) >= COUNT)
    took_s = time.process_time() - began
    await cluster.close()
    return cluster, took_s


with tempfile.TemporaryDirectory() as name:
    settings = Settings().replace(
        recorded=recording(Path(name)), encoder="hashed", warm_up=5, state_dir=f"{name}/state", query_partitions=2,
        join_partitions=2, group_partitions=4,
    )  # fmt: skip
    cluster, took_s = run(loop(settings))

topics, broker = cluster.topics, cluster.broker
answers = {a.query_id: a for a in (decode(r.value, Answer) for r in broker.records(topics.answer))}
for record in broker.records(topics.reward):
    reward = decode(record.value, Reward)
    answer = answers[reward.query_id]
    print(
        f"{reward.query_id:<4} {answer.status}, {reward.action!s:<16} boxed {answer.extracted:<3} "
        f"correct {reward.correct:g}, reward {reward.reward:.3f}"
    )
decided = len(broker.records(topics.decision))
print(
    f"{len(answers)} queries, {decided} decisions, from Query to Reward in {took_s:.2f} s of processor time"
)
