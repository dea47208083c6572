"""Every example runs as its README says, from the repository root and in seconds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
WORDS = {
    "bandit.py": "correct 0.7, cost 0.3: an easy query gets small/1/1/1, a hard one large/1/1/1",
    "search.py": "ok: draft 23 ends the best of 4 completed paths",
    "cost.py": "qwen3-32b   1.875e+15 eFLOPs",
    "loop_in_memory.py": "20 queries, 20 decisions, from Query to Reward",
    "client.py": "graded by person",
}


def test_the_readme_lists_every_example() -> None:
    listed = re.findall(r"`python examples/(\w+\.py)`", (ROOT / "examples" / "README.md").read_text())
    assert sorted(listed) == EXAMPLES == sorted(WORDS)


@pytest.mark.seconds
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.timeout(200)
def test_an_example_runs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, f"examples/{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert WORDS[name] in done.stdout
