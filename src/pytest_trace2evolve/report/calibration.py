"""The output of `trace2evolve calibrate` and `trace2evolve power`, and the picture of a calibration."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from pytest_trace2evolve.gate.calibration import Calibration, Rate
from pytest_trace2evolve.gate.intervals import LEVEL, POWER
from pytest_trace2evolve.gate.power import TARGET_GAIN, Plan, Power
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.report.formatting import (
    NOTHING,
    Figure,
    Word,
    escape,
    grid,
    listed,
    points,
    rendered,
    terminal,
)
from pytest_trace2evolve.utils.plots import OutcomeBars, outcome_bars

if TYPE_CHECKING:
    from pytest_trace2evolve.session.calibrate import CalibratedFiles


def calibration_json(files: "CalibratedFiles") -> dict[str, Any]:
    """The documented JSON form of a calibration."""
    found = files.calibration
    return {
        "tasks": found.pool.tasks,
        "simulations": found.pool.simulations,
        "pass_rate": found.pool.pass_rate,
        "trials": found.draw.trials,
        "live": found.draw.live,
        "resamples": found.resamples,
        "seed": found.seed,
        "policies": {name: _policy_json(found, name) for name in found.margins},
        "left_out": list(files.left_out),
        "notes": list(files.notes),
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
            "promote": decided.promoted,
            "inconclusive": decided.inconclusive,
            "discard": decided.discarded,
        }
        for (policy, goal, effect), decided in found.decisions.items()
        if policy == name
    ]
    return {"margin": found.margins[name], "rates": rates, "counts": counts}


def calibration_text(files: "CalibratedFiles") -> str:
    """The calibration as a table with one row per figure and one column per policy, and its settings."""
    found, target = files.calibration, terminal()
    pool = found.pool
    fresh = "fresh trials of broken tasks" if found.draw.live else "recorded runs: no fresh trials"
    target.print(
        f"{escape(files.name)}: {pool.tasks} tasks, {pool.simulations} simulations, pass rate "
        f"{pool.pass_rate:.3f}",
        soft_wrap=True,
    )
    target.print(
        f"{found.resamples} resamples of {pool.tasks} tasks × {found.draw.trials} trials a side; {fresh}; "
        f"seed {found.seed}",
        soft_wrap=True,
    )
    target.print()
    target.print(_rates_table(found))
    target.print()
    target.print(
        f"[dim]Intervals ({LEVEL:.0%}, exact) are of the resampling alone; another {pool.tasks} tasks "
        "would differ by more.[/]",
        soft_wrap=True,
    )
    if files.left_out:
        shown = escape(listed(files.left_out, separator="; "))
        target.print(f"left out ({len(files.left_out)}): {shown}", soft_wrap=True)
    for note in files.notes:
        target.print(f"note: {escape(note)}", soft_wrap=True)
    return rendered(target)


def _rates_table(found: Calibration) -> Table:
    names = list(found.margins)
    columns = [Figure(escape(name)) for name in names]
    table = grid(Word("figure"), Word("goal"), Word("candidate"), Word("decision"), *columns)
    for rates in zip(*(found.rates(name) for name in names), strict=True):
        first = rates[0]
        table.add_row(
            first.meaning,
            first.goal.value,
            _planted_effect(rates),
            "promoted" if first.decision is Decision.PROMOTE else "discarded",
            *(_rate(found, name, rate) for name, rate in zip(names, rates, strict=True)),
        )
    return table


def _planted_effect(rates: Sequence[Rate]) -> str:
    """The effect that was planted; `−margin` if the policies have different margins."""
    effects = {rate.effect for rate in rates}
    if len(effects) > 1:
        return "−margin"
    (effect,) = effects
    if effect == 0:
        return "the same agent"
    at_margin = rates[0].goal is Goal.HOLD
    return f"{points(effect)} points" + (" (−margin)" if at_margin else "")


def _rate(found: Calibration, name: str, rate: Rate) -> str:
    decided = found.decisions.get((name, rate.goal, rate.effect))
    if decided is None:
        return NOTHING
    at = decided.rate(rate.decision)
    return f"{100 * at.estimate:.1f} % ({100 * at.low:.1f}–{100 * at.high:.1f})"


def calibration_picture(files: "CalibratedFiles", *, file_format: str) -> bytes:
    """Draw a bar for every planted effect, with policies in rows and goals in columns."""
    found = files.calibration
    rows = [[_bars(found, name, goal) for goal in (Goal.IMPROVE, Goal.HOLD)] for name in found.margins]
    resamples = f"{found.resamples} resamples of {found.pool.tasks} tasks × {found.draw.trials} trials a side"
    return outcome_bars(
        rows, title=f"{files.name}\n{resamples}", x_label="true difference, points", file_format=file_format
    )


def _bars(found: Calibration, name: str, goal: Goal) -> OutcomeBars:
    effects = sorted(key[2] for key in found.decisions if key[:2] == (name, goal))
    decided = [found.decisions[name, goal, effect] for effect in effects]
    return OutcomeBars(
        f"{name}, goal {goal.value}",
        [points(effect) if effect else "0" for effect in effects],
        {decision.value: [counts.rate(decision).estimate for counts in decided] for decision in Decision},
    )


def power_json(plan: Plan, power: Power) -> dict[str, Any]:
    """The documented JSON form of a power analysis."""
    return {
        "policy": plan.policy.name,
        "margin": plan.margin,
        "tasks": plan.design.tasks,
        "trials": plan.design.trials,
        "live": plan.design.live,
        "agent": {"a": plan.agent.a, "b": plan.agent.b, "rate": plan.agent.mean},
        "rows": plan.rows,
        "seed": plan.seed,
        "chances": [
            {
                "goal": chance.goal.value,
                "effect": chance.effect,
                "decision": chance.decision.value,
                **({"estimate": None} if chance.rate is None else chance.rate.model_dump(mode="json")),
            }
            for chance in power.chances
        ],
        "smallest": power.smallest,
        "enough": {"effect": TARGET_GAIN, "trials": power.trials, "tasks": power.tasks},
    }


def power_text(plan: Plan, power: Power) -> str:
    """The chances of each decision, the smallest gain that is found, and the effort for the target gain."""
    target = terminal()
    design = plan.design
    fresh = "live, with fresh trials of broken tasks" if design.live else "recorded runs"
    target.print(
        f"{design.tasks} tasks × {design.trials} trials a side, {fresh}; policy {escape(plan.policy.name)}; "
        f"pass rate {plan.agent.mean:.2f} (Beta({plan.agent.a:.3g}, {plan.agent.b:.3g}) over tasks); "
        f"{plan.rows} simulated comparisons a row",
        soft_wrap=True,
    )
    target.print()
    table = grid(
        Word("goal"), Word("true difference"), Word("decision"), Figure("chance"), Figure("95 % interval")
    )
    for chance in power.chances:
        effect = "none" if chance.effect == 0 else f"{points(chance.effect)} points"
        rate = chance.rate
        figures = (
            (NOTHING, "no room for it")
            if rate is None
            else (f"{100 * rate.estimate:.1f} %", f"{100 * rate.low:.1f}–{100 * rate.high:.1f}")
        )
        table.add_row(chance.goal.value, effect, chance.decision.value, *figures)
    target.print(table)
    target.print()
    smallest = "none" if power.smallest is None else f"about {points(power.smallest)} points"
    target.print(f"smallest gain promoted with {POWER:.0%}: {smallest}")
    target.print(_settling(plan, power), soft_wrap=True)
    return rendered(target)


def _settling(plan: Plan, power: Power) -> str:
    title = f"what would reach {POWER:.0%} for {points(TARGET_GAIN)} points: "
    trials = plan.design.trials
    if power.trials == trials:
        return title + "this does"
    ways = []
    if power.trials is not None:
        ways.append(f"about {power.trials} trials of these {plan.design.tasks} tasks")
    if power.tasks is not None:
        ways.append(f"about {power.tasks} tasks of {trials} {'trial' if trials == 1 else 'trials'}")
    return title + (" or ".join(ways) or "nothing that was tried (64 trials, 2000 tasks)")
