"""A client: ask a question, give feedback, see why this configuration was chosen.

python examples/client.py                    starts a broker and all services, with a recording instead of models
python examples/client.py 127.0.0.1:9092     asks a deployment that is running
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, "")  # the packages lie in the repository root, where this is run

from agents.catalogue import load_catalogue
from agents.serving.recorded import RecordedPath, RecordedStep, write_paths
from streams.client import Client, KafkaSettings, Settings
from streams.local.deployment import Deployment

QUESTION = "How much is 9 times 7?"


def recording(folder: Path) -> Path:
    """Record one answer for each model of the mini family, so that no model has to be loaded."""
    steps = (
        RecordedStep(text="9 times 7.\n\n", tokens=9, score=0.8),
        RecordedStep(text="9*7=\\boxed{63}.", tokens=8, score=0.9, finish="eos"),
    )
    models = load_catalogue(Path("infra/catalogue/mini-six.yaml")).model_names
    paths = [RecordedPath(question=QUESTION, model=m, path=0, prompt_tokens=20, steps=steps) for m in models]
    write_paths(folder / "recording.jsonl", paths)
    return folder / "recording.jsonl"


with ExitStack() as stack:
    if sys.argv[1:]:
        settings = Settings(kafka=KafkaSettings(bootstrap=sys.argv[1]))
    else:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = Settings().replace(
            recorded=str(recording(folder)), encoder="hashed", state_dir=str(folder / "state")
        )
        run = Deployment(settings, broker="embedded", log_path=folder / "services.log")
        deployment = stack.enter_context(run)
        print(f"starting {len(deployment.supervisor.services)} services on {deployment.broker.version}")
        deployment.supervisor.wait_ready()
        settings = deployment.settings

    client = stack.enter_context(Client(settings))
    rewards = stack.enter_context(client.follow("reward"))
    answer = client.ask(QUESTION, objective="quality-priority", feedback_wait_s=60.0)
    print(f"{answer.query_id}: {answer.status}, {answer.action}, score {answer.score}\n{answer.text}")

    client.feedback(answer.query_id, correct=True, source="example")
    closing = next(e.record for e in rewards if e.query_id == answer.query_id and e.record.closes)
    print(f"reward {closing.reward:.3f}, graded by {closing.graded_by}, {closing.price.cost:.3g} eFLOPs")

    decision = client.explain(answer.query_id).decision
    if decision is not None:
        print(f"chosen by {decision.reason} among {decision.candidates} configurations")
