"""Environments, trainings, evolutions and routers in the terminal."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pytest_trace2evolve.improve.routing import accuracy
from pytest_trace2evolve.records.adapter import AdapterManifest, Confusion, HeldOut, RewardChange
from pytest_trace2evolve.records.environment import (
    AdmissionReport,
    Calibration,
    DifficultyResult,
    Outcome,
)
from pytest_trace2evolve.records.improvement import Evolution
from pytest_trace2evolve.report.formatting import (
    NOTHING,
    Figure,
    Word,
    fits,
    grid,
    points,
    rendered,
    terminal,
)
from pytest_trace2evolve.training.heldout import reward_change, top_change
from pytest_trace2evolve.utils.plots import SMOOTHED_STEPS
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.calibration import EnvironmentStatus
    from pytest_trace2evolve.project.adapters import Adapters


def environments_text(environments: "Sequence[EnvironmentStatus]") -> str:
    """All environments, one line each."""
    target = terminal()
    table = grid(
        Column("environment", overflow="fold", no_wrap=True),
        Column("digest", overflow="fold", no_wrap=True),
        Column("calibrated", overflow="fold"),
        Column("pays", overflow="fold"),
    )
    for environment in environments:
        state = _calibration_state(environment)
        table.add_row(Text(environment.name), environment.digest[:12], Text(state), Text(environment.pays))
    target.print(table)
    return rendered(target)


def _calibration_state(environment: "EnvironmentStatus") -> str:
    if not environment.calibrations:
        return "no"
    states = []
    for calibration in environment.calibrations:
        fits = calibration.outcome is Outcome.FITS
        state = f"difficulty {calibration.difficulty}" if fits else "nothing fits"
        states.append(f"{calibration.model}: {state}")
    return "; ".join(states) + (" (of another version)" if environment.stale else "")


def admission_text(report: AdmissionReport) -> str:
    """The checks of an admission, one line each."""
    target = terminal()
    verdict = "admitted" if report.passed else "refused"
    table = grid(
        Column("check", overflow="fold", no_wrap=True),
        Column("passed", overflow="fold", no_wrap=True),
        Column("detail", overflow="fold"),
        title=f"{report.capability}: {verdict}, {report.seeds} seeds in {report.seconds:.1f} s",
    )
    for line in report.checks:
        table.add_row(Text(line.check), "yes" if line.passed else "NO", Text(line.detail))
    target.print(table)
    return rendered(target)


def calibrations_text(calibrations: Sequence[Calibration]) -> str:
    """Calibrations, one line per measured difficulty, with advice if no difficulty fits."""
    target = terminal()
    headings = ("environment", "level", "mean", "std", "top", "zero", "differ", "pass@k", "lost", "tokens")
    columns = [Column(heading, overflow="fold", no_wrap=True) for heading in headings]
    table = grid(*columns, Column("outside", overflow="fold"))
    for calibration in calibrations:
        for tried in calibration.tried:
            table.add_row(*map(Text, _calibration_row(calibration.capability, tried)))
    target.print(table)
    for calibration in calibrations:
        if calibration.advice:
            target.print(Text(f"{calibration.capability}: {calibration.advice}"))
    return rendered(target)


def _calibration_row(capability: str, tried: DifficultyResult) -> list[str]:
    figures = tried.figures
    return [
        capability,
        str(tried.difficulty),
        f"{figures.mean:.2f}",
        f"{figures.std:.2f}",
        f"{figures.all_top:.0%}",
        f"{figures.all_zero:.0%}",
        f"{figures.informative:.0%}",
        " ".join(f"{k}:{value:.2f}" for k, value in figures.pass_at.items()),
        str(figures.lost),
        "?" if tried.tokens is None else f"{tried.tokens:.0f}",
        "; ".join(tried.outside) or "fits",
    ]


_HELDOUT_HEADINGS = ("held-out environment", "mean reward", "change (95 %)", "top share", "change (95 %)")


def heldout_text(
    capabilities: Sequence[str], before: Mapping[str, HeldOut], after: Mapping[str, HeldOut]
) -> str:
    """Held-out rewards before and after a training, one row per environment, trained ones first."""
    target = terminal()
    names = [*capabilities, *(name for name in after if name not in capabilities)]
    rows = [
        (
            Text(name, "bold" if name in capabilities else ""),
            *_change_cells(reward_change(before[name], after[name])),
            *_change_cells(top_change(before[name], after[name])),
        )
        for name in names
    ]
    table = _heldout_table(rows, _HELDOUT_HEADINGS)
    # A narrow terminal does not get the share of top rewards, which is the least informative figure.
    target.print(table if fits(table, target) else _heldout_table(rows, _HELDOUT_HEADINGS[:3]))
    first = after[names[0]]
    sizes = sorted({len(heldout.rewards) for heldout in after.values()}, reverse=True)
    lost = sum(heldout.lost for side in (before, after) for heldout in side.values())
    target.print(
        f"[dim]{' or '.join(map(str, sizes))} scenarios × {max(map(len, first.rewards))} rollouts each, "
        f"before and after{f', {lost} of them lost' if lost else ''}; temperature {first.temperature:g}; "
        "intervals by scenario.[/]",
        soft_wrap=True,
    )
    return rendered(target)


def _heldout_table(rows: Sequence[tuple[Text | str, ...]], headings: Sequence[str]) -> Table:
    table = grid(Word(headings[0]), *(Figure(heading) for heading in headings[1:]))
    for row in rows:
        table.add_row(*row[: len(headings)])
    return table


def _change_cells(change: RewardChange) -> tuple[str, str]:
    interval = ""
    if change.low is not None and change.high is not None:
        interval = f" ({points(change.low, '.1f')} to {points(change.high, '.1f')})"
    return f"{change.before:.2f} → {change.after:.2f}", points(change.change, ".1f") + interval


def training_progress(curve: Sequence[Mapping[str, Any]]) -> str:
    """The last steps of a training in a few words, for its progress bar."""
    recent = curve[-SMOOTHED_STEPS:]
    reward = sum(step["reward"] for step in recent) / len(recent)
    informative = sum(step["informative"] for step in recent) / len(recent)
    kl = next((step["kl"] for step in reversed(curve) if step.get("kl") is not None), None)
    text = f"reward {reward:.2f}, groups that differ {informative:.0%}"
    return text if kl is None else f"{text}, KL {kl:.3f}"


def evolution_text(state: Evolution, adapters: "Adapters") -> str:
    """One row per adapter and one for the routed agent, then the router's accuracy and the effort."""
    target = terminal()
    table = grid(
        "candidate",
        *(Column(heading, justify="right") for heading in ("Δ", "held out", "change (95 %)")),
        "others at worst",
        "gate",
        "verdict",
    )
    deltas = {missing.name: missing.delta for missing in state.missing or ()}
    for capability, name in state.adapters.items():
        judged = state.judged.get(f"{state.candidate}+{name}")
        if judged is None:
            continue
        delta = deltas.get(capability)
        why = f" ({judged.why})" if judged.why else ""
        heldout = (
            _manifest_cells(adapters[name].manifest, capability)
            if name in set(adapters)
            else ("gone", "", "")
        )
        table.add_row(
            Text(judged.candidate, "bold"),
            NOTHING if delta is None else f"{delta:+.2f}",
            *heldout,
            "no verdict" if judged.gate is None else judged.gate.value,
            f"{judged.state.value}{why}",
        )
    routed = state.judged.get(f"{state.candidate}+routed")
    if routed is not None:
        gate = "no verdict" if routed.gate is None else routed.gate.value
        table.add_row(Text(routed.candidate, "bold"), "", "", "", "", gate, routed.state.value)
    target.print(table)
    for line in _evolution_lines(state, routed=routed is not None):
        target.print(line, soft_wrap=True, highlight=False)
    return rendered(target)


def _manifest_cells(manifest: AdapterManifest, capability: str) -> tuple[str, str, str]:
    """Held-out reward, its change, and the other capability that lost most."""
    own = manifest.heldout.get(capability)
    if own is None:
        return "not measured", "", ""
    others = [
        (measured.change, name)
        for name, measured in manifest.heldout.items()
        if name not in manifest.environments
    ]
    worst = NOTHING
    if others:
        change, name = min(others)
        worst = f"{points(change, '.1f')} {name}"
    interval = ""
    if own.low is not None and own.high is not None:
        interval = f" ({points(own.low, '.1f')} to {points(own.high, '.1f')})"
    return f"{own.before:.2f} → {own.after:.2f}", points(own.change, ".1f") + interval, worst


def _evolution_lines(state: Evolution, *, routed: bool) -> list[str]:
    lines = []
    if not routed:
        lines.append(f"{state.candidate}+routed: no adapter was promoted, so there is nothing to route to")
    if state.confusion is not None and (found := accuracy(state.confusion)):
        share, low, high = found
        lines.append(
            f"router: right on {share:.0%} of {state.confusion.total} held-out openings "
            f"({low:.0%} … {high:.0%}; by chance {1 / len(state.confusion.labels):.0%})"
        )
    spent = ", ".join(f"{stage.value} {minutes:.1f}" for stage, minutes in state.minutes.items())
    lines.append(
        f"rollouts: {sum(state.rollouts.values()):,}; minutes: {sum(state.minutes.values()):.1f} ({spent})"
    )
    return lines


ROUTING_WIDTH = 120


class Routed(Protocol):
    """The choices of a router."""

    @property
    def confusion(self) -> Confusion:
        """The router's choices compared with the oracle's labels."""

    @property
    def silent(self) -> float:
        """The share of all questions in which no letter was among the reported tokens."""


def routing_text(routed: Routed, base: str) -> str:
    """A router compared with oracle labels: the confusion table, and the share of right choices."""
    confusion = routed.confusion
    columns = [Column(str(position + 1), justify="right") for position in range(len(confusion.labels))]
    table = Table("oracle label", *columns, Column("right", justify="right"), title_justify="left", box=None)
    for position, (label, row) in enumerate(zip(confusion.labels, confusion.counts, strict=True)):
        right = f"{row[position] / sum(row):.0%}" if sum(row) else NOTHING
        table.add_row(f"{position + 1} {sanitize_line(label)}", *map(str, row), right)
    text = io.StringIO()
    Console(file=text, width=ROUTING_WIDTH, color_system=None).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    found = accuracy(confusion)
    if found is None:
        lines.append("nothing was routed")
    else:
        share, low, high = found
        lines.append(
            f"right: {share:.0%} of {confusion.total} held-out openings ({low:.0%} … {high:.0%}), by chance "
            f"{1 / len(confusion.labels):.0%}; {sanitize_line(base)} told no letter in {routed.silent:.0%} "
            "of the questions"
        )
    return "\n".join(lines) + "\n"


def routing_json(routed: Routed, names: Sequence[str]) -> str:
    """The documented JSON form of a router's choices."""
    found = accuracy(routed.confusion)
    record = {
        "table": list(names),
        "confusion": routed.confusion.model_dump(mode="json"),
        "accuracy": None if found is None else dict(zip(("share", "low", "high"), found, strict=True)),
        "chance": 1 / len(routed.confusion.labels),
        "silent": routed.silent,
    }
    return json.dumps(record, indent=1) + "\n"
