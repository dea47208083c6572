"""The second act without running it: when choices follow a change, the link behind a model, the questions."""

import json
from collections import Counter
from io import StringIO
from itertools import islice
from pathlib import Path
from statistics import fmean

import msgspec
import pytest
from rich.console import Console

from agents.catalogue.file import beside_catalogue, load_catalogue
from schemas.action import Action
from schemas.query import Query
from streams.cli.demo import changes_table
from streams.client.questions import read_questions
from streams.demo.changes import GOOD_AT, endless, smallest, turn, why_not, with_link
from streams.demo.following import Change, Choice, Condition, choices_of, observed, outcome, told
from streams.demo.report import change_figure
from streams.demo.run import CONTROLS, QUESTIONS
from streams.demo.summary import thirds
from tests.support.records import decision_for, paid, reward_for

MINI = Path("infra/catalogue/mini-six.yaml")
FALLS = Condition("large has at most 30%", lambda choice: float(choice.model == "large"), 0.3, at_most=True)
RISES = Condition("large has at least 30%", lambda choice: float(choice.model == "large"), 0.3, at_most=False)


def choices(models: str) -> list[Choice]:
    """Return choices of the large model (L) and the small one (s)."""
    names = {"L": "large", "s": "small"}
    return [Choice(n, names[each], 1.0, 1.0) for n, each in enumerate(models)]


@pytest.mark.parametrize(
    ("condition", "made", "after"),
    [
        (FALLS, "s" * 60, 20),  # the fewest there can be
        (FALLS, "L" * 20 + "s" * 20, 34),
        (FALLS, "L" * 60, None),
        (FALLS, "s" * 19, None),
        (RISES, "s" * 20 + "L" * 20, 26),
        (RISES, "s" * 60, None),
    ],
)
def test_choices_follow_at_the_first_window(condition: Condition, made: str, after: int | None) -> None:
    assert condition.first(choices(made)) == after
    assert len(condition.windows(choices(made))) == max(0, len(made) - 19)


CHANGE = Change(
    name="worse",
    title="large becomes worse",
    did="its files are others",
    condition=FALLS.words,
    threshold=0.3,
    at_most=True,
    asked=60,
)


def test_what_did_not_follow_is_said_so() -> None:
    followed = observed(CHANGE, FALLS, choices("L" * 20 + "s" * 40))
    assert (followed.closed, followed.after) == (60, 34)
    assert told(followed) == "large becomes worse: the choices followed after 34 queries."
    never = observed(CHANGE, FALLS, choices("L" * 60))
    assert told(never) == "large becomes worse: the choices did not follow within 60 queries."
    assert outcome(never) == "not within 60 queries"


def test_the_table_shows_what_is_known_of_each_change() -> None:
    changes = [observed(CHANGE, FALLS, choices("L" * n)) for n in (25, 60)]
    printed = StringIO()
    Console(file=printed, width=160).print(changes_table(changes))
    rows = [[cell.strip() for cell in line.split("│")] for line in printed.getvalue().splitlines()]
    assert [(row[2], row[4]) for row in rows if "large becomes worse" in row] == [
        ("25 of 60", "–"),
        ("60 of 60", "not within 60 queries"),
    ]


def test_a_figure_marks_when_the_choices_followed() -> None:
    drawn = change_figure(observed(CHANGE, FALLS, choices("L" * 20 + "s" * 40)), None)
    assert "the choices followed after 34 queries</h2>" in drawn
    assert drawn.count('class="dot"') == 1
    assert "never happened by chance" in drawn
    never = change_figure(
        msgspec.structs.replace(observed(CHANGE, FALLS, choices("L" * 60)), without_change=50), None
    )
    assert "did not follow within 60 queries</h2>" in never
    assert 'class="dot"' not in never
    assert "happened by chance after 50 queries" in never
    assert "too few queries" in change_figure(CHANGE, None)


def test_choices_are_in_the_order_of_decisions() -> None:
    queries = [Query(query_id=f"q{n}", text="x", metadata={"family": "quick"}) for n in range(3)]
    rewards = {
        query.query_id: reward_for(
            decision_for(query, seq=9 - n, action=Action.parse(f"m{n}/1/1/1")), price=paid(n + 1.0)
        )
        for n, query in enumerate(queries[:2])
    }
    assert choices_of(queries, rewards) == [
        Choice(8, "m1", 2.0, 1.0, "quick"),
        Choice(9, "m0", 1.0, 1.0, "quick"),
    ]


@pytest.mark.parametrize("name", ["mini-six", "mini"])
def test_a_link_changes_nothing_but_where_a_model_is_read(name: str, tmp_path: Path) -> None:
    file = MINI.with_name(f"{name}.yaml")
    linked = with_link(file, "mini-4m", tmp_path)
    before, after = load_catalogue(file), load_catalogue(linked)
    link = Path(after.model("mini-4m").checkpoint)
    assert link.resolve() == Path("models/mini-4m").resolve()
    same = msgspec.structs.replace(after.model("mini-4m"), checkpoint="models/mini-4m")
    assert before.models == tuple(same if each.name == "mini-4m" else each for each in after.models)
    assert (before.verifiers, before.cost_range) == (after.verifiers, after.cost_range)
    assert beside_catalogue(linked) == beside_catalogue(file)
    turn(link, Path(smallest(before).checkpoint))
    assert link.resolve() == Path("models/mini-100k").resolve()


def test_why_the_second_act_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = load_catalogue(MINI)
    assert why_not(catalogue, CONTROLS[0], "") == ""
    assert "a recording answers" in why_not(catalogue, CONTROLS[0], "recording.jsonl")
    assert "they need a baseline" in why_not(catalogue, "", "")
    monkeypatch.chdir(tmp_path)
    assert why_not(catalogue, CONTROLS[0], "") == "the files of mini-4m are not on this machine"


def test_questions_are_repeated_when_all_have_been_asked() -> None:
    questions = list(read_questions(QUESTIONS))
    first = thirds(questions, 120, 3)
    more = list(islice(endless(questions, first, 3), 360))
    assert len({each.query_id for each in [*first, *more]}) == 480
    left = {each.query_id for each in questions} - {each.query_id for each in first}
    assert {each.query_id for each in more[:280]} == left
    everything = Counter(each.metadata["level"] for each in questions)
    again = Counter(each.metadata["level"] for each in more[280:])
    for level, count in everything.items():
        assert again[level] == pytest.approx(80 / 400 * count, abs=4)


def test_what_the_new_model_is_good_at_is_in_its_description() -> None:
    def family(label: str) -> str:
        names = {"Quick": "quick", "Procedures": "procedures", "Code": "code"}
        return next((name for part, name in names.items() if part in label), "stories")

    means: dict[str, dict[str, float]] = {}
    for member in json.loads(Path("models/family.json").read_text())["generators"]:
        of: dict[str, list[float]] = {}
        for label, score in member["anchors"].items():
            of.setdefault(family(label), []).append(score)
        means[member["name"]] = {name: fmean(scores) for name, scores in of.items()}
    new = means.pop("mini-4m")
    ahead = {name for name in new if all(new[name] - each[name] >= 10 for each in means.values())}
    assert ahead == set(GOOD_AT)
