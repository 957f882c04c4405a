"""Renders calibrations, power, plans of runs, and the agreement of judges."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from pytest_trace2evolve.gate.calibration import Calibration, Rate
from pytest_trace2evolve.gate.intervals import CONFIDENCE_LEVEL, POWER
from pytest_trace2evolve.gate.power import TARGET_GAIN, Design, Plan, Power
from pytest_trace2evolve.gate.stages import Preflight
from pytest_trace2evolve.records.agreement import MIN_KAPPA
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.verdict import Decision, Estimand, Goal, Interval
from pytest_trace2evolve.report.formatting import (
    NOT_MEASURED,
    FigureColumn,
    WordColumn,
    escape,
    format_dollars,
    format_list,
    format_points,
    make_grid,
    make_terminal_console,
    print_line,
    rendered_text,
)
from pytest_trace2evolve.report.progress import format_short_count

if TYPE_CHECKING:
    from pytest_trace2evolve.session.agreement import CheckAgreement
    from pytest_trace2evolve.session.calibrate import CalibrationResult
    from pytest_trace2evolve.session.preflight import SplitPreflight


_ESTIMAND_TEXTS = {
    Estimand.SUITE: "exactly these tasks (estimand suite)",
    Estimand.TASKS: "tasks like these (estimand tasks)",
}


def calibration_json(calibration_result: "CalibrationResult") -> dict[str, Any]:
    """Return a calibration in its documented JSON form."""
    calibration = calibration_result.calibration
    return {
        "tasks": calibration.pool.tasks,
        "simulations": calibration.pool.simulations,
        "pass_rate": calibration.pool.pass_rate,
        "trials": calibration.draw.trials,
        "live": calibration.draw.is_live,
        "resamples": calibration.resamples,
        "seed": calibration.seed,
        "policies": {
            name: {"estimand": calibration_result.estimands.get(name), **_policy_json(calibration, name)}
            for name in calibration.margins
        },
        "left_out": list(calibration_result.left_out),
        "notes": list(calibration_result.notes),
    }


def _policy_json(calibration: Calibration, name: str) -> dict[str, Any]:
    rates = []
    for rate in calibration.rates(name):
        decision_counts = calibration.decisions.get((name, rate.goal, rate.effect))
        interval = None if decision_counts is None else decision_counts.rate(rate.decision)
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
            "promote": decision_counts.promoted,
            "inconclusive": decision_counts.inconclusive,
            "discard": decision_counts.discarded,
        }
        for (policy, goal, effect), decision_counts in calibration.decisions.items()
        if policy == name
    ]
    return {"margin": calibration.margins[name], "rates": rates, "counts": counts}


def calibration_text(calibration_result: "CalibrationResult") -> str:
    """Render a calibration: its settings, and a table with a row per figure and a column per policy."""
    calibration, console = calibration_result.calibration, make_terminal_console()
    pool = calibration.pool
    trials_text = (
        "fresh trials of broken tasks" if calibration.draw.is_live else "recorded runs: no fresh trials"
    )
    console.print(
        f"{escape(calibration_result.name)}: {pool.tasks} tasks, {pool.simulations} simulations, pass rate "
        f"{pool.pass_rate:.3f}",
        soft_wrap=True,
    )
    console.print(
        f"{calibration.resamples} resamples of {pool.tasks} tasks × {calibration.draw.trials} trials a "
        f"side; {trials_text}; "
        f"seed {calibration.seed}",
        soft_wrap=True,
    )
    for name, estimand in calibration_result.estimands.items():
        if estimand is not None:
            console.print(f"{escape(name)}: verdicts about {_ESTIMAND_TEXTS[estimand]}", soft_wrap=True)
    console.print()
    console.print(_rates_table(calibration))
    console.print()
    console.print(
        f"[dim]Intervals ({CONFIDENCE_LEVEL:.0%}, exact) cover only the resampling; a different set of "
        f"{pool.tasks} tasks "
        "would differ by more.[/]",
        soft_wrap=True,
    )
    if calibration_result.left_out:
        left_out_text = escape(format_list(calibration_result.left_out, separator="; "))
        console.print(f"left out ({len(calibration_result.left_out)}): {left_out_text}", soft_wrap=True)
    for note in calibration_result.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    return rendered_text(console)


def _rates_table(calibration: Calibration) -> Table:
    names = list(calibration.margins)
    columns = [FigureColumn(escape(name)) for name in names]
    table = make_grid(
        WordColumn("figure"), WordColumn("goal"), WordColumn("candidate"), WordColumn("decision"), *columns
    )
    for rates in zip(*(calibration.rates(name) for name in names), strict=True):
        first_rate = rates[0]
        table.add_row(
            first_rate.meaning,
            first_rate.goal.value,
            _planted_effect_text(rates),
            "promoted" if first_rate.decision is Decision.PROMOTE else "discarded",
            *(_rate_text(calibration, name, rate) for name, rate in zip(names, rates, strict=True)),
        )
    return table


def _planted_effect_text(rates: Sequence[Rate]) -> str:
    """Describe the planted effect; return `−margin` if the policies have different margins."""
    effects = {rate.effect for rate in rates}
    if len(effects) > 1:
        return "−margin"
    (effect,) = effects
    if effect == 0:
        return "the same agent"
    is_at_margin = rates[0].goal is Goal.HOLD
    return f"{format_points(effect)} points" + (" (−margin)" if is_at_margin else "")


def _rate_text(calibration: Calibration, name: str, rate: Rate) -> str:
    decision_counts = calibration.decisions.get((name, rate.goal, rate.effect))
    if decision_counts is None:
        return NOT_MEASURED
    interval = decision_counts.rate(rate.decision)
    return f"{100 * interval.estimate:.1f} % ({100 * interval.low:.1f}–{100 * interval.high:.1f})"


def power_json(plan: Plan, power: Power) -> dict[str, Any]:
    """Return a power analysis in its documented JSON form."""
    return {
        "policy": plan.policy.name,
        "estimand": plan.policy.estimand,
        "margin": plan.margin,
        "tasks": plan.design.tasks,
        "trials": plan.design.trials,
        "live": plan.design.is_live,
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
        "smallest": power.smallest_gain,
        "enough": {"effect": TARGET_GAIN, "trials": power.trials, "tasks": power.tasks},
    }


def power_text(plan: Plan, power: Power) -> str:
    """Render a power analysis: the chance of each decision, the smallest gain and the needed effort."""
    console = make_terminal_console()
    design = plan.design
    estimand = plan.policy.estimand
    estimand_text = "" if estimand is None else f", verdicts about {_ESTIMAND_TEXTS[estimand]}"
    run_kind = "live, with fresh trials of broken tasks" if design.is_live else "recorded runs"
    console.print(
        f"{design.tasks} tasks × {design.trials} trials a side, {run_kind}; policy "
        f"{escape(plan.policy.name)}{estimand_text}; "
        f"pass rate {plan.agent.mean:.2f} (Beta({plan.agent.a:.3g}, {plan.agent.b:.3g}) over tasks); "
        f"{plan.rows} simulated comparisons a row",
        soft_wrap=True,
    )
    console.print()
    table = make_grid(
        WordColumn("goal"),
        WordColumn("true difference"),
        WordColumn("decision"),
        FigureColumn("chance"),
        FigureColumn("95 % interval"),
    )
    for chance in power.chances:
        effect = "none" if chance.effect == 0 else f"{format_points(chance.effect)} points"
        rate = chance.rate
        rate_cells = (
            (NOT_MEASURED, "not possible")
            if rate is None
            else (f"{100 * rate.estimate:.1f} %", f"{100 * rate.low:.1f}–{100 * rate.high:.1f}")
        )
        table.add_row(chance.goal.value, effect, chance.decision.value, *rate_cells)
    console.print(table)
    console.print()
    smallest_text = (
        "none" if power.smallest_gain is None else f"about {format_points(power.smallest_gain)} points"
    )
    console.print(f"smallest gain promoted with {POWER:.0%}: {smallest_text}")
    console.print(_target_gain_text(plan, power), soft_wrap=True)
    return rendered_text(console)


def _target_gain_text(plan: Plan, power: Power) -> str:
    label = f"designs that reach {POWER:.0%} for {format_points(TARGET_GAIN)} points: "
    trials = plan.design.trials
    if power.trials == trials:
        return label + "this one"
    designs = []
    if power.trials is not None:
        designs.append(f"about {power.trials} trials of these {plan.design.tasks} tasks")
    if power.tasks is not None:
        designs.append(f"about {power.tasks} tasks of {trials} {'trial' if trials == 1 else 'trials'}")
    return label + (" or ".join(designs) or "none up to 64 trials or 2000 tasks")


def preflight_text(splits: Iterable["SplitPreflight"]) -> str:
    """Render what a run costs and can show on each of its splits."""
    parts = []
    for found in splits:
        name = f"{found.suite}::{found.split}"
        if found.obstacle:
            parts.append(f"{name} cannot decide: {found.obstacle}\n")
        elif found.result is None:
            parts.append(f"{name}: {found.note}\n")
        else:
            parts.append(f"{name}, baseline {found.baseline}\n{stages_text(found.result, found.usage)}")
    return "\n".join(parts)


def stages_text(result: Preflight, usage: Usage | None = None) -> str:
    """Render simulated runs in stages. `usage` is that of one simulation, if it is known."""
    design, schedule = result.design, result.schedule
    ends = [WordColumn("true gain"), FigureColumn("promoted"), FigureColumn("simulations")]
    ends += [FigureColumn("tokens"), FigureColumn("cost")] if usage else []
    ends += [FigureColumn(f"end at {trials}") for trials in schedule if len(schedule) > 1]
    table = make_grid(*ends)
    for forecast in result.forecasts:
        count = forecast.simulations
        cells = ["none" if forecast.effect == 0 else f"{format_points(forecast.effect)} points"]
        cells += [f"{forecast.promoted:.0%}", f"{count:,.0f}"]
        if usage:
            cost = "–" if usage.cost is None else format_dollars(count * usage.cost)
            cells += [format_short_count(round(count * usage.tokens)), cost]
        table.add_row(*cells, *(f"{share:.0%}" for share in forecast.ended if len(schedule) > 1))
    console = make_terminal_console()
    stages = f"stages of {', '.join(map(str, schedule))}" if len(schedule) > 1 else str(schedule[0])
    console.print(
        f"{design.tasks} tasks × {stages} trials of the candidate, against {design.baseline_trials} of the "
        "baseline; means of simulated runs, with confirmation",
        soft_wrap=True,
    )
    console.print(table)
    smallest = result.smallest_gain
    points = "none" if smallest is None else f"about {format_points(smallest, '.2g')} points"
    console.print(f"smallest gain promoted with {POWER:.0%}: {points}")
    if result.alternatives:
        texts = [f"{_design_text(other, design)} {share:.0%}" for other, share in result.alternatives]
        gain = format_points(TARGET_GAIN)
        console.print(f"{gain} points with as many simulations: {'; '.join(texts)}", soft_wrap=True)
    return rendered_text(console)


def _design_text(other: Design, planned: Design) -> str:
    """Describe a design, and the simulations that it takes once for the baseline."""
    planned_baseline, other_baseline = (
        design.tasks * (design.baseline_trials or 0) for design in (planned, other)
    )
    further = f"({other_baseline - planned_baseline:,} simulations once):"
    if other.tasks == planned.tasks:
        return f"with {other.baseline_trials} trials of the baseline {further}"
    trials = "trial" if other.trials == 1 else "trials"
    return f"with {other.tasks} tasks of up to {other.trials} {trials} {further}"


MAX_DISAGREEMENTS = 10
"""The maximum number of disagreements that are shown for a check."""


def agreement_text(results: Sequence["CheckAgreement"]) -> str:
    """Render the agreement on each check, with the labels that the judge contradicts."""
    console = make_terminal_console()
    headings = ("labels", "accuracy", "kappa", "false kept", "false broken")
    table = make_grid("check", *(Column(heading, justify="right") for heading in headings), "may decide")
    for result in results:
        agreement = result.agreement
        table.add_row(
            escape(result.check),
            str(agreement.total),
            _interval_text(agreement.accuracy),
            _interval_text(agreement.kappa),
            _interval_text(agreement.false_kept),
            _interval_text(agreement.false_broken),
            "yes" if agreement.is_sufficient else f"no: kappa must be at least {MIN_KAPPA:.2f}",
        )
    console.print(table)
    print_line(
        console,
        "intervals: 95 %; a check may decide if the lower bound of its kappa is high enough",
        "dim",
    )
    for result in results:
        for item in result.disagreements[:MAX_DISAGREEMENTS]:
            answer = "no answer" if item.answer is None else "yes" if item.answer else "no"
            text = f"{result.check}, line {item.line}: label {'yes' if item.label else 'no'}, judge {answer}"
            print_line(console, f"{text}: {item.reason}" if item.reason else text)
        if (n_hidden := len(result.disagreements) - MAX_DISAGREEMENTS) > 0:
            print_line(console, f"{result.check}: {n_hidden} more disagreements")
        print_line(console, f"written: {result.path}")
    return rendered_text(console)


def agreement_json(results: Sequence["CheckAgreement"]) -> dict[str, Any]:
    """The documented JSON form of the output."""
    return {
        "checks": [
            {
                "check": result.check,
                "may_decide": result.agreement.is_sufficient,
                **result.agreement.model_dump(mode="json"),
                "disagreements": [
                    {"line": item.line, "label": item.label, "answer": item.answer, "reason": item.reason}
                    for item in result.disagreements
                ],
            }
            for result in results
        ]
    }


def _interval_text(interval: Interval | None) -> str:
    if interval is None:
        return NOT_MEASURED
    return f"{interval.estimate:.2f} ({interval.low:.2f}…{interval.high:.2f})"
