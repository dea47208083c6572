"""The cost of a search in equivalent FLOPs (App. D.3): operations, and bytes moved times the hardware's intensity.

The trace: a prompt of 50 tokens, two drafts, and one more step after the better of them.
"""

import sys
from pathlib import Path

sys.path.insert(0, "")  # the packages lie in the repository root, where this is run

from agents.catalogue import load_catalogue, search_cost
from schemas import Draft

catalogue = load_catalogue(Path("infra/catalogue/qwen3.yaml"))
verifier = catalogue.verifier_named().architecture
trace = [
    Draft(parent=-1, depth=1, tokens=120, finish="separator", slot=0, score=0.8),
    Draft(parent=-1, depth=1, tokens=90, finish="separator", slot=1, score=0.4),
    Draft(parent=0, depth=2, tokens=60, finish="eos", score=0.9),
]

for model in catalogue.models:
    cost = search_cost(50, trace, model.architecture, verifier, catalogue.hardware.intensity)
    parts = {"prefill": cost.prefill, "decoding": cost.decoding, "verification": cost.verification}
    shares = ", ".join(
        f"{name} {part.eflops(cost.intensity) / cost.eflops:.0%}" for name, part in parts.items()
    )
    print(f"{model.name:<11} {cost.eflops:.3e} eFLOPs: {shares}")
