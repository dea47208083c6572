"""LinUCB alone: choose a configuration per query, learn from rewards, change the objective without relearning.

The world is made up: easy queries are answered by both models, hard ones only by the large one, which costs a
hundred times as much.
"""

import sys

sys.path.insert(0, "")  # the packages lie in the repository root, where this is run

import numpy as np

from agents.bandit import ActionVector, Context, Objective, Observation, Pending, build_policy, choose

ROUNDS = 300
DIMENSION = 16

rng = np.random.default_rng(3)
easy, hard = np.linalg.qr(rng.normal(size=(DIMENSION, 2)))[0].T
policy = build_policy(
    "linucb", {"warm_up": 20, "interactions": "bilinear"}, query_dim=DIMENSION, action_dim=2
)
policy.offer(
    [
        ActionVector("small/1/1/1", "small", np.array([1.0, 0.0])),
        ActionVector("large/1/1/1", "large", np.array([0.0, 1.0])),
    ]
)
LOG_COST = {"small/1/1/1": np.log(1e9), "large/1/1/1": np.log(1e11)}


def query(kind: np.ndarray) -> np.ndarray:
    """Return the unit embedding of a query of one kind."""
    vector = kind + 0.05 * rng.normal(size=DIMENSION)
    return vector / np.linalg.norm(vector)


def objective(correct: float, cost: float) -> Objective:
    """Return weights of correctness and cost; the cost term is 0 at 1e9 eFLOPs and 1 at 1e11."""
    return Objective(correct, 0.0, cost, log_cost_min=np.log(1e9), log_cost_max=np.log(1e11))


def action_for(name: str, vector: np.ndarray, goal: Objective) -> str:
    """Return the configuration that the policy chooses for one query."""
    [choice] = choose(policy, [Context(name, vector)], [goal], seed=3)
    return choice.action_id


balanced, frugal = objective(0.7, 0.3), objective(0.1, 0.9)
for n in range(ROUNDS):
    kind = hard if rng.random() < 0.5 else easy
    name, vector = f"q{n}", query(kind)
    action = action_for(name, vector, balanced)
    policy.decided([Pending(name, vector, action)])
    right = float(kind is easy or action.startswith("large"))
    policy.learn(
        [Observation(name, vector, action, right, right, LOG_COST[action], right, balanced, clock=n)]
    )

for title, goal in (("correct 0.7, cost 0.3", balanced), ("correct 0.1, cost 0.9", frugal)):
    chosen = {
        kind: action_for(kind, query(vector), goal) for kind, vector in (("easy", easy), ("hard", hard))
    }
    print(f"{title}: an easy query gets {chosen['easy']}, a hard one {chosen['hard']}")
