"""Timelines of operations as pictures: phases as bars in lanes, with the rest that no phase accounts for.

The layout is pure: it turns phases into rectangles, lines and texts; :func:`svg` writes these as a string (readable in
light and dark mode, no library needed), :func:`png` hands them to matplotlib.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from hotstart.snapshot_agent.units import duration

Interval = tuple[float, float]
Operation = tuple[str, Mapping[str, Any]]
"""A label, and what ``hotstart.phases.Phases.to_json`` gave."""

WIDTH = 960
_MARGIN = 24
_LEFT, _RIGHT = _MARGIN, WIDTH - _MARGIN
_BAR, _LANE = 20, 26
_SMALL, _NORMAL, _LARGE = 11.5, 13.0, 15.0

# class: (light, dark).  Bars are light with dark text in light mode, and deep with light text in dark mode.
_COLOURS = {
    "bg": ("#ffffff", "#0d1117"),
    "text": ("#1f2328", "#e6edf3"),
    "dim": ("#59636e", "#9198a1"),
    "grid": ("#e4e7eb", "#262c36"),
    "rest": ("#8c959f", "#7d8590"),
    "c0": ("#a9c8f5", "#1f4f8f"),
    "c1": ("#f8c99a", "#86500f"),
    "c2": ("#b5dfb0", "#266637"),
    "c3": ("#d6c0f0", "#59388f"),
    "c4": ("#f6b7bd", "#8a2f3d"),
    "c5": ("#9fdcdc", "#14636a"),
    "c6": ("#ebdc8b", "#6b5a10"),
    "c7": ("#efbfe0", "#83356f"),
    "c8": ("#c9cfd6", "#47505b"),
    "c9": ("#d8cbb5", "#655337"),
    "c10": ("#cbe59b", "#4a6b14"),
    "c11": ("#c3c9f9", "#3f4a9c"),
}
_PALETTE = 12


@dataclass(frozen=True)
class Rect:
    """A bar; ``hatched`` ones mark time that nothing accounts for.  ``title`` is shown on hovering."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str = ""
    hatched: bool = False


@dataclass(frozen=True)
class Line:
    """A grid line."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Text:
    """One line of text; ``y`` is its base line, ``anchor`` start, middle or end."""

    x: float
    y: float
    text: str
    size: float = _NORMAL
    colour: str = "text"
    bold: bool = False
    anchor: str = "start"


@dataclass
class Drawing:
    """Shapes in the order they are painted, and the height of the whole (all in pixels)."""

    height: float = 0.0
    shapes: list[Rect | Line | Text] = field(default_factory=list)


def svg(phases_list: Sequence[Operation], *, ratios: bool = True) -> str:
    """A picture of one or more operations, each a label and what ``Phases.to_json`` gave.

    Several operations are first compared on one axis (``ratios``: with how much faster than the slowest each was); then
    each is drawn in detail on its own.
    """
    drawing = draw(phases_list, ratios=ratios)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{drawing.height:.0f}" '
        f'viewBox="0 0 {WIDTH} {drawing.height:.0f}" role="img" font-family="system-ui, -apple-system, '
        "'Segoe UI', 'DejaVu Sans', sans-serif\">",
        f"<title>{escape(_clean('; '.join(label for label, _ in phases_list)))}</title>",
        f"<style>{_style()}</style>",
        '<defs><pattern id="hs-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><line class="hs-stroke" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>',
        f'<rect class="hs-bg" width="{WIDTH}" height="{drawing.height:.0f}" rx="8"/>',
        *(_svg_shape(shape) for shape in drawing.shapes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def png(phases_list: Sequence[Operation], path: Path, *, ratios: bool = True) -> None:
    """The same picture (light) as PNG; raises ModuleNotFoundError without matplotlib, OSError on writing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    drawing = draw(phases_list, ratios=ratios)
    figure = Figure(figsize=(WIDTH / 100, drawing.height / 100), dpi=200, facecolor=_COLOURS["bg"][0])
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(drawing.height, 0)
    axes.axis("off")
    for shape in drawing.shapes:
        if isinstance(shape, Line):
            axes.plot((shape.x1, shape.x2), (shape.y1, shape.y2), color=_COLOURS["grid"][0], linewidth=0.7, zorder=0)
        elif isinstance(shape, Rect):
            colour = _COLOURS[shape.colour][0]
            look: dict[str, Any] = {"facecolor": colour, "linewidth": 0}
            if shape.hatched:
                look = {"facecolor": "none", "edgecolor": colour, "hatch": "//////", "linewidth": 0.6}
            axes.add_patch(Rectangle((shape.x, shape.y), shape.width, shape.height, **look))
        else:
            axes.text(
                shape.x,
                shape.y,
                shape.text.replace("$", r"\$"),
                color=_COLOURS[shape.colour][0],
                fontsize=shape.size * 0.72,
                fontweight="bold" if shape.bold else "normal",
                horizontalalignment={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                verticalalignment="baseline",
            )
    figure.savefig(path, format="png")


def save(phases_list: Sequence[Operation], path: Path, *, ratios: bool = True) -> None:
    """Write the picture as what the file's ending says: ``.svg`` or ``.png``.  Raises as :func:`png` does."""
    if path.suffix == ".png":
        png(phases_list, path, ratios=ratios)
    else:
        path.write_text(svg(phases_list, ratios=ratios), encoding="utf-8")


# --- layout (pure) ----------------------------------------------------------------------------------------------


def draw(phases_list: Sequence[Operation], *, ratios: bool = True) -> Drawing:
    """Lay out the picture."""
    drawing = Drawing()
    colours = _assign_colours(phases for _, phases in phases_list)
    y = float(_MARGIN)
    if len(phases_list) > 1:
        y = _overview(drawing, phases_list, y, ratios) + 18
    for label, phases in phases_list:
        y = _detail(drawing, label, phases, colours, y) + 22
    drawing.height = math.ceil(y - 22 + _MARGIN - 6)
    return drawing


def _overview(drawing: Drawing, phases_list: Sequence[Operation], y: float, ratios: bool) -> float:
    longest = max(_total(phases) for _, phases in phases_list)
    column = min(260.0, max(text_width(label, _NORMAL) for label, _ in phases_list) + 14)
    left, right = _LEFT + column, _RIGHT - 150.0
    bottom = y + _LANE * len(phases_list)
    _axis(drawing, left, right, y - 4, bottom, longest)
    for label, phases in phases_list:
        total = _total(phases)
        width = max(1.5, (right - left) * total / longest)
        drawing.shapes.append(Text(left - 12, y + 14.5, shorten(label, column - 14, _NORMAL), anchor="end"))
        drawing.shapes.append(Rect(left, y, width, _BAR, "c0", f"{label}: {duration(total)}"))
        times = longest / total
        ratio = (
            f"  {times:.{1 if times < 9.5 else 0}f}\N{MULTIPLICATION SIGN} faster" if ratios and times >= 1.5 else ""
        )
        drawing.shapes.append(Text(left + width + 8, y + 14.5, duration(total) + ratio, bold=bool(ratio)))
        y += _LANE
    return bottom + 20


def _detail(drawing: Drawing, label: str, phases: Mapping[str, Any], colours: Mapping[str, str], y: float) -> float:
    total, lost = _total(phases), float(phases["unaccounted_s"])
    heading = shorten(label, 520, _LARGE, bold=True)
    words = f"unaccounted {duration(lost)} ({100 * lost / total:.1f} %)"
    swatch = _RIGHT - text_width(words, _SMALL) - 24
    drawing.shapes += [
        Text(_LEFT, y + 13, heading, _LARGE, bold=True),
        Text(_LEFT + text_width(heading, _LARGE, bold=True) + 12, y + 13, duration(total), _LARGE, "dim"),
        Rect(swatch, y + 3, 18, 11, "rest", hatched=True),
        Text(_RIGHT, y + 13, words, _SMALL, "dim", anchor="end"),
    ]
    top = y + 28
    scale = (_RIGHT - _LEFT) / total
    spans = [(str(s["name"]), *_clip(float(s["start_s"]), float(s["end_s"]), total)) for s in phases["spans"]]
    spans.sort(key=lambda span: (span[1], -span[2]))
    bars: list[Rect | Text] = []
    lanes: list[list[Interval]] = []
    for name, start, end in spans:
        words = f"{name} {duration(end - start)}"
        bars += _place(
            lanes, top, start, end, scale, words, colours[name], f"{name}: {duration(start)} … {duration(end)}"
        )
    rest = gaps(((start, end) for _, start, end in spans), total)
    bars += _rest(lanes, top, rest, scale)
    bottom = top + _LANE * len(lanes)
    _axis(drawing, _LEFT, _RIGHT, top - 4, bottom, total)
    drawing.shapes.extend(bars)
    return bottom + 20


def _place(
    lanes: list[list[Interval]],
    top: float,
    start: float,
    end: float,
    scale: float,
    words: str,
    colour: str,
    title: str,
) -> list[Rect | Text]:
    """Put a bar and its words into the first lane that has room for both."""
    x, width = _LEFT + start * scale, max(1.5, (end - start) * scale)
    needed = text_width(words, _SMALL)
    inside = width >= needed + 10
    to_the_left = not inside and x + width + needed + 6 > _RIGHT
    if inside:
        taken, at = (x, x + width), x + 6
    elif to_the_left:
        taken, at = (x - needed - 10, x + width), x - 5
    else:
        taken, at = (x, x + width + needed + 10), x + width + 5
    number = _free_lane(lanes, taken)
    y = top + _LANE * number
    return [
        Rect(x, y, width, _BAR, colour, title),
        Text(at, y + 14, words, _SMALL, anchor="end" if to_the_left else "start"),
    ]


def _rest(lanes: list[list[Interval]], top: float, rest: Sequence[Interval], scale: float) -> list[Rect | Text]:
    """The last lane: every gap, hatched."""
    y = top + _LANE * len(lanes)
    drawn = [(start, end) for start, end in rest if (end - start) * scale >= 0.5]
    if drawn:
        lanes.append([])
    return [
        Rect(_LEFT + a * scale, y, (b - a) * scale, _BAR, "rest", f"unaccounted: {duration(b - a)}", hatched=True)
        for a, b in drawn
    ]


def _free_lane(lanes: list[list[Interval]], wanted: Interval) -> int:
    for number, lane in enumerate(lanes):
        if all(wanted[1] <= left or wanted[0] >= right for left, right in lane):
            lane.append(wanted)
            return number
    lanes.append([wanted])
    return len(lanes) - 1


def _axis(drawing: Drawing, left: float, right: float, top: float, bottom: float, total: float) -> None:
    for tick in ticks(total):
        x = left + (right - left) * tick / total
        drawing.shapes.append(Line(x, top, x, bottom))
        anchor = "start" if tick == 0 else "end" if x > _RIGHT - 12 else "middle"
        drawing.shapes.append(Text(x, bottom + 14, _tick_label(tick, total), _SMALL, "dim", anchor=anchor))


def ticks(total: float, most: int = 9) -> list[float]:
    """Round times from 0 to ``total``: steps of 1, 2 or 5 times a power of ten, at most ``most`` of them."""
    magnitude = 10.0 ** math.floor(math.log10(total / most))
    step = next(m * magnitude for m in (1, 2, 5, 10, 20) if total / (m * magnitude) <= most)
    return [round(number * step, 12) for number in range(int(total / step * (1 + 1e-9)) + 1)]


def _tick_label(tick: float, total: float) -> str:
    return f"{tick * 1000:g} ms" if total < 1 and tick else f"{tick:g} s" if tick else "0"


def merge(pieces: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, as disjoint intervals in order."""
    merged: list[Interval] = []
    for start, end in sorted(pieces):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def gaps(pieces: Iterable[Interval], total: float) -> list[Interval]:
    """What of ``[0, total]`` no interval covers."""
    rest, reached = [], 0.0
    for start, end in merge(pieces):
        if min(start, total) > reached:
            rest.append((reached, min(start, total)))
        reached = max(reached, end)
    if reached < total:
        rest.append((reached, total))
    return rest


def _clip(start: float, end: float, total: float) -> Interval:
    left = min(max(0.0, start), total)
    return left, min(max(left, end), total)


def _total(phases: Mapping[str, Any]) -> float:
    return max(float(phases["total_s"]), 1e-6)


def _assign_colours(all_phases: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """A colour a phase name, the same in every operation of the picture."""
    colours: dict[str, str] = {}
    for phases in all_phases:
        for span in sorted(phases["spans"], key=lambda s: (s["start_s"], -s["end_s"])):
            colours.setdefault(str(span["name"]), f"c{len(colours) % _PALETTE}")
    return colours


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """About how many pixels a text takes, on the wide side: the viewer's font is not known."""
    return size * sum(map(_advance, text)) * (1.14 if bold else 1.0)


def _advance(character: str) -> float:
    if character in "iljI.,:;'|!()[] ":
        return 0.36
    if character in "rtf":
        return 0.43
    if character in "mwMW%@" or character.isupper():
        return 0.8
    return 1.05 if unicodedata.east_asian_width(character) in "WF" else 0.62


def shorten(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """The text, or as much of it as fits with an ellipsis."""
    if text_width(text, size, bold=bold) <= width:
        return text
    while text and text_width(text + "…", size, bold=bold) > width:
        text = text[:-1]
    return text + "…"


# --- SVG --------------------------------------------------------------------------------------------------------


def _style() -> str:
    light = "".join(f".hs-{name}{{fill:{colours[0]}}}" for name, colours in _COLOURS.items())
    dark = "".join(f".hs-{name}{{fill:{colours[1]}}}" for name, colours in _COLOURS.items())
    lines = ".hs-line{{stroke:{0};stroke-width:1}}.hs-stroke{{stroke:{1};stroke-width:2}}.hs-hatched{{stroke:{1}}}"
    return (
        light
        + lines.format(_COLOURS["grid"][0], _COLOURS["rest"][0])
        + "@media (prefers-color-scheme: dark){"
        + dark
        + lines.format(_COLOURS["grid"][1], _COLOURS["rest"][1])
        + "}"
    )


def _svg_shape(shape: Rect | Line | Text) -> str:
    if isinstance(shape, Line):
        return (
            f'<line class="hs-line" x1="{shape.x1:.1f}" y1="{shape.y1:.1f}" x2="{shape.x2:.1f}" y2="{shape.y2:.1f}"/>'
        )
    if isinstance(shape, Text):
        weight = ' font-weight="600"' if shape.bold else ""
        return (
            f'<text class="hs-{shape.colour}" x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size:g}"'
            f'{weight} text-anchor={quoteattr(shape.anchor)} xml:space="preserve">{escape(_clean(shape.text))}</text>'
        )
    box = f'x="{shape.x:.2f}" y="{shape.y:.1f}" width="{shape.width:.2f}" height="{shape.height:g}"'
    title = f"<title>{escape(_clean(shape.title))}</title>"
    if shape.hatched:
        return f'<rect class="hs-hatched" {box} fill="url(#hs-hatch)" stroke-width="0.6">{title}</rect>'
    return f'<rect class="hs-{shape.colour}" {box} rx="{min(3.0, shape.width / 2):.2g}">{title}</rect>'


def _clean(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
