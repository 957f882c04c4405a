"""Environments in the terminal: their list, what admission found, and calibrations."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pytest_trace2evolve.records.environment import AdmissionReport, Calibration, Outcome
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import rendered

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.calibration import EnvironmentStatus


def environments_text(listed: "Sequence[EnvironmentStatus]") -> str:
    """All environments, a line each."""
    target = terminal()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("environment", "digest", "calibrated", "pays"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("environment", "digest"))
    for one in listed:
        table.add_row(Text(one.name), one.digest[:12], Text(state_of(one)), Text(one.pays))
    target.print(table)
    return rendered(target)


def state_of(one: "EnvironmentStatus") -> str:
    """What is known of an environment's calibration, in a few words."""
    if not one.calibrations:
        return "no"
    told = []
    for kept in one.calibrations:
        fits = f"difficulty {kept.difficulty}" if kept.outcome is Outcome.FITS else "nothing fits"
        told.append(f"{kept.model}: {fits}")
    return "; ".join(told) + (" (of another version)" if one.stale else "")


def admission_text(report: AdmissionReport) -> str:
    """What admission found, a line a check."""
    target = terminal()
    verdict = "admitted" if report.passed else "refused"
    title = f"{report.capability}: {verdict}, {report.seeds} seeds in {report.seconds:.1f} s"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("check", "passed", "detail"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "detail")
    for line in report.checks:
        table.add_row(Text(line.check), "yes" if line.passed else "NO", Text(line.detail))
    target.print(table)
    return rendered(target)


def calibrations_text(found: Sequence[Calibration]) -> str:
    """Calibrations, a line a difficulty that was measured; what to do where nothing fits."""
    target = terminal()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in _COLUMNS:
        table.add_column(heading, overflow="fold", no_wrap=True)
    table.add_column("outside", overflow="fold")
    for one in found:
        for tried in one.tried:
            figures = tried.figures
            values: Mapping[str, str] = {
                "environment": one.capability,
                "level": str(tried.difficulty),
                "mean": f"{figures.mean:.2f}",
                "std": f"{figures.std:.2f}",
                "top": f"{figures.all_top:.0%}",
                "zero": f"{figures.all_zero:.0%}",
                "differ": f"{figures.informative:.0%}",
                "pass@k": " ".join(f"{k}:{value:.2f}" for k, value in figures.pass_at.items()),
                "lost": str(figures.lost),
                "tokens": "?" if tried.tokens is None else f"{tried.tokens:.0f}",
            }
            told = "; ".join(tried.outside) or "fits"
            table.add_row(*(Text(values[name]) for name in _COLUMNS), Text(told))
    target.print(table)
    for one in found:
        if one.advice:
            target.print(Text(f"{one.capability}: {one.advice}"))
    return rendered(target)


_COLUMNS = ("environment", "level", "mean", "std", "top", "zero", "differ", "pass@k", "lost", "tokens")
