"""The decider: chooses one joint configuration per query and learns from its reward.

Pure files: `features` (the joint vector x), `policies` (UniScale's LinUCB and the paper's baselines behind
one protocol), `observations` (the rows of the changelog and the fold from rows to policy state), `snapshot`
(rows folded into chunks). `agent` binds them to the messages.
"""

from agents.decider.policies.base import (
    ActionVector,
    Choice,
    Context,
    Objective,
    Observation,
    Pending,
    Policy,
)
from agents.decider.policies.build import build_policy

__all__ = [
    "build_policy",
    "Policy",
    "Objective",
    "ActionVector",
    "Context",
    "Choice",
    "Pending",
    "Observation",
]
