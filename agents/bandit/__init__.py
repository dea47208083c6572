"""The policies: which configuration a query gets, learned from rewards; behind one protocol, with the paper's names.

policy       the protocol, and the values that cross it
registry     policies by name, each with its options; `build_policy` is the one factory
learner      what all policies share besides their mathematics, and `choose`
exploration  recorded randomisation of any policy's predictions: warm-up, floor, control group
features     the joint vector x
linucb       UniScale's LinUCB, Greedy, Thompson sampling, forgetting; `ridge` has their matrices
contextual   one hierarchical linear model, a ranking for each query; its parts are `contextual_features`, `pacing`, and
             `history`, from which directions, anchors and `variances` are estimated; `prior` starts it from a table
baselines    Random, k-NN, MLP, NeuralUCB; `network` is the one file that loads torch
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
    # to write one
    "Learner",
    "Traits",
    "Prediction",
    "ranked",
    "register_policy",
    "Options",
    "Inputs",
]
