"""The policies. They learn from rewards which configuration suits a query, and all implement the same protocol.

policy       the protocol, and its argument and result types
registry     the policies, keyed by name, with their options; `build_policy` is the only factory
learner      code shared by all policies, including `choose`
exploration  randomisation with logged probabilities, for any policy: warm-up, floor, and control group
features     the joint vector x
linucb       UniScale's LinUCB, Greedy, Thompson sampling, and LinUCB with forgetting; their matrices are in `posterior`
contextual   a hierarchical linear model that ranks the actions for each query. `contextual_features` computes x,
             `history` and `variances` estimate its parameters from outcomes, `drift` detects models that change,
             `pacing` meets targets, and `prior` initialises it from a table of outcomes
baselines    Random, k-NN, MLP and NeuralUCB; `network` is the only file that loads torch
"""

from agents.bandit.learner import Learner, choose, ranked
from agents.bandit.policy import (
    ActionVector,
    Choice,
    Context,
    Objective,
    Observation,
    Pending,
    Policy,
    Prediction,
    Target,
    Traits,
)
from agents.bandit.registry import Inputs, Options, build_policy, register_policy

__all__ = [
    "build_policy",
    "choose",
    "Policy",
    "ActionVector",
    "Context",
    "Objective",
    "Target",
    "Choice",
    "Pending",
    "Observation",
    # for authors of policies
    "Learner",
    "Traits",
    "Prediction",
    "ranked",
    "register_policy",
    "Options",
    "Inputs",
]
