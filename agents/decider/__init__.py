"""The decider: chooses one joint configuration per query and learns from its reward.

agent       Context in, Decision out; Reward in, learning
decisions   from Contexts to Decisions, with the rows that they leave in the log
redelivery  what happens to a Context whose query has been decided already
features    the joint vector x; `vectors` checks its parts; `surface` counts what an embedding loses
policies    UniScale's LinUCB, the paper's baselines and ours, behind one protocol
log         the learner's log: rows, rewards, snapshots, and the fold back to policy state
preview     what would be chosen now; changes nothing
uplift      the policy compared with its control group
intake      checks on an outcome before it is learned
"""

from agents.decider.policies.base import ActionVector, Choice, Context, Objective, Observation, Pending
from agents.decider.policies.build import build_policy
from agents.decider.policies.policy import Policy

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
