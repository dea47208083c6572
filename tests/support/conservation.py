"""What holds of a log whatever happened to the services: of each query one decision, answer and closed reward."""

from collections import Counter

from agents.decider.rows import Row
from agents.decider.verify import mismatches
from agents.encoders import encoder_of
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.record import decode
from schemas.reward import Reward
from streams.services.decider import policy_of
from tests.support.deployment import Deployment


def conserved(loop: Deployment, ids: set[str]) -> None:
    """Compare action, Answer and reward of each id with the log."""
    t = loop.topics
    decisions: dict[str, list[bytes]] = {}
    for record in loop.raw(t.decision):
        decisions.setdefault(decode(record.value, Decision).query_id, []).append(record.value)
    answers: dict[str, Answer] = {}
    for answer in loop.read(t.answer, Answer):
        answers.setdefault(answer.query_id, answer)  # the first counts
    rewards: dict[str, dict[str, Reward]] = {}
    for reward in loop.read(t.reward, Reward):
        rewards.setdefault(reward.query_id, {}).setdefault(reward.kind, reward)
    assert set(decisions) == set(answers) == set(rewards) == ids
    for query_id in ids:
        assert len(set(decisions[query_id])) == 1, f"{query_id} was decided twice"
        decision = decode(decisions[query_id][0], Decision)
        answer, closing = answers[query_id], [r for r in rewards[query_id].values() if r.closes]
        assert len(closing) == 1
        assert answer.action == closing[0].action == decision.action
        assert closing[0].status == answer.status == "ok"
        assert closing[0].score == answer.score
        assert closing[0].correct == float(answer.extracted == decision.query.reference)


def learned(loop: Deployment, count: int) -> None:
    """Wait until the learner has taken in the reward of every query; hold each decision to what a replay chooses."""

    def stages() -> dict[str, int]:
        return Counter(r.stage for r in loop.learner_rows() if isinstance(r, Row))

    loop.until(lambda: stages() == {"closed": count}, what=f"{count} closed rows")
    policy = policy_of(loop.settings, encoder_of(loop.settings.encoder))
    assert list(mismatches(policy, loop.learner_rows(), loop.settings.policy.seed)) == []
