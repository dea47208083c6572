"""What the report shows, in its order: sections, their tables and figures, and what is to be known to read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from experiments.report import findings, paper_findings
from experiments.report import paper_numbers as paper
from experiments.report.findings import Finding
from experiments.trials.scenarios import MODES


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        title: Its heading.
        note: What its numbers mean.
        tables: Keys of tables.json.
        figures: Names of PNG files.
        finding: Says what the tables of a run show.
    """

    title: str
    note: str
    tables: tuple[str, ...]
    figures: tuple[str, ...] = ()
    finding: Finding | None = None


SECTIONS: Final = (
    Section(
        "Main table",
        "Reward, accuracy and cost over the 160 rounds after the warm-up, regret over all 210, against the "
        "best realised outcome of each question (the paper's lucky Oracle, which no policy can reach). regret"
        " fixed: over the 160, against the best single arm in hindsight. Cost: tera-eFLOPs a query for our "
        "recordings.",
        ("main",),
        tuple(f"regret-{mode}" for mode in MODES),
        findings.main,
    ),
    Section(
        "Accuracy and cost of the actions",
        "Every action's mean over all questions; squares are the routing nodes, dashed lines each model's "
        "best test-time scaling. Crosses: what policies reached.",
        ("outcomes",),
        ("accuracy-cost",),
    ),
    Section(
        "The joint space against routing and against TTS",
        "The cheapest random mixes of each space's configurations, chosen on a third of the questions and judged on "
        "the others. accuracy: of the configuration that was most accurate on history. area: mean accuracy over the "
        "logarithm of the cost, from the cheapest configuration to the joint space's most accurate one. TTS is the "
        "paper's: the smallest model with all 28 searches. Intervals: bootstrap over questions.",
        ("joint_frontier",),
        ("joint-frontier",),
        paper_findings.joint_frontier,
    ),
    Section(
        "Cost at equal accuracy",
        "What a policy pays for an accuracy, against the cheapest mix of fixed arms that has it: below 1 it saves. "
        "Targets are 90, 95 and 98 % of the accuracy of the arm that was best on history, a third of the questions; "
        "100 % is not in the mean. A policy is run over the live questions once for each of 16 weights of cost and on "
        "every order, all rounds counted; its points may be mixed. –: a target is out of its reach. Intervals: "
        "bootstrap over the live questions; ∞: in some draws out of reach. fixed mix from history: arms chosen on "
        "history. ceiling: fitted on every outcome of other questions. aiq: mean accuracy over the logarithm of the "
        "cost, from the cheapest arm's to that of the best on history. Criteria: experiments/CRITERIA.md.",
        ("frontier", "frontier_of"),
        ("frontier",),
        findings.frontier,
    ),
    Section(
        "The pacer: keeping to a mean cost",
        "The default policy with a prior from history under an objective by mean cost: 1,000 rounds, then 500 each "
        "after a model is added, the favourite model is removed, the next favourite's price is tripled, searches of "
        "the favourite then become three times as long, and traffic turns to harder questions. Of models and prices "
        "the policy is told, as by the catalogue; of longer searches and harder traffic it is not. "
        "cumulative spend: since the target was set, over the target, at the end of each "
        "phase; furthest: how far off at most from round 1,000 on (asked: 5 %). accuracy gain: over the fixed mix of "
        "the arms on offer that costs the same, its arms' means known from the phase's first round on. recovered "
        "alike: a learner restored in the middle of each phase chose as the one that never stopped.",
        ("pacer",),
        (),
        findings.pacer,
    ),
    Section(
        "Four reward modes",
        "All seven policies in the joint space, the Oracle, and the best fixed arm in hindsight.",
        ("pareto",),
        ("pareto",),
        paper_findings.pareto,
    ),
    Section(
        "BEST-Route*",
        "120 actions: best of N, N from 1 to 20, on each model. Its UIS counterpart is in the main table.",
        ("best_route",),
        finding=paper_findings.best_route,
    ),
    Section(
        "Action semantics against one-hot",
        "The paper's rows are single-seed; ours are five.",
        ("semantics",),
        ("semantics",),
        paper_findings.semantics,
    ),
    Section(
        "Exploration factor α",
        "α = 0 is Greedy. The paper prints curves only.",
        ("alpha",),
        ("alpha",),
        paper_findings.alpha,
    ),
    Section(
        "Dense feedback against binary correctness",
        "Without dense feedback the score's weight goes to correctness; rewards are then of another kind, so "
        "accuracy and cost are compared.",
        ("dense_feedback",),
        finding=paper_findings.dense,
    ),
    Section(
        "Drift at round 51",
        "Add: the two smallest models join; Remove: they leave (both Cost-Sensitive). Changes of objective: the "
        "paper's learner keeps old rewards under the old weights; `terms` is ours, with one θ a reward term. "
        "In Remove, regret against all arms counts the removed ones too.",
        ("drifts",),
        ("drifts",),
        paper_findings.drifts,
    ),
    Section(
        "Early exit",
        "The same searches with and without, drafts shared by both. Accuracy in percent, compute in TFLOPs, "
        "memory in TB, cost in tera-eFLOPs, means over searches; intervals over questions. By depth, because "
        "⌈1.2·D⌉ is one or two steps beyond a short answer. The paper: accuracy −0.91 points, compute −87.3 %, "
        "memory −78.1 %, cost −79.3 %. stragglers: searches of two and more paths without early exit, how many "
        "went on after the step in which their answer was finished, and for how many steps. Replayed: the same "
        "rule on recorded step scores of larger public models, all paths of a problem side by side. By width: searches "
        "of W paths, drawn with replacement from all of a problem's. steps one after another: decoding positions, "
        "which eFLOPs charge for; a search is as long as its longest path.",
        ("early_exit", "early_exit_replayed", "early_exit_by_width"),
        ("early_exit",),
        findings.early_exit,
    ),
    Section(
        "Latency by component",
        "Seconds over the 160 rounds after the warm-up: joint space, Quality-Priority, one query after another, "
        "every search run for real. Action embeddings are made beforehand, as in the paper; rest of search: its "
        "control, price and grading (the paper's TTS overheads). The mini family's models are some ten thousand "
        "times smaller than the paper's, so what does not shrink with them has a larger share. bandit at 2048: the "
        "same rounds with vectors of the paper's length, measured apart (no part of the total).",
        ("latency", "latency_run"),
        (),
        findings.latency,
    ),
    Section(
        "The verifier",
        "k-NN and UniScale under either verifier. Our recordings have the other verifier in their first sample only.",
        ("verifiers",),
        finding=paper_findings.verifiers,
    ),
    Section(
        "Verifier scores of right and wrong answers",
        "Pooled over all searches, and within questions that were answered both ways. A wide search returns the "
        "path its verifier likes best, right or wrong, so over all searches a high score is a sign of width too; "
        "over single paths this effect disappears.",
        ("verifier_scores",),
        ("verifier_scores",),
        findings.verifier_scores,
    ),
    Section(
        "Second task",
        "mini-code, two middle models, 56 actions, Cost-Sensitive; cost at equal accuracy beside it.",
        ("second_task", "second_task_frontier"),
        finding=paper_findings.second_task,
    ),
    Section(
        "Readings of the paper, run both ways",
        "which oracle: mean regret a round against the best realised outcome (the paper's), the best mean "
        "over samples, the best cross-fitted contextual policy, the best fixed arm. cost bounds: of C̃. "
        "samples: one realised sample a pull, or the mean of all. depth limit: a path cut off at it is kept out of "
        "the answers, or counts as completed. All surviving paths stop there in the same step: only searches that "
        "reached it can end differently, at the same cost.",
        ("readings",),
        (),
        findings.readings,
    ),
    Section(
        "Against the best fixed arm and the best contextual policy",
        "The best contextual policy is the best of ridge, boosted trees and the best fixed arm, cross-fitted "
        "by question: never judged on a question it was fitted on. Its lead over the best fixed arm: interval"
        " by bootstrap over questions. uniscale leads by: difference in mean reward, paired by seed. rounds "
        "to learn: median round from which the mean reward stays within 5 % of the best fixed arm, and on how"
        " many seeds.",
        ("versus_best",),
        (),
        findings.versus_best,
    ),
    Section(
        "Our own policies",
        "Lead over faithful UniScale, paired by seed; share of its gap to the best contextual policy that is "
        "closed, with its interval. The one picked was picked on the paper's seeds and is judged on others.",
        ("own_policies",),
        (),
        findings.own_policies,
    ),
    Section(
        "A change of objective: what has to be relearned",
        "Regret over the 160 rounds after the change, of a learner that changed and of one that had the "
        "objective all along, paired by seed. terms: one θ for each term of the reward; uniscale: the paper's"
        " scalar reward.",
        ("shared_objective",),
        (),
        findings.shared_objective,
    ),
    Section(
        "Feedback as production has it",
        "reward lost: against prompt feedback, paired by seed. decided: widths count decisions whose reward "
        "is outstanding. Where score and cost come at once, correctness is imputed by the score and "
        "corrected.",
        ("feedback",),
    ),
    Section("Cold start", "Fewer rounds of uniform choice before the policy.", ("cold_start",)),
    Section(
        "Long streams with drift in traffic",
        "Questions and outcomes drawn with replacement; easy ones are more frequent at first, hard ones at the end.",
        ("streams",),
    ),
    Section(
        "Off-policy estimates against the truth",
        "A log of uniform decisions judges three other policies: the best fixed arm, the cross-fitted ridge "
        "policy, and a softened one. covered percent: of the 95 % intervals that hold the truth. Below 50 "
        "effective decisions nothing is estimated.",
        ("off_policy",),
    ),
)

PRINTED: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "best_route": (paper.BEST_ROUTE, "reward, accuracy %, tera-eFLOPs"),
    "semantics": (paper.SEMANTICS, "regret at 130, at 210, accuracy %, tera-eFLOPs"),
    "dense_feedback": (paper.DENSE, "accuracy %, tera-eFLOPs"),
    "drifts": (paper.DRIFTS, "regret at 130, at 210, accuracy %, tera-eFLOPs"),
    "early_exit": ({"overall": paper.EARLY_EXIT}, "accuracy %, TFLOPs, TB, tera-eFLOPs"),
    "latency": (paper.LATENCY, "seconds, percent"),
    "second_task": ({"cost_sensitive": paper.CODING}, "reward, accuracy %, tera-eFLOPs"),
    "verifier_scores": (
        {"answers": paper.SCORES_OF, "measures": tuple(paper.SCORES.values())},
        "mean, standard deviation; pooled AUROC, point-biserial",
    ),
}


def printed_verifiers(names: list[str]) -> Mapping[str, Any]:
    """Return the paper's numbers for verifiers: the one in use is its smaller, the other its larger."""
    return {
        name: {
            mode: {policy: cells[at] for policy, cells in policies.items()}
            for mode, policies in paper.VERIFIERS.items()
        }
        for name, at in zip(names, (1, 0), strict=False)
    }
