"""What `trace2evolve calibrate` prints."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from pytest_trace2evolve.gate.calibration import CONFIDENCE, Calibration, Rate
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.report.markdown import escape
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import listed, rendered
from pytest_trace2evolve.session.calibrate import Findings


def calibration_json(findings: Findings) -> dict[str, Any]:
    """The documented JSON form."""
    found = findings.calibration
    return {
        "tasks": found.pool.tasks,
        "simulations": found.pool.simulations,
        "pass_rate": found.pool.pass_rate,
        "trials": found.draw.trials,
        "live": found.draw.live,
        "resamples": found.resamples,
        "seed": found.seed,
        "policies": {name: _policy_json(found, name) for name in found.margins},
        "left_out": list(findings.left_out),
        "notes": list(findings.notes),
    }


def _policy_json(found: Calibration, name: str) -> dict[str, Any]:
    rates = []
    for rate in found.rates(name):
        decided = found.decisions.get((name, rate.goal, rate.effect))
        interval = None if decided is None else decided.rate(rate.decision)
        rates.append(
            {
                "what": rate.meaning,
                "goal": rate.goal.value,
                "effect": rate.effect,
                "decision": rate.decision.value,
                **({"estimate": None} if interval is None else interval.model_dump(mode="json")),
            }
        )
    counts = [
        {
            "goal": goal.value,
            "effect": effect,
            "promote": one.promoted,
            "inconclusive": one.inconclusive,
            "discard": one.discarded,
        }
        for (policy, goal, effect), one in found.decisions.items()
        if policy == name
    ]
    return {"margin": found.margins[name], "rates": rates, "counts": counts}


def calibration_text(findings: Findings) -> str:
    """A row a figure, a column a policy, and what went in."""
    found, target = findings.calibration, terminal()
    pool = found.pool
    fresh = "fresh trials of broken tasks" if found.draw.live else "recorded runs: no fresh trials"
    target.print(
        f"{escape(findings.name)}: {pool.tasks} tasks, {pool.simulations} simulations, pass rate "
        f"{pool.pass_rate:.3f}",
        soft_wrap=True,
    )
    target.print(
        f"{found.resamples} resamples of {pool.tasks} tasks × {found.draw.trials} trials a side; {fresh}; "
        f"seed {found.seed}",
        soft_wrap=True,
    )
    target.print()
    target.print(_table(found))
    target.print()
    target.print(
        f"[dim]Intervals ({CONFIDENCE:.0%}, exact) are of the resampling alone; another {pool.tasks} tasks "
        "would differ by more.[/]",
        soft_wrap=True,
    )
    if findings.left_out:
        shown = escape(listed(findings.left_out, separator="; "))
        target.print(f"left out ({len(findings.left_out)}): {shown}", soft_wrap=True)
    for note in findings.notes:
        target.print(f"note: {escape(note)}", soft_wrap=True)
    return rendered(target)


def _table(found: Calibration) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("figure", "goal", "candidate", "decision"):
        table.add_column(heading, no_wrap=True)
    names = list(found.margins)
    for name in names:
        table.add_column(escape(name), justify="right", no_wrap=True)
    by_policy = [found.rates(name) for name in names]
    for rates in zip(*by_policy, strict=True):
        first = rates[0]
        table.add_row(
            first.meaning,
            first.goal.value,
            _candidates(rates),
            {Decision.PROMOTE: "promoted", Decision.DISCARD: "discarded"}[first.decision],
            *(_cell(found, name, rate) for name, rate in zip(names, rates, strict=True)),
        )
    return table


def _candidates(rates: Sequence[Rate]) -> str:
    """What was planted; where policies have margins of their own, that."""
    effects = {rate.effect for rate in rates}
    if len(effects) > 1:
        return "−margin"
    (effect,) = effects
    if effect == 0:
        return "the same agent"
    at_margin = rates[0].goal is Goal.HOLD
    return f"{points(effect)} points" + (" (−margin)" if at_margin else "")


def points(effect: float) -> str:
    """An effect in points, with its sign."""
    return f"{100 * effect:+.3g}".replace("-", "−")


def _cell(found: Calibration, name: str, rate: Rate) -> str:
    decided = found.decisions.get((name, rate.goal, rate.effect))
    if decided is None:
        return "–"
    at = decided.rate(rate.decision)
    return f"{100 * at.estimate:.1f} % ({100 * at.low:.1f}–{100 * at.high:.1f})"
