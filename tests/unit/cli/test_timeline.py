"""Timelines: nothing overlaps, nothing is lost, and the rest that no phase covers is drawn."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotstart.phases import Phase, unaccounted
from hotstart.snapshot_agent import timeline
from hotstart.snapshot_agent.timeline import Rect, Text

SVG = "{http://www.w3.org/2000/svg}"


def phases(total: float, *spans: tuple[str, float, float]) -> dict[str, Any]:
    """As ``Phases.to_json`` gives it."""
    return {
        "total_s": total,
        "unaccounted_s": unaccounted([Phase(*span) for span in spans], total),
        "spans": [{"name": n, "start_s": a, "end_s": b} for n, a, b in spans],
    }


def bars(drawing: timeline.Drawing, *, hatched: bool) -> list[Rect]:
    """Bars of the detail pictures, without the legend's swatch."""
    return [s for s in drawing.shapes if isinstance(s, Rect) and s.hatched is hatched and s.title and s.height == 20]


def words(drawing: timeline.Drawing) -> list[str]:
    return [shape.text for shape in drawing.shapes if isinstance(shape, Text)]


def overlap(a: Rect, b: Rect) -> bool:
    apart = 1e-6
    return (
        a.x + a.width > b.x + apart
        and b.x + b.width > a.x + apart
        and a.y + a.height > b.y + apart
        and b.y + b.height > a.y + apart
    )


def box(text: Text) -> Rect:
    width = timeline.text_width(text.text, text.size, bold=text.bold)
    left = {"start": text.x, "end": text.x - width, "middle": text.x - width / 2}[text.anchor]
    return Rect(left, text.y - 9, width, 11, "text")


SPANS = st.lists(
    st.tuples(
        st.sampled_from(["quiesce", "criu dump", "a rather long name of a phase", "x"]),
        st.floats(0, 1),
        st.floats(0, 1),
    ).map(lambda s: (s[0], min(s[1:]), max(s[1:]))),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(SPANS, st.sampled_from([0.001, 0.3, 1.0, 31.0, 4000.0]))
def test_bars_lie_where_the_time_was_and_hide_nothing(spans: list[tuple[str, float, float]], total: float) -> None:
    spans = [(name, start * total, end * total) for name, start, end in spans]
    drawing = timeline.draw([("operation", phases(total, *spans))])
    drawn = bars(drawing, hatched=False)
    assert len(drawn) == len(spans)
    assert not any(overlap(a, b) for a, b in itertools.combinations(drawn + bars(drawing, hatched=True), 2))
    scale = (timeline.WIDTH - 48) / total
    expected = sorted(24 + start * scale for _, start, _ in spans)
    assert sorted(bar.x for bar in drawn) == pytest.approx(expected)
    labels = [box(s) for s in drawing.shapes if isinstance(s, Text) and any(s.text.startswith(n) for n, _, _ in spans)]
    assert not any(overlap(a, b) for a, b in itertools.combinations(labels, 2))


@settings(max_examples=60, deadline=None)
@given(SPANS)
def test_the_rest_is_what_no_phase_covers(spans: list[tuple[str, float, float]]) -> None:
    rest = timeline.gaps([(start, end) for _, start, end in spans], 1.0)
    assert sum(end - start for start, end in rest) == pytest.approx(unaccounted([Phase(*s) for s in spans], 1.0))
    drawn = bars(timeline.draw([("operation", phases(1.0, *spans))]), hatched=True)
    visible = [(start, end) for start, end in rest if (end - start) * 912 >= 0.5]
    assert [(bar.x, bar.x + bar.width) for bar in drawn] == [
        (pytest.approx(24 + start * 912), pytest.approx(24 + end * 912)) for start, end in visible
    ]


def test_the_picture_names_phases_and_the_rest() -> None:
    said = words(timeline.draw([("capture of chat", phases(1.0, ("quiesce", 0.1, 0.5)))]))
    assert "capture of chat" in said
    assert "quiesce 400 ms" in said
    assert "unaccounted 600 ms (60.0 %)" in said


def test_several_operations_are_compared_first() -> None:
    said = words(timeline.draw([("cold start", phases(31.0)), ("hotstart", phases(0.31)), ("twin", phases(30.0))]))
    assert "310 ms  100\N{MULTIPLICATION SIGN} faster" in said
    assert "30.0 s" in said  # a ratio near one is not worth a word
    assert said.count("cold start") == 2
    given_ = [("cold start", phases(31.0)), ("hotstart", phases(0.31))]
    assert not any("faster" in text for text in words(timeline.draw(given_, ratios=False)))


def test_one_name_has_one_colour_everywhere() -> None:
    drawing = timeline.draw([("a", phases(1.0, ("x", 0, 0.5), ("y", 0.5, 1))), ("b", phases(2.0, ("y", 0, 1)))])
    colours = {bar.title.split(":")[0]: set[str]() for bar in bars(drawing, hatched=False)}
    for bar in bars(drawing, hatched=False):
        colours[bar.title.split(":")[0]].add(bar.colour)
    assert len(colours["y"]) == 1
    assert colours["x"] != colours["y"]


def test_svg_is_well_formed_with_hostile_names() -> None:
    text = timeline.svg([('<&"\x00\x1b\udcff', phases(1.0, ("</svg><script>", 0.1, 0.9)))])
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert list(root.iter(f"{SVG}script")) == []
    assert "prefers-color-scheme: dark" in text
    text.encode("utf-8")


def test_svg_holds_every_shape() -> None:
    given_ = [("one", phases(1.0, ("a", 0, 0.5), ("b", 0.4, 0.8))), ("two", phases(0.0))]
    root = ElementTree.fromstring(timeline.svg(given_))
    drawing = timeline.draw(given_)
    count = {kind: sum(isinstance(s, kind) for s in drawing.shapes) for kind in (Rect, Text, timeline.Line)}
    assert len(root.findall(f"{SVG}rect")) == count[Rect] + 1  # the background
    assert len(root.findall(f"{SVG}text")) == count[Text]
    assert len(root.findall(f"{SVG}line")) == count[timeline.Line]
    assert float(root.attrib["height"]) == drawing.height


@pytest.mark.parametrize("total", [1e-6, 0.0007, 0.3, 1.0, 1.62, 9.99, 31.2, 3600.0])
def test_ticks_are_round_and_few(total: float) -> None:
    found = timeline.ticks(total)
    assert found[0] == 0
    assert found[-1] <= total * (1 + 1e-9)
    assert 4 <= len(found) <= 10
    digits = f"{found[1]:e}".split("e")[0].rstrip("0").rstrip(".")
    assert digits in ("1", "2", "5")


def test_png_shows_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image

    path = tmp_path / "timeline.png"
    given_ = [("cost $1$", phases(1.0, ("a", 0.0, 0.5)))]
    timeline.save(given_, path)
    image = Image.open(path).convert("RGB")
    assert image.size == (timeline.WIDTH * 2, round(timeline.draw(given_).height * 2))
    bar = bars(timeline.draw(given_), hatched=False)[0]
    inside = image.getpixel((round((bar.x + bar.width - 20) * 2), round((bar.y + 3) * 2)))
    assert inside == (0xA9, 0xC8, 0xF5)


def test_svg_needs_no_library() -> None:
    code = """
import sys
from hotstart.snapshot_agent import timeline
timeline.svg([("x", {"total_s": 1.0, "unaccounted_s": 1.0, "spans": []})])
print([name for name in ("matplotlib", "numpy", "click", "rich") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
