"""Renders calibrations, power, plans of runs, and the agreement of judges."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from pytest_trace2evolve.gate.agents import Design
from pytest_trace2evolve.gate.calibration import Calibration, Rate
from pytest_trace2evolve.gate.intervals import CONFIDENCE_LEVEL, POWER
from pytest_trace2evolve.gate.power import TARGET_GAIN, Plan, Power, Preflight
from pytest_trace2evolve.records.agreement import MIN_KAPPA
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.verdict import Decision, Estimand, Goal, Interval
from pytest_trace2evolve.report.formatting import (
    NOT_MEASURED,
    FigureColumn,
    WordColumn,
    escape,
    format_count,
    format_dollars,
    format_list,
    format_points,
    make_grid,
    render_parts,
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
    calibration, left_out = calibration_result.calibration, calibration_result.left_out
    pool, draw = calibration.pool, calibration.draw
    trials_text = "fresh trials of broken tasks" if draw.is_live else "recorded runs: no fresh trials"
    shape = f"{pool.tasks} tasks × {draw.trials} trials a side"
    estimands = calibration_result.estimands.items()
    scope_text = (
        f"Intervals ({CONFIDENCE_LEVEL:.0%}, exact) cover only the resampling; a different set of "
        f"{pool.tasks} tasks would differ by more."
    )
    return render_parts(
        f"{calibration_result.name}: {pool.tasks} tasks, {pool.simulations} simulations, pass rate "
        f"{pool.pass_rate:.3f}",
        f"{calibration.resamples} resamples of {shape}; {trials_text}; seed {calibration.seed}",
        *(f"{name}: verdicts about {_ESTIMAND_TEXTS[kind]}" for name, kind in estimands if kind is not None),
        "",
        _rates_table(calibration),
        "",
        (scope_text, "dim"),
        *([f"left out ({len(left_out)}): {format_list(left_out, separator='; ')}"] if left_out else []),
        *(f"note: {note}" for note in calibration_result.notes),
    )


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
    design, agent, estimand = plan.design, plan.agent, plan.policy.estimand
    estimand_text = "" if estimand is None else f", verdicts about {_ESTIMAND_TEXTS[estimand]}"
    run_kind = "live, with fresh trials of broken tasks" if design.is_live else "recorded runs"
    words, figures = ("goal", "true difference", "decision"), ("chance", "95 % interval")
    table = make_grid(*map(WordColumn, words), *map(FigureColumn, figures))
    for chance in power.chances:
        rate, cells = chance.rate, (NOT_MEASURED, "not possible")
        if rate is not None:
            cells = f"{100 * rate.estimate:.1f} %", f"{100 * rate.low:.1f}–{100 * rate.high:.1f}"
        table.add_row(chance.goal.value, _gain_text(chance.effect), chance.decision.value, *cells)
    return render_parts(
        f"{design.tasks} tasks × {design.trials} trials a side, {run_kind}; policy "
        f"{plan.policy.name}{estimand_text}; pass rate {agent.mean:.2f} "
        f"(Beta({agent.a:.3g}, {agent.b:.3g}) over tasks); {plan.rows} simulated comparisons a row",
        "",
        table,
        "",
        _smallest_gain_text(power.smallest_gain),
        _target_gain_text(plan, power),
    )


def _gain_text(effect: float) -> str:
    return "none" if effect == 0 else f"{format_points(effect)} points"


def _smallest_gain_text(gain: float | None, format_spec: str = ".3g") -> str:
    points = "none" if gain is None else f"about {format_points(gain, format_spec)} points"
    return f"smallest gain promoted with {POWER:.0%}: {points}"


def _target_gain_text(plan: Plan, power: Power) -> str:
    label = f"designs that reach {POWER:.0%} for {format_points(TARGET_GAIN)} points: "
    trials = plan.design.trials
    if power.trials == trials:
        return label + "this one"
    designs = []
    if power.trials is not None:
        designs.append(f"about {power.trials} trials of these {plan.design.tasks} tasks")
    if power.tasks is not None:
        designs.append(f"about {power.tasks} tasks of {format_count(trials, 'trial')}")
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
        cells = [_gain_text(forecast.effect), f"{forecast.promoted:.0%}", f"{count:,.0f}"]
        if usage:
            cost = "–" if usage.cost is None else format_dollars(count * usage.cost)
            cells += [format_short_count(round(count * usage.tokens)), cost]
        table.add_row(*cells, *(f"{share:.0%}" for share in forecast.ended if len(schedule) > 1))
    stages = f"stages of {', '.join(map(str, schedule))}" if len(schedule) > 1 else str(schedule[0])
    texts = [f"{_design_text(other, design)} {share:.0%}" for other, share in result.alternatives]
    gain = f"{format_points(TARGET_GAIN)} points with as many simulations"
    return render_parts(
        f"{design.tasks} tasks × {stages} trials of the candidate, against {design.baseline_trials} of the "
        "baseline; means of simulated runs, with confirmation",
        table,
        _smallest_gain_text(result.smallest_gain, ".2g"),
        *([f"{gain}: {'; '.join(texts)}"] if texts else []),
    )


def _design_text(other: Design, planned: Design) -> str:
    """Describe a design, and the simulations that it takes once for the baseline."""
    planned_baseline, other_baseline = (
        design.tasks * (design.baseline_trials or 0) for design in (planned, other)
    )
    further = f"({other_baseline - planned_baseline:,} simulations once):"
    if other.tasks == planned.tasks:
        return f"with {other.baseline_trials} trials of the baseline {further}"
    return f"with {other.tasks} tasks of up to {format_count(other.trials, 'trial')} {further}"


MAX_DISAGREEMENTS = 10
"""The maximum number of disagreements that are shown for a check."""


def agreement_text(results: Sequence["CheckAgreement"]) -> str:
    """Render the agreement on each check, with the labels that the judge contradicts."""
    headings = ("labels", "accuracy", "kappa", "false kept", "false broken")
    table = make_grid("check", *(Column(heading, justify="right") for heading in headings), "may decide")
    lines: list[str] = []
    for result in results:
        agreement = result.agreement
        intervals = agreement.accuracy, agreement.kappa, agreement.false_kept, agreement.false_broken
        decides = "yes" if agreement.is_sufficient else f"no: kappa must be at least {MIN_KAPPA:.2f}"
        table.add_row(escape(result.check), str(agreement.total), *map(_interval_text, intervals), decides)
        for item in result.disagreements[:MAX_DISAGREEMENTS]:
            answer = "no answer" if item.answer is None else "yes" if item.answer else "no"
            text = f"{result.check}, line {item.line}: label {'yes' if item.label else 'no'}, judge {answer}"
            lines.append(f"{text}: {item.reason}" if item.reason else text)
        if (n_hidden := len(result.disagreements) - MAX_DISAGREEMENTS) > 0:
            lines.append(f"{result.check}: {n_hidden} more disagreements")
        lines.append(f"written: {result.path}")
    legend = "intervals: 95 %; a check may decide if the lower bound of its kappa is high enough"
    return render_parts(table, (legend, "dim"), *lines)


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
