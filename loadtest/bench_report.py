"""The report of systems side by side: a Markdown document, and a plot of each kind of work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from loadtest.bench_marks import CPU, WORKS, Case, Results, Verdict


def document(
    machine: str,
    works: Sequence[str],
    results: Results,
    found: Iterable[Verdict],
    skipped: Mapping[str, str],
) -> Iterator[str]:
    """Write the parts of the document. skipped: what was not measured, and why."""
    yield f"# Side by side\n\n{machine}"
    yield "\nFigures are medians of all rounds, ratios medians of the rounds' ratios.\n"
    yield from (f"\nSkipped: {what}: {why}.\n" for what, why in skipped.items())
    yield from _tables(results, works)
    yield from _marks_table(found)


def _tables(results: Results, works: Iterable[str]) -> Iterator[str]:
    """Write a Markdown table of each kind of work."""
    for work in works:
        title, against = WORKS[work]
        measures = results.measures(work)
        compared = "" if against is None else f" (ratio to: {against})"
        yield f"\n### {title}{compared}\n\n"
        yield f"| what | {' | '.join(measures)} |\n|---|{'---|' * len(measures)}\n"
        for case in results.cases(work):
            cells = " | ".join(_cell(results, case, measure, against) for measure in measures)
            yield f"| {_where(case.setting, case.connections, case.system)} | {cells} |\n"


def _cell(results: Results, case: Case, measure: str, against: str | None) -> str:
    figure = results.figure(case, measure)
    if figure is None:
        return ""
    if against is None or case.system == against or measure == CPU:
        return _shown(figure)
    ratio = results.ratio(case, measure, against)
    return _shown(figure) if ratio is None else f"{_shown(figure)} ({ratio:.2f}x)"


def _marks_table(found: Iterable[Verdict]) -> Iterator[str]:
    """Write a Markdown table of marks."""
    yield "\n### Marks\n\n| what | measure | mark | measured | |\n|---|---|---|---|---|\n"
    yield from map(_mark_line, found)


def _mark_line(verdict: Verdict) -> str:
    mark = verdict.mark
    times = "x" if mark.against else ""
    sign = "≥" if mark.at_least else "≤"
    bound = f"{sign} {mark.bound:,g}{times} {mark.against or ''}".strip()
    if verdict.measured is None:
        measured, word = "", "not measured"
    else:
        measured, word = f"{_shown(verdict.measured)}{times}", "MISSED" if verdict.missed else "met"
    where = _where(mark.setting, mark.connections, mark.system)
    return f"| {mark.work}: {where} | {mark.measure} | {bound} | {measured} | {word} |\n"


def plot(results: Results, works: Iterable[str], directory: Path) -> list[Path]:
    """Draw each kind of work that was measured; returns the files."""
    paths = []
    for work in works:
        cases = results.cases(work)
        path = directory / f"bench-{work}.png"
        if len({case.connections for case in cases}) > 1:
            _plot_connections(results, work, path)
        elif cases:
            _plot_bars(results, work, path)
        else:
            continue
        paths.append(path)
    return paths


def _plot_connections(results: Results, work: str, path: Path) -> None:
    """Draw rate and latency over connections."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  (after the choice of a backend)

    cases = results.cases(work)
    settings = list(dict.fromkeys(case.setting for case in cases))
    measures = [each for each in results.measures(work) if each != CPU]
    figure, axes = plt.subplots(
        len(settings),
        len(measures),
        squeeze=False,
        figsize=(4.5 * len(measures), 4 * len(settings)),
    )
    for row, setting in zip(axes, settings, strict=True):
        for axis, measure in zip(row, measures, strict=True):
            for system in dict.fromkeys(case.system for case in cases):
                own = [each for each in cases if (each.setting, each.system) == (setting, system)]
                own.sort(key=lambda case: case.connections or 0)
                heights = [results.figure(each, measure) for each in own]
                axis.plot([each.connections for each in own], heights, "o-", label=system)
            axis.set(title=setting, xlabel="connections", ylabel=measure, xscale="log")
            axis.set_xticks(sorted({each.connections or 0 for each in cases}))
            axis.get_xaxis().set_major_formatter(ScalarFormatter())
            axis.minorticks_off()
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
            axis.legend()
    _save(figure, work, path)


def _plot_bars(results: Results, work: str, path: Path) -> None:
    """Draw a bar for each case, in a panel for each measure."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  (after the choice of a backend)

    measures = [each for each in results.measures(work) if each != CPU]
    figure, axes = plt.subplots(
        len(measures), 1, squeeze=False, figsize=(9, 1 + 2.5 * len(measures))
    )
    for (axis,), measure in zip(axes, measures, strict=True):
        bars = {
            _where(case.setting, None, case.system): value
            for case in results.cases(work)
            if (value := results.figure(case, measure)) is not None
        }
        axis.barh(list(bars), list(bars.values()))
        axis.invert_yaxis()
        axis.set_xlabel(measure)
        axis.grid(alpha=0.3, axis="x")
    _save(figure, work, path)


def _save(figure: Figure, work: str, path: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415  (after the choice of a backend)

    figure.suptitle(WORKS[work][0])
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _shown(figure: float) -> str:
    """Write a figure with three digits that matter, whole where it is large."""
    if abs(figure) >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.1f}" if abs(figure) >= 10 else f"{figure:.2f}"


def _where(setting: str, connections: int | None, system: str) -> str:
    plural = "" if connections == 1 else "s"
    clients = "" if connections is None else f"{connections} connection{plural}"
    return ", ".join(part for part in (system, setting, clients) if part)
