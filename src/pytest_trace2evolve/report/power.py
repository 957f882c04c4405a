"""What `trace2evolve power` prints."""

from typing import Any

from rich.table import Table

from pytest_trace2evolve.gate.planning import POWER
from pytest_trace2evolve.gate.power import TARGET_GAIN, Plan, Power
from pytest_trace2evolve.report.calibration import points
from pytest_trace2evolve.report.markdown import escape
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import rendered


def power_json(plan: Plan, power: Power) -> dict[str, Any]:
    """The documented JSON form."""
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
                "goal": one.goal.value,
                "effect": one.effect,
                "decision": one.decision.value,
                **({"estimate": None} if one.rate is None else one.rate.model_dump(mode="json")),
            }
            for one in power.chances
        ],
        "smallest": power.smallest,
        "enough": {"effect": TARGET_GAIN, "trials": power.trials, "tasks": power.tasks},
    }


def power_text(plan: Plan, power: Power) -> str:
    """The chances, and what would be found."""
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
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("goal", "true difference", "decision"):
        table.add_column(heading, no_wrap=True)
    table.add_column("chance", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    for one in power.chances:
        told = "none" if one.effect == 0 else f"{points(one.effect)} points"
        if one.rate is None:
            table.add_row(one.goal.value, told, one.decision.value, "–", "no room for it")
            continue
        between = f"{100 * one.rate.low:.1f}–{100 * one.rate.high:.1f}"
        table.add_row(one.goal.value, told, one.decision.value, f"{100 * one.rate.estimate:.1f} %", between)
    target.print(table)
    target.print()
    smallest = "none" if power.smallest is None else f"about {points(power.smallest)} points"
    target.print(f"smallest gain promoted with {POWER:.0%}: {smallest}")
    target.print(_settling(plan, power), soft_wrap=True)
    return rendered(target)


def _settling(plan: Plan, power: Power) -> str:
    title = f"what would reach {POWER:.0%} for {points(TARGET_GAIN)} points: "
    if power.trials == plan.design.trials:
        return title + "this does"
    ways = []
    if power.trials is not None:
        ways.append(f"about {power.trials} trials of these {plan.design.tasks} tasks")
    if power.tasks is not None:
        number = plan.design.trials
        ways.append(f"about {power.tasks} tasks of {number} {'trial' if number == 1 else 'trials'}")
    return title + (" or ".join(ways) or "nothing that was tried (64 trials, 2000 tasks)")
