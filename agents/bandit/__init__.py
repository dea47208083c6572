"""The policies. They learn from rewards which configuration suits a query, and all implement one protocol.

policy       the protocol, and the types of its arguments and results
registry     policies by name, each with its options; `build_policy` is the one factory
learner      code that all policies share, and `choose`
exploration  recorded randomisation of any policy's predictions: warm-up, floor, control group
features     the joint vector x
linucb       UniScale's LinUCB, Greedy, Thompson sampling, and LinUCB that forgets; `posterior` has their matrices
contextual   a hierarchical linear model that ranks the actions for each query; its parts are `contextual_features`,
             `pacing`, and `history`, from which directions, anchors and `variances` are estimated; `prior` starts it
             from a table
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
