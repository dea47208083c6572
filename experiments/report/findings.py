"""What a report's tables say, in a sentence or two: worded from the figures of that run, never written beforehand."""

from collections.abc import Callable, Mapping
from typing import Any

Tables = Mapping[str, Any]
Finding = Callable[[Tables], str]


def main(tables: Tables) -> str:
    """Say where UniScale stands in the joint space."""
    joint = tables["main"].get("uis") or tables["main"].get("all", {})
    others = {mode: each["policies"] for mode, each in tables.get("versus_best", {}).items()}
    seeds = len(tables["outcomes"]["more_seeds"])
    return " ".join(
        _standing(mode, policies) + (_paired(others[mode], seeds) if mode in others else "")
        for mode, policies in joint.items()
        if "uniscale" in policies
    )


def _paired(policies: Mapping[str, Any], seeds: int) -> str:
    first = max((p for p in policies if p != "uniscale"), key=lambda p: float(policies[p]["reward"]["mean"]))
    lead = policies[first]["uniscale_leads_by"]
    chance = ", which may be chance" if lead["low"] <= 0 <= lead["high"] else ""
    return (
        f" Paired over {seeds} further seeds, its difference from {_plain(first)} is {_of(lead, 4)}{chance}."
    )


def _standing(mode: str, policies: Mapping[str, Any]) -> str:
    earned = {name: each["reward"]["mean"] for name, each in policies.items() if name != "oracle"}
    ranked = sorted(earned, key=lambda name: -earned[name])
    first = next(name for name in ranked if name != "uniscale")
    return (
        f"Joint space, {_mode(mode)}: UniScale's mean reward {earned['uniscale']:.4f} ranks "
        f"{ranked.index('uniscale') + 1} of {len(ranked)}; the best other policy is {_plain(first)} with "
        f"{earned[first]:.4f}, and hindsight earns {policies['oracle']['reward']['mean']:.4f}."
    )


OWN = ("default_with_prior", "default_after_history", "default", "uniscale")


def frontier(tables: Tables) -> str:
    """Say what choosing per query is worth here at most, and what of it a policy takes."""
    rows, about = tables["frontier"], tables["frontier_of"]
    text = (
        f"{about['live']} live questions; best on history: {about['best_on_history']}, correct on "
        f"{100 * about['its_accuracy']:.1f} % of them. "
    )
    ceilings = [name for name in rows if name.startswith("ceiling")]
    for name in ceilings:
        found = rows[name]["mean_cost_ratio"]
        text += f"{_plain(name).capitalize()}: {_ratio(found)}. "
    mine = next((name for name in OWN if name in rows), None)
    if mine is not None:
        found = rows[mine]["mean_cost_ratio"]
        text += f"{_plain(mine).capitalize()}: {_ratio(found)}"
        if rows[mine]["unreached"]:
            text += f"; it does not reach {', '.join(rows[mine]['unreached'])} of that accuracy"
        elif found is None or found["high"] is None or found["high"] >= 1:
            text += " (no saving is shown)"
        text += "."
    most = rows["ceiling"]["mean_cost_ratio"]
    if most is not None and (most["high"] is None or most["high"] >= 1):
        text += " The ceiling's interval includes 1: nothing shows that context saves anything on these questions."
    return text


def pacer(tables: Tables) -> str:
    """Say how closely the mean cost was kept, and in which phases accuracy fell short of the fixed mix."""
    about = tables["pacer"]["target"]
    phases = {name: row for name, row in tables["pacer"].items() if name != "target"}
    spend = ", ".join(f"{row['cumulative_spend']['mean']:.3f} ({name})" for name, row in phases.items())
    off = max(row["furthest"]["mean"] for row in phases.values())
    short = [
        f"{name} ({row['accuracy_gain_points']['mean']:+.1f} points)"
        for name, row in phases.items()
        if row["accuracy_gain_points"]["mean"] < -2 * row["standard_error_points"]["mean"]
    ]
    free = ", ".join(
        f"{row['free_percent']['mean']:.0f} % ({name})"
        for name, row in phases.items()
        if row["free_percent"]["mean"] >= 1
    )
    unspent = (
        f"λ was 0, the most accurate choice as predicted cheaper than the target, in {free} of the queries. "
    )
    alike = "made the same choices as" if about["recovered_alike"] else "did not choose as"
    return (
        f"Spend over target at the end of each phase: {spend}; largest deviation from round 1,000 on: "
        f"{100 * off:.1f} %, mean of {about['runs']} runs. {unspent if free else ''}Accuracy is below the fixed mix of "
        f"the same cost by more than two standard errors in: {', '.join(short) or 'no phase'}. In one run, learners "
        f"restored in the middle of each phase {alike} the one that never stopped."
    )


def _ratio(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "no ratio, because a target is out of reach"
    ends = ["∞" if found[end] is None else f"{found[end]:.3f}" for end in ("low", "high")]
    return f"{found['mean']:.3f} [{', '.join(ends)}] of the cheapest fixed mix's cost"


def early_exit(tables: Tables) -> str:
    """Say how much there is to stop, what stopping it saves, and what the same rule saves elsewhere."""
    found = tables.get("early_exit", {})
    text = ""
    if "all models" in found.get("stragglers", {}):
        wide, change = found["stragglers"]["all models"], found["change"]["all searches"]
        text = (
            f"Once an answer is complete, early exit stops every path that can no longer win, so it saves where the "
            f"paths of a question differ in length. Of the {wide['searches']:,} searches with two or more paths "
            f"that were run without it, {wide['went_on_percent']['mean']:.1f} % went on after their answer was "
            f"complete; the mean over all of them is {wide['steps_beyond']['mean']:.2f} further steps. With early "
            f"exit, cost changes by {_of(change['eflops_percent'], 2)} %, accuracy by "
            f"{_of(change['accuracy_points'], 2)} points."
        )
    if replayed := tables.get("early_exit_replayed"):
        saved, on = _range(replayed, "steps_saved_percent"), _range(replayed, "went_on_percent")
        text += (
            f" On recorded step scores of {len(replayed)} configurations of larger public models, where some path "
            f"continues after the best one in {on} % of the problems, the same rule takes {saved} % fewer steps."
        )
    if wide := tables.get("early_exit_by_width"):
        shorter = ", ".join(
            f"{-row['steps_one_after_another_percent']['mean']:.0f} % at {width}"
            for width, row in wide.items()
            if width != "1"
        )
        lost = max(-row["accuracy_points"]["mean"] for row in wide.values())
        text += (
            f" Decoding is charged for sequential steps: searches of W such paths are shorter by {shorter}, and lose "
            f"at most {lost:.1f} points of accuracy. The paper: cost −79.3 %, accuracy −0.9 points."
        )
    return text.strip()


def versus_best(tables: Tables) -> str:
    """Say whether knowing the question is worth anything here."""
    return " ".join(_knowing(mode, each["best_contextual"]) for mode, each in tables["versus_best"].items())


def _knowing(mode: str, best: Mapping[str, Any]) -> str:
    values = ", ".join(f"{kind} {value:.4f}" for kind, value in best["values"].items())
    text = f"{_mode(mode)}, mean reward of each kind: {values}; "
    if best["kind"] == "fixed":
        return text + "no policy that looks at the question beats the best fixed arm."
    text += f"{best['kind']} leads the best fixed arm by {_of(best['lead_over_fixed'], 4)}"
    return text + (", which may be chance." if best["lead_over_fixed"]["low"] <= 0 else ".")


def own_policies(tables: Tables) -> str:
    """Say how much of faithful UniScale's gap our picked policy closes."""
    return " ".join(_closed(mode, each) for mode, each in tables["own_policies"].items())


def _closed(mode: str, each: Mapping[str, Any]) -> str:
    picked = each["policies"][each["picked"]]
    share, lead = picked["share_of_gap_closed"], picked["lead_over_uniscale"]
    text = f"{_mode(mode)}: picked {_plain(each['picked'])}, lead over UniScale {_of(lead, 4)}; "
    if share is None:
        return (
            text
            + "UniScale's gap to the best contextual policy is not significantly above zero, so no share is given."
        )
    return (
        f"{text}{100 * share['mean']:.0f} % [{100 * share['low']:.0f}, {100 * share['high']:.0f}] of the gap of "
        f"{each['gap_of_uniscale']['mean']:.4f} is closed: at least half "
        + ("is shown." if each["half_of_gap_closed"] else "is not shown.")
    )


def shared_objective(tables: Tables) -> str:
    """Say what a change of objective adds to the regret of either learner."""
    return " ".join(_added(change, rows) for change, rows in tables["shared_objective"].items())


def _added(change: str, rows: Mapping[str, Any]) -> str:
    told = ", ".join(f"{_plain(policy)} {_of(row['regret_added'], 2)}" for policy, row in rows.items())
    level = [_plain(name) for name, row in rows.items() if row["regret_added"]["low"] <= 0]
    noise = f" (not distinguishable from zero: {', '.join(level)})" if level else ""
    return f"{change.replace('_to_', ' to ').upper().replace(' TO ', ' to ')}: added regret {told}{noise}."


def verifier_scores(tables: Tables) -> str:
    """Say how well scores tell right from wrong within a question."""
    measures = tables["verifier_scores"]["measures"]
    text = f"AUROC {measures['auroc_pooled']:.2f} pooled"
    if "auroc_within_question" in measures:
        text += f", {measures['auroc_within_question']:.2f} within a question over all its searches"
    if "auroc_within_question_one_path" in measures:
        text += f", {measures['auroc_within_question_one_path']:.2f} within a question over single paths"
    return text + "."


def readings(tables: Tables) -> str:
    """Say whether the depth limit's reading matters."""
    return " ".join(_limit(name, each) for name, each in tables["readings"].get("depth_limit", {}).items())


_LIMITS = {
    "with_early_exit": "H_max, which early exit sets from the depth of the best answer so far",
    "without_early_exit": "the first depth limit",
}


def _limit(name: str, each: Mapping[str, Any]) -> str:
    share = each["met"]["all models"]
    text = (
        f"{_plain(name).capitalize()}, {share['met_limit']:,} of {share['searches']:,} searches "
        f"({share['met_percent']['mean']:.2f} %) went on to {_LIMITS[name]}"
    )
    if "run_again" not in each:
        return (
            f"{text}. They were not run again: whether paths cut off there count as completed could change the answers "
            "of these and of no others."
        )
    again = each["run_again"]
    text += (
        f"; {again['searches']:,} of them were run again, {again['as_recorded']:,} went as recorded, and "
        f"{again['other_answer']:,} end with another answer or score if paths cut off there count as completed: "
    )
    if "estimated_change" in each:
        return f"{text}over all searches accuracy changes by {_of(each['estimated_change']['points'], 2)} points."
    kept, completed = (each["over_all_searches"][name] for name in ("kept_out", "completed"))
    return (
        f"{text}accuracy {kept['accuracy']['mean']:.3f} % and {completed['accuracy']['mean']:.3f} %, cost "
        f"{kept['eflops']['mean']:.5g} and {completed['eflops']['mean']:.5g} tera-eFLOPs."
    )


def latency(tables: Tables) -> str:
    """Say what the learner adds to a search."""
    rows, run = tables["latency"], tables["latency_run"]
    ours = rows["query_embedding"]["percent"] + rows["bandit"]["percent"]
    load = " and ".join(f"{each:g}" for each in run["load_before_and_after"])
    return (
        f"Together, embedding the query and the bandit take {ours:.2f} % of the time (the paper: 0.91 %), "
        f"{1000 * (rows['query_embedding']['seconds'] + rows['bandit']['seconds']) / run['rounds']:.1f} ms per query. "
        f"{run['rounds_as_recorded']} of {run['warm_up_and_rounds']} rounds matched "
        f"the recording. Load of the machine before and after: {load}."
    )


def _of(figure: Mapping[str, float], digits: int) -> str:
    return f"{figure['mean']:+.{digits}f} [{figure['low']:+.{digits}f}, {figure['high']:+.{digits}f}]"


def _range(rows: Mapping[str, Any], measure: str) -> str:
    means = [row[measure]["mean"] for row in rows.values()]
    return f"{min(means):.0f} to {max(means):.0f}"


def _mode(name: str) -> str:
    return name.replace("_", "-").title()


def _plain(name: str) -> str:
    return name.replace("_", " ")
