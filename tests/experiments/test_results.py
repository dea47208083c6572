"""The pages of results: every figure in their sentences is that of tables.json, every made table as made from it."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from experiments.behaviour import POLICIES, changed
from experiments.commands import picture
from experiments.figures import digest_of
from experiments.page import BLOCK, filled
from streams.demo.paired import sentence
from streams.demo.run import CONTROLS, RECORDED

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
NAMES = ["math", "code", "fleets", "mixed"]
PAGES = [RESULTS / "README.md", *(RESULTS / name / "README.md" for name in NAMES[1:])]
MADE: list[set[str]] = [{"main", "frontier"}, {"main", "frontier"}, {"fleets"}, set()]
NUMBER = r"[+−]?(?:\d[\d,]*(?:\.\d+)?|∞)"
FIGURE = re.compile(rf"({NUMBER})(?: %)?(?: \[({NUMBER}), ({NUMBER})\])?<!-- ([^>]+) -->")
GIVEN = re.compile(r"given: (.*?) -->", re.DOTALL)
COMMENT, CODE, LINK = re.compile(r"<!--.*?-->", re.DOTALL), re.compile(r"`[^`]*`"), re.compile(r"\]\([^)]*\)")
THE_PAPERS, HEADING = re.compile(r"\((?:The )?paper\b[^)]*\)"), re.compile(r"^#.*$", re.MULTILINE)


def at(tables: Any, key: str) -> Any:
    for name in key.split("/"):
        tables = tables[int(name)] if isinstance(tables, list) else tables[name]
    return tables


def value_of(tables: Mapping[str, Any], told: str, end: str) -> float:
    """Return what a comment stands for: a key, or arithmetic on keys in braces; `end` of a figure with an interval."""

    def one(key: str) -> str:
        found = at(tables, key)
        found = found[end] if isinstance(found, Mapping) else found
        return repr(math.inf if found is None else float(found)).replace("inf", "math.inf")

    expression = re.sub(r"\{([^}]+)\}", lambda key: one(key[1]), told) if "{" in told else one(told)
    return float(eval(expression, {"math": math}))


def agrees(said: str, value: float) -> bool:
    """Return whether a number is a value to the digits written.

    >>> agrees("−0.15", -0.1532), agrees("−0.15", -0.156), agrees("1,000", 1000.4), agrees("∞", math.inf)
    (True, False, True, True)
    """
    if said == "∞" or math.isinf(value):
        return said == "∞" and math.isinf(value)
    digits = len(said.partition(".")[2])
    written = float(said.replace("−", "-").replace(",", ""))
    return abs(written - value) <= 0.5 * 10.0**-digits * (1 + 1e-6)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_figure_in_the_sentences_is_that_of_the_tables(page: Path) -> None:
    text, tables = page.read_text(), json.loads(page.with_name("tables.json").read_text())
    wrong, figures = [], list(FIGURE.finditer(text))
    for said, low, high, told in (each.groups() for each in figures):
        for written, end in ((said, "mean"), (low, "low"), (high, "high")):
            if written is not None and not agrees(written, value := value_of(tables, told, end)):
                wrong.append(f"{told}: {written} is written, {end} is {value:.9g}")
    assert not wrong, "\n".join(wrong)
    assert len(figures) > (5 if page.parent.name in ("fleets", "mixed") else 40)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_figure_in_the_sentences_goes_without_its_key(page: Path) -> None:
    text = page.read_text()
    given = GIVEN.search(text)
    assert given is not None, "name the protocol's numbers in a comment: given: 50 160 …"
    for gone in (BLOCK, FIGURE, COMMENT, CODE, LINK, THE_PAPERS, HEADING):
        text = gone.sub(" ", text)
    left = set(re.findall(r"(?<![\w-])[+−]?\d[\d,.]*(?:B|¹²)?", text.replace("mini-", "")))
    assert {each.rstrip(".,") for each in left} - set(given[1].split()) == set()


@pytest.mark.parametrize(("page", "made"), list(zip(PAGES, MADE, strict=True)), ids=NAMES)
def test_the_made_tables_are_as_the_command_makes_them(page: Path, made: set[str]) -> None:
    text, tables = page.read_text(), json.loads(page.with_name("tables.json").read_text())
    assert filled(text, tables) == text
    assert {found[2] for found in BLOCK.finditer(text)} == made
    shown = set(re.findall(r"\]\(([\w-]+\.png)\)", text))
    assert shown == {path.name for path in page.parent.glob("*.png")}


def test_the_readme_says_what_the_tables_say() -> None:
    tables = json.loads((RESULTS / "fleets" / "tables.json").read_text())

    def paid(table: str, row: str) -> dict[str, float]:
        found: dict[str, float] = tables[table]["frontier"][row]["mean_cost_ratio"]
        return found

    def whole(table: str, row: str) -> str:
        found = paid(table, row)
        return f"**{found['mean']:.2f}** [{found['low']:.2f}, {found['high']:.2f}]"

    hosted, reasoning = "paretobandit_val", "reasoning_gym_hard"
    ours, ridge = "default_with_prior", "ridge_from_history"
    paired = tables[reasoning]["against_ridge_from_history"][ours]["cost_ratio"]
    math_rows = json.loads((RESULTS / "tables.json").read_text())["frontier"]
    math_paid = {name: math_rows[name]["mean_cost_ratio"] for name in (ours, ridge)}
    text = " ".join((ROOT / "README.md").read_text().split())
    for said in (
        f"it costs {whole(hosted, ours)}",
        f"does as well: {paid(hosted, ridge)['mean']:.2f}.",
        f"GSM8K, 41 models: {whole('zeroeval_gsm', ours)}",
        f"it costs {paid(reasoning, ours)['mean']:.2f} and the ridge {paid(reasoning, ridge)['mean']:.2f} "
        f"(paired by question {paired['mean']:.2f} [{paired['low']:.2f}, {paired['high']:.2f}])",
        f"fitted on all outcomes ({paid('zeroeval_gsm', 'ridge_in_hindsight')['mean']:.2f})",
        f"the ridge costs less ({math_paid[ridge]['mean']:.2f} against {math_paid[ours]['mean']:.2f})",
        *of_mixed(json.loads((RESULTS / "mixed" / "tables.json").read_text())),
    ):
        assert said in text


def of_mixed(tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the README says of the recording `mixed`."""
    ours, ridge = (
        tables["frontier"][row]["mean_cost_ratio"] for row in ("default_with_prior", "ridge_from_history")
    )
    paired = tables["against_ridge_from_history"]["default_with_prior"]["cost_ratio"]
    yield f"**{ours['mean']:.2f}** [{ours['low']:.2f}, {ours['high']:.2f}], the ridge {ridge['mean']:.2f}"
    yield f"(paired by question {paired['mean']:.2f} [{paired['low']:.2f}, {paired['high']:.2f}])"
    best = tables["frontier_of"]
    (less, some), (more, most) = (
        (row["cost"] / best["its_cost"], 100 * row["accuracy"])
        for row in (tables["families"]["by_price"][at] for at in (6, 4))
    )
    yield f"At {less:.2f} of the best configuration's cost {some:.0f} % of the answers are right, at {more:.2f} times"
    yield f"times, {most:.0f} %; that configuration gets {100 * best['its_accuracy']:.0f} %."


def test_readme_and_benchmarks_say_what_the_demo_came_to() -> None:
    found = json.loads((RESULTS / "demo.json").read_text())
    assert found["unanswered"] == found["audit_wrong"] == 0
    actions = [each["control"]["action"] for each in found["comparisons"]]
    assert actions == [*CONTROLS, *RECORDED]
    readme, benchmarks, tutorial = (
        " ".join((ROOT / name).read_text().split())
        for name in ("README.md", "docs/benchmarks.md", "docs/demo.md")
    )
    for each in found["comparisons"]:
        assert sentence(each) in readme, "as `python -m streams.demo.pooled` prints it"
        assert sentence(each) in tutorial
        gained, ratio = each["accuracy_difference"], each["cost_ratio"]
        mean, low, high = (f"{100 * gained[end]:+.1f}".replace("-", "−") for end in ("mean", "low", "high"))
        share, least, most = (f"{100 * ratio[end]:.0f}" for end in ("mean", "low", "high"))
        for said in (f"{mean} points", f"{low} to {high})", f"at {share} %", f"({least} to {most})"):
            assert said in benchmarks
        if each is found["comparisons"][0]:
            assert f"({mean} points, {low} to {high}) at **{share} %** of the cost" in readme
        else:
            assert f"{mean} points ({low} to {high}) at {share} % ({least} to {most} %)" in readme


def test_the_readme_s_picture_is_drawn_from_the_tables_beside_it(tmp_path: Path) -> None:
    folder = RESULTS / "fleets"
    tables = json.loads((folder / "tables.json").read_text())
    with Image.open(folder / "cost.png") as committed:
        assert committed.info["Description"] == digest_of(tables), "run python -m experiments picture"
    tables["mixed-2"]["frontier"]["default"]["mean_cost_ratio"] = {"mean": 1.0, "low": 0.9, "high": None}
    (tmp_path / "tables.json").write_text(json.dumps(tables))
    drawn = CliRunner().invoke(picture, [str(tmp_path)], catch_exceptions=False)
    assert drawn.exit_code == 0
    with Image.open(tmp_path / "cost.png") as found, Image.open(folder / "cost.png") as committed:
        assert found.info["Description"] != committed.info["Description"]
        assert found.width > 900


OLDER = "made with older behaviour"


@pytest.mark.seconds
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_page_says_whether_its_tables_are_older_than_the_code(page: Path) -> None:
    tables = json.loads(page.with_name("tables.json").read_text())
    fleets = page.parent.name == "fleets"
    older = {}
    for name, made in (tables if fleets else {page.parent.name: tables}).items():
        some = page.parent.name in ("fleets", "mixed")
        rows = [policy for policy in POLICIES if not some or policy in made["frontier"]]
        if found := changed(made.get("behaviour", {}), rows):
            older[name] = found
    said = OLDER in page.read_text().lower()
    assert said == bool(older), (
        f"{page}: other choices than the tables were made with: {older}; make them again, or say '{OLDER}'"
        if older
        else f"{page}: the code chooses as when its tables were made; take '{OLDER}' away"
    )


def test_a_changed_figure_is_noticed() -> None:
    assert agrees("0.6714", 0.67141)
    assert not agrees("0.6714", 0.67151)
    assert value_of({"a b": {"c": {"mean": 2.0, "low": None}}}, "100 * {a b/c} - 1", "mean") == 199
    assert value_of({"a b": {"c": {"mean": 2.0, "low": None}}}, "a b/c", "low") == math.inf
