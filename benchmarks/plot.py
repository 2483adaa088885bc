"""The plot of ``./dev bench restore``: every measurement a dot, medians as bars, on a logarithmic axis."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt


class Measured(Protocol):
    """What is drawn of a row of the benchmark."""

    model: str
    cold_start_warm_s: list[float]
    criu_restore_warm_s: list[float]
    hotstart_restore_warm_s: list[float]


_SERIES = (
    ("cold start", "cold_start_warm_s", "#8c959f"),
    ("stock criu restore", "criu_restore_warm_s", "#4f8fd6"),
    ("Hotstart", "hotstart_restore_warm_s", "#e5734b"),
)


def restore(rows: Sequence[Measured], path: Path) -> None:
    """Write the plot as PNG (or what the suffix says)."""
    figure, axes = plt.subplots(figsize=(9.5, 1.2 + 1.5 * len(rows)), layout="constrained")
    labels: list[str] = []
    for row_number, row in enumerate(rows):
        for number, (label, name, colour) in enumerate(_SERIES):
            y = -(row_number * (len(_SERIES) + 1) + number)
            values: list[float] = getattr(row, name)
            median = statistics.median(values)
            axes.barh(y, median, color=colour, alpha=0.75, height=0.8)
            axes.plot(values, [y] * len(values), "o", color="#1f2328", markersize=4, alpha=0.7)
            ratio = median / statistics.median(row.hotstart_restore_warm_s)
            text = f" {median:.2f} s" + (f"  ({ratio:.1f}× Hotstart)" if number < len(_SERIES) - 1 else "")
            axes.text(max(values), y, text, va="center", fontsize=9)
            labels.append(f"{row.model}: {label}")
    ticks = [-(r * (len(_SERIES) + 1) + n) for r in range(len(rows)) for n in range(len(_SERIES))]
    axes.set_yticks(ticks, labels)
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 4)
    axes.set_xlabel("seconds to first token over HTTP (dots: measurements, bars: medians)")
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
