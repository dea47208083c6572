"""What the paper's own tables say here, each beside what they say in the paper: worded from the figures of that run."""

from collections.abc import Mapping
from typing import Any

from experiments.report import paper_numbers as paper

Tables = Mapping[str, Any]


def joint_frontier(tables: Tables) -> str:
    """Say what the joint space gains over routing alone and over TTS alone."""
    rows = tables["joint_frontier"]
    uis = rows["uis"]
    parts = []
    for name, what in (("routing", "routing alone"), ("tts", "TTS of the smallest model alone")):
        row = rows[name]
        gain, cost = row["uis_gains_points"], row["uis_cost_ratio"]
        text = f"over {what} {gain['mean']:+.1f} points of accuracy [{gain['low']:+.1f}, {gain['high']:+.1f}]"
        if not _clear(gain):
            text += " (the interval includes zero: no gain is shown)"
        if cost is not None:
            ends = ["∞" if cost[end] is None else f"{cost[end]:.2f}" for end in ("low", "high")]
            text += (
                f"; at equal accuracy it pays {cost['mean']:.2f} [{', '.join(ends)}] of what that space's own cheapest "
                "mix, chosen in hindsight, costs"
            )
        parts.append(text)
    return (
        f"At the same cost, averaged over its logarithm, the joint space gains {', and '.join(parts)}. Its most "
        f"accurate configuration is correct on {uis['accuracy']['mean']:.1f} %, routing's on "
        f"{rows['routing']['accuracy']['mean']:.1f} %, TTS's on {rows['tts']['accuracy']['mean']:.1f} %. The paper "
        f"plots this frontier without numbers; its Oracle earns 0.7924 in the joint space, 0.6121 in routing, 0.7426 "
        f"in TTS (Quality-Priority)."
    )


def best_route(tables: Tables) -> str:
    """Say what the joint space gives beyond best of N."""
    text = []
    for mode, rows in tables["best_route"].items():
        joint = tables["main"]["uis"][mode]
        for who, name in (("oracle", "the Oracle"), ("uniscale", "UniScale")):
            theirs, ours = rows[who], joint[who]
            printed, whole = paper.BEST_ROUTE[mode][who], paper.BEST_ROUTE_UIS[mode][who]
            text.append(
                f"{_mode(mode)}, {name}: from BEST-Route* to the joint space, "
                f"{_mean(ours, 'accuracy') - _mean(theirs, 'accuracy'):+.1f} points of accuracy at "
                f"{100 * _mean(ours, 'eflops') / _mean(theirs, 'eflops'):.0f} % of the cost (the paper: "
                f"{whole[1] - printed[1]:+.1f} points at {100 * whole[2] / printed[2]:.0f} %)."
            )
    return " ".join(text)


def semantics(tables: Tables) -> str:
    """Say what descriptions of actions are worth against one-hot vectors."""
    return _ablated(tables["semantics"], "one_hot", "without semantics", paper.SEMANTICS)


def alpha(tables: Tables) -> str:
    """Say which α has the least regret."""
    text = []
    for mode, rows in tables["alpha"].items():
        regret = {label: _mean(row, "regret_210") for label, row in rows.items()}
        least = min(regret, key=lambda label: regret[label])
        told = ", ".join(f"{value:.1f} at α = {label}" for label, value in regret.items())
        others = [row["regret_210"] for label, row in rows.items() if label != least]
        alone = all(_apart(rows[least]["regret_210"], other) for other in others)
        text.append(
            f"{_mode(mode)}: regret at 210 is {told}; least at α = {least}"
            f"{'' if alone else ', though intervals overlap'} (the paper: α = 1 in both modes)."
        )
    return " ".join(text)


def dense(tables: Tables) -> str:
    """Say what the verifier's score adds to binary correctness."""
    text = []
    for mode, rows in tables["dense_feedback"].items():
        printed = paper.DENSE[mode]
        gain = _mean(rows["dense"], "accuracy") - _mean(rows["binary"], "accuracy")
        text.append(
            f"{_mode(mode)}: with the score, accuracy is {gain:+.1f} "
            f"points and cost {_percent(_mean(rows['dense'], 'eflops'), _mean(rows['binary'], 'eflops'))} against "
            f"binary correctness (the paper: {printed['dense'][0] - printed['binary'][0]:+.1f} points, "
            f"{_percent(printed['dense'][1], printed['binary'][1])})."
        )
    return " ".join(text)


def drifts(tables: Tables) -> str:
    """Say who has less regret through each drift."""
    text = []
    for name, rows in tables["drifts"].items():
        ours, theirs = (_mean(rows[who], "regret_210") for who in ("uniscale", "knn"))
        printed = paper.DRIFTS[name]
        text.append(
            f"{_drift(name)}: regret at 210 {ours:.1f} against k-NN's {theirs:.1f} (the paper: "
            f"{printed['uniscale'][1]:.1f} and {printed['knn'][1]:.1f}), accuracy "
            f"{_mean(rows['uniscale'], 'accuracy') - _mean(rows['knn'], 'accuracy'):+.1f} points, cost "
            f"{_percent(_mean(rows['uniscale'], 'eflops'), _mean(rows['knn'], 'eflops'))}."
        )
    return " ".join(text)


def pareto(tables: Tables) -> str:
    """Say in which modes some policy is both cheaper and more accurate than UniScale."""
    text = []
    for mode, rows in tables["pareto"].items():
        own = rows["uniscale"]
        above = [
            _plain(policy)
            for policy, row in rows.items()
            if policy not in ("uniscale", "oracle", "best_fixed_arm")
            and _mean(row, "accuracy") >= _mean(own, "accuracy")
            and _mean(row, "eflops") <= _mean(own, "eflops")
        ]
        better = (
            f"at least as accurate and no more expensive than UniScale: {', '.join(above)}"
            if above
            else "no other policy is at least as accurate and no more expensive"
        )
        text.append(
            f"{_mode(mode)}: {better}; reward {_mean(own, 'reward'):.3f}, the best fixed arm's in hindsight "
            f"{_mean(rows['best_fixed_arm'], 'reward'):.3f}, the Oracle's {_mean(rows['oracle'], 'reward'):.3f}."
        )
    return " ".join(text) + " In the paper all four of UniScale's points are on the Pareto frontier."


def verifiers(tables: Tables) -> str:
    """Say what the verifier in use changes for UniScale against the other."""
    names = list(tables["verifiers"])
    if len(names) < 2:
        return ""
    asked, compared = (tables["outcomes"][name] for name in ("questions", "verifiers_compared_on"))
    text = []
    if compared < asked:
        text.append(
            f"The verifiers are compared on the {compared} of {asked} questions that were run under both."
        )
    for mode in tables["verifiers"][names[0]]:
        first, other = (tables["verifiers"][name][mode]["uniscale"] for name in names[:2])
        larger, smaller = paper.VERIFIERS[mode]["uniscale"]
        gain = _mean(first, "accuracy") - _mean(other, "accuracy")
        text.append(
            f"{_mode(mode)}: under {names[0]} UniScale's accuracy is {gain:+.1f} "
            f"points and its cost {_percent(_mean(first, 'eflops'), _mean(other, 'eflops'))} against {names[1]} (the "
            f"paper, 7B against 1.5B: {larger[1] - smaller[1]:+.1f} points, {_percent(larger[2], smaller[2])})."
        )
    return " ".join(text)


def second_task(tables: Tables) -> str:
    """Say how UniScale does against k-NN on code."""
    (rows,) = tables["second_task"].values()
    ours, theirs = rows["uniscale"], rows["knn"]
    return (
        f"UniScale's reward is {_mean(ours, 'reward'):.4f}, k-NN's {_mean(theirs, 'reward'):.4f} (the paper: "
        f"{paper.CODING['uniscale'][0]} and {paper.CODING['knn'][0]}); accuracy "
        f"{_mean(ours, 'accuracy') - _mean(theirs, 'accuracy'):+.1f} points, cost "
        f"{_percent(_mean(ours, 'eflops'), _mean(theirs, 'eflops'))}."
    )


def _ablated(table: Mapping[str, Any], other: str, words: str, printed: Mapping[str, Any]) -> str:
    text = []
    for mode, rows in table.items():
        own, without = rows["uniscale"], rows[other]
        told, overlap = printed[mode], "; over the seeds the intervals overlap."
        regret, other_regret = own["regret_210"], without["regret_210"]
        text.append(
            f"{_mode(mode)}: regret at 210 is {regret['mean']:.1f}, {words} {other_regret['mean']:.1f} (the paper: "
            f"{told['uniscale'][1]:.1f} and {told[other][1]:.1f})"
            + ("." if _apart(regret, other_regret) else overlap)
        )
    return " ".join(text)


def _mean(row: Mapping[str, Any], measure: str) -> float:
    return float(row[measure]["mean"])


def _apart(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one["high"] < other["low"] or other["high"] < one["low"]


def _clear(figure: Mapping[str, float]) -> bool:
    return figure["low"] > 0 or figure["high"] < 0


def _percent(after: float, before: float) -> str:
    return f"{100 * (after / before - 1):+.0f} %"


def _mode(name: str) -> str:
    return name.replace("_", "-").title()


def _drift(name: str) -> str:
    return {"add": "Add", "remove": "Remove", "q_to_c": "Q→C", "c_to_q": "C→Q"}[name]


def _plain(name: str) -> str:
    return name.replace("_", " ")
