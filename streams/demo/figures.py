"""The figures of the report: bars, shares and lines as HTML that reads alike on a phone and a screen, light and dark.

All text is HTML, so that it keeps its size at any width; only lines are SVG, and these are stretched to the width.
"""

import html
from collections.abc import Mapping, Sequence

import msgspec

STYLE = """
:root{color-scheme:light dark;--ground:#fff;--text:#1c2330;--quiet:#566072;--line:#d5d9e0;--track:#eef0f4;
--main:#1d4ed8;--other:#8a94a6}
@media(prefers-color-scheme:dark){:root{--ground:#12161d;--text:#e8ecf3;--quiet:#a6b0c0;--line:#37404f;--track:#1f2631;
--main:#8ab4ff;--other:#7a8699}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2.5rem auto;padding:0 1.2rem;background:var(--ground);
color:var(--text)}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .6rem}
h2{font-size:1.15rem;line-height:1.3;margin:0}
.lead{color:var(--quiet);margin:0}
section{margin:2.8rem 0}
figure{margin:2.8rem 0}
figcaption{color:var(--quiet);font-size:.9rem;margin:.2rem 0 .9rem}
.row{display:grid;grid-template-columns:12.5rem 1fr 9rem;gap:.2rem .8rem;align-items:center;margin:.35rem 0}
.row>:last-child{text-align:right;white-space:nowrap}
.row small,.key{color:var(--quiet);font-size:.85rem;font-weight:400}
.main{font-weight:650}
.track{position:relative;height:1.6rem;background:var(--track);border-radius:.25rem;overflow:hidden;display:flex}
.track i{height:100%;background:var(--other)}
.main .track i{background:var(--main)}
.track u{position:absolute;top:50%;height:2px;background:var(--text)}
.track u::before,.track u::after{content:"";position:absolute;top:-5px;height:12px;width:2px;background:var(--text)}
.track u::after{right:0}
.track b{height:100%;font-size:.8rem;font-weight:500;line-height:1.6rem;padding-left:.4rem;overflow:hidden;
white-space:nowrap}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:0 0 .6rem;padding:0;list-style:none}
.key i{display:inline-block;width:.8rem;height:.8rem;border-radius:.15rem;margin-right:.35rem}
.plot{position:relative;height:12rem;margin:0 9.5rem 1.6rem 2.8rem;border-bottom:1px solid var(--line)}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.plot path{fill:none;stroke:var(--other);stroke-width:2;vector-effect:non-scaling-stroke}
.plot .main{stroke:var(--main);stroke-width:2.5}
.plot .mark{stroke:var(--quiet);stroke-width:1;stroke-dasharray:4 4}
.plot span{position:absolute;font-size:.85rem;line-height:1.1;color:var(--quiet)}
.plot .end{left:calc(100% + .5rem);width:9rem;transform:translateY(-50%)}
.plot .main.end{color:var(--main)}
.plot .tick{right:calc(100% + .5rem);transform:translateY(-50%)}
.plot .foot{top:calc(100% + .3rem)}
.plot .dot{width:.7rem;height:.7rem;border-radius:50%;background:var(--main);transform:translate(-50%,-50%)}
@media(max-width:36rem){.row{grid-template-columns:1fr auto}.row .track{grid-column:1/-1;grid-row:2}
.plot{margin-right:5.6rem;margin-left:2.4rem}.plot .end{width:5.2rem;font-size:.78rem}}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;
font-weight:400}
th{color:var(--quiet)}
"""


class Bar(msgspec.Struct, frozen=True):
    """One value of a bar chart.

    Attributes:
        label: Its name.
        value: Its length.
        shown: The value as a text.
        range: Both ends of its interval, and the interval as a text; None if it has none.
        main: Whether the figure is about this one.
    """

    label: str
    value: float
    shown: str
    range: tuple[float, float, str] | None = None
    main: bool = False


class Line(msgspec.Struct, frozen=True):
    """One line of a plot, with its label at the right end.

    Attributes:
        label: Its name.
        values: Its values, one a query.
        main: Whether the figure is about this one.
    """

    label: str
    values: Sequence[float]
    main: bool = False


def figure(message: str, caption: str, *parts: str) -> str:
    """Return a figure below the one message that it shows."""
    return (
        f"<figure><h2>{html.escape(message)}</h2><figcaption>{html.escape(caption)}</figcaption>"
        f"{''.join(parts)}</figure>"
    )


def bars(rows: Sequence[Bar], least: float = 0.0) -> str:
    """Return horizontal bars from zero, each with its label and value, on a scale that ends at `least` or later."""
    most = max(least, *(max(row.value, row.range[1] if row.range else 0.0) for row in rows)) or 1.0
    return "".join(_bar(row, most) for row in rows)


def _bar(row: Bar, most: float) -> str:
    interval, told = "", ""
    if row.range is not None:
        low, high = (_share(end, most) for end in row.range[:2])
        interval = f'<u style="left:{low:.2f}%;width:{high - low:.2f}%"></u>'
        told = f" <small>{html.escape(row.range[2])}</small>"
    return (
        f'<div class="row{" main" * row.main}"><span>{html.escape(row.label)}</span>'
        f'<span class="track"><i style="width:{_share(row.value, most):.2f}%"></i>{interval}</span>'
        f"<span>{html.escape(row.shown)}{told}</span></div>"
    )


def shares(rows: Mapping[str, Mapping[str, float]], beside: Mapping[str, str], parts: Sequence[str]) -> str:
    """Return rows of stacked shares, which add up to 1, with a key.

    Args:
        rows: Each row's shares, by part.
        beside: A text to the right of each row.
        parts: The parts, from the lightest to the darkest.
    """
    colours = {part: _colour(at, len(parts)) for at, part in enumerate(parts)}
    key = "".join(
        f'<li><i style="background:{back}"></i>{html.escape(part)}</li>'
        for part, (back, _) in colours.items()
    )
    made = [f'<ul class="key">{key}</ul>']
    for label, of in rows.items():
        cells = "".join(
            f'<b style="width:{100 * share:.2f}%;background:{colours[part][0]};color:{colours[part][1]}">'
            f"{f'{share:.0%}' if share >= NARROWEST else ''}</b>"
            for part in parts
            if (share := of.get(part, 0.0)) > 0
        )
        made.append(
            f'<div class="row"><span>{html.escape(label)}</span><span class="track">{cells}</span>'
            f"<small>{html.escape(beside[label])}</small></div>"
        )
    return "".join(made)


NARROWEST = 0.12
"""Smallest share that is written into its part of a bar."""


def _colour(at: int, count: int) -> tuple[str, str]:
    """Return the colour of a part, and that of a text on it."""
    along = at / max(1, count - 1)
    # The hue changes along with the lightness, since seven shades of one hue are hard to tell apart.
    hue, lightness = 55 + 225 * along, 86 - 58 * along
    return f"hsl({hue:.0f} 55% {lightness:.0f}%)", "#111" if lightness > 50 else "#fff"


def plot(
    lines: Sequence[Line],
    *,
    ticks: Mapping[float, str],
    foot: tuple[str, str],
    mark: tuple[float, str] | None = None,
    dot: tuple[int, float] | None = None,
) -> str:
    """Return lines over the queries of a run, with direct labels.

    Args:
        lines: The lines. All have the same number of values.
        ticks: Labels of the vertical axis, by value; they set its ends, together with the lines.
        foot: What stands below the left and the right end.
        mark: A horizontal line and its label.
        dot: The index of a value, and its height, to mark with a dot.
    """
    heights = [*ticks, *(value for line in lines for value in line.values), *([mark[0]] if mark else [])]
    low, high = min(heights), max(heights)

    def top(value: float) -> float:
        return 100.0 - _share(value - low, (high - low) or 1.0)

    drawn, labels = [], [(top(line.values[-1]), line.label, line.main) for line in lines]
    if mark is not None:
        drawn.append(f'<path class="mark" d="M0 {top(mark[0]):.2f}H100"/>')
        labels.append((top(mark[0]), mark[1], False))
    for line in sorted(lines, key=lambda each: each.main):
        step = 100.0 / max(1, len(line.values) - 1)
        points = " ".join(f"{at * step:.2f},{top(value):.2f}" for at, value in enumerate(line.values))
        drawn.append(f'<path class="{"main" if line.main else ""}" d="M{points}"/>')
    found = "".join(
        f'<span class="end{" main" * main}" style="top:{place:.2f}%">{html.escape(text)}</span>'
        for place, text, main in _apart(labels)
    )
    found += "".join(
        f'<span class="tick" style="top:{top(value):.2f}%">{html.escape(text)}</span>'
        for value, text in ticks.items()
    )
    if dot is not None:
        most = max(1, max(len(line.values) for line in lines) - 1)
        found += f'<span class="dot" style="left:{100 * dot[0] / most:.2f}%;top:{top(dot[1]):.2f}%"></span>'
    left, right = (html.escape(text) for text in foot)
    return (
        '<div class="plot"><svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        f'{"".join(drawn)}</svg>{found}<span class="foot" style="left:0">{left}</span>'
        f'<span class="foot" style="right:0">{right}</span></div>'
    )


CLOSEST = 17.0
"""Least distance of two labels, in hundredths of the height of a plot."""


def _apart(labels: Sequence[tuple[float, str, bool]]) -> list[tuple[float, str, bool]]:
    """Return the labels, moved down where one would lie on another.

    >>> _apart([(50.0, "b", False), (48.0, "a", True)])
    [(48.0, 'a', True), (65.0, 'b', False)]
    """
    moved: list[tuple[float, str, bool]] = []
    for place, text, main in sorted(labels):
        moved.append((max(place, moved[-1][0] + CLOSEST) if moved else place, text, main))
    return moved


def table(rows: Mapping[str, str]) -> str:
    """Return a table of names and texts."""
    return (
        "<table>"
        + "".join(
            f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(text)}</td></tr>'
            for name, text in rows.items()
        )
        + "</table>"
    )


def _share(value: float, most: float) -> float:
    return 100.0 * value / most
