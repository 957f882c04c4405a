"""What a live run has before it and what it used, a line each."""

from pytest_trace2evolve.records.account import Budgets, State, Totals
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.report.progress import short
from pytest_trace2evolve.workflow.running.estimate import Estimate


def forecast(estimate: Estimate, budgets: Budgets) -> str:
    """One line: how many simulations, what they are likely to use, and how far the budgets reach."""
    left = estimate.simulations - estimate.kept
    text = counted(left, "simulation") + " to make"
    if estimate.kept:
        text += f", {estimate.kept} finished before"
    if left and estimate.usage is not None:
        text += f"; as in baseline {', '.join(estimate.sources)} they take {usage_text(estimate.usage)}"
        text += "".join(f"; {share}" for share in _shares(estimate.usage, budgets))
    if estimate.fresh:
        text += f"; plus up to {counted(estimate.fresh, 'fresh simulation')} for confirmation"
    return text


def _shares(usage: Usage, budgets: Budgets) -> list[str]:
    wanted = (("cost", budgets.cost, usage.cost), ("tokens", budgets.tokens, usage.tokens))
    return [
        f"--t2e-max-{name} {budget:g} suffices for about {budget / needed:.0%} of that"
        for name, budget, needed in wanted
        if budget is not None and needed and needed > budget
    ]


def usage_text(usage: Usage) -> str:
    """Calls, tokens and cost, as far as they are known."""
    parts = [counted(usage.calls, "call"), f"{short(usage.tokens)} tokens"]
    if usage.cost is not None:
        parts.append(dollars(usage.cost))
    return ", ".join(parts)


def totals_text(totals: Totals) -> str:
    """One line at a run's end: what it used, and what became of its simulations."""
    names = ((State.MADE, "made"), (State.KEPT, "finished before"), (State.LOST, "lost"))
    parts = [f"{totals.states[state]} {name}" for state, name in names if totals.states.get(state)]
    return f"{usage_text(totals.usage)} · simulations: {', '.join(parts) or 'none'}"


def dollars(cost: float) -> str:
    """An amount of US dollars: cents from one dollar on, four decimals below."""
    return f"${cost:,.2f}" if cost >= 1 or cost == 0 else f"${cost:.4f}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 call, 2 calls."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
