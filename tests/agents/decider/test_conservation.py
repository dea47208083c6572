"""Rewards in any order, any number of times: every decision ends in one state and the learner is the fold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.bandit.linucb import LinUCB
from agents.decider.rows import Row, decode_row
from schemas.reward import Kind
from tests.support.shard import Shard

KINDS: tuple[Kind, ...] = ("provisional", "final", "correction", "default")


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_reward_order_conserves_decisions(data: st.DataObject) -> None:
    shard = Shard(LinUCB, seed=data.draw(st.integers(0, 99)))
    made = shard.ask(*(shard.context() for _ in range(6)))
    deliveries = []
    for decided in made:
        # Every stage of one query reports the same search, as the aggregator does.
        reported: dict[str, Any] = {
            "score": float(shard.rng.random()),
            "log_cost": float(shard.rng.uniform(28, 35)),
        }
        for kind in data.draw(st.lists(st.sampled_from([*KINDS, None]), max_size=4)):
            if kind is None:  # its search failed
                deliveries.append(
                    shard.reward(decided, "default", score=None, log_cost=None, status="failed")
                )
            else:
                deliveries.append(shard.reward(decided, kind, **reported))
    deliveries = data.draw(st.permutations(deliveries + deliveries[::2]))
    while deliveries:
        size = data.draw(st.integers(1, 5))
        shard.tell(*deliveries[:size])
        deliveries = deliveries[size:]
        if data.draw(st.booleans()):
            live = shard.decider
            shard.crash()
            shard.same_as(live)
    rows = [row for row in (decode_row(k, v) for k, v in shard.table.items()) if isinstance(row, Row)]
    assert len(rows) == 6
    entered = [row for row in rows if row.stage in ("learned", "closed")]
    corrected = [row for row in rows if row.corrected_seq >= 0]
    assert shard.decider.policy.version == len(entered) + len(corrected)
    gram = shard.linucb.gram
    a, b = np.eye(gram.dim), np.zeros((gram.dim, 4))
    for row in entered:
        x, terms = shard.linucb.rows([replace(row.observation("reward"), correct=row.correct)])
        a, b = a + x.T @ x, b + x.T @ terms
    assert np.allclose(gram.theta, np.linalg.solve(a, b), rtol=1e-9, atol=1e-9)
