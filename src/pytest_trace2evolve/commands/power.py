"""`trace2evolve power`: what so many tasks and trials would show."""

import argparse
import json
from typing import Any

from pytest_trace2evolve.commands.common import at_least, nearest_project, share
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.option_types import MOST_SEED, finite, integer

KINDS = ("reliable", "medium", "noisy")


def add(commands: Any) -> None:
    """Declare the command."""
    power = commands.add_parser("power", help="what so many tasks and trials would show, by simulation")
    power.add_argument("--tasks", type=integer, required=True, metavar="N", help="tasks compared")
    power.add_argument(
        "--trials", type=integer, required=True, metavar="K", help="trials of each task a side"
    )
    power.add_argument("--agent", choices=KINDS, help="a kind of agent (default: medium)")
    power.add_argument("--rate", type=finite, metavar="P", help="the agent's mean chance of success")
    power.add_argument("--spread", type=finite, metavar="S", help="its standard deviation over tasks")
    power.add_argument("--policy", metavar="P", help="gate policy (default: calibrated)")
    power.add_argument("--margin", type=finite, metavar="M", help="margin of the reward under hold")
    power.add_argument("--alpha", type=finite, metavar="A", help="level of the policy")
    power.add_argument("--live", action="store_true", help="broken tasks get fresh trials")
    power.add_argument(
        "--rows", type=integer, default=2000, metavar="R", help="comparisons a row (default: 2000)"
    )
    power.add_argument("--seed", type=integer, default=0, metavar="N", help="(default: 0)")
    power.add_argument("--json", action="store_true", help="print JSON")
    power.set_defaults(command=_power)


def _power(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.gate.power import Plan, power_of
    from pytest_trace2evolve.gate.simulate import Design
    from pytest_trace2evolve.report.power import power_json, power_text
    from pytest_trace2evolve.workflow.policies import find_policy
    from pytest_trace2evolve.workflow.recorded.calibrate import at_levels

    tasks, trials = (
        at_least("--tasks", options.tasks, 2, 100000),
        at_least("--trials", options.trials, 1, 10000),
    )
    margin = None if options.margin is None else share("--margin", options.margin)
    if options.alpha is not None and not 0 < options.alpha < 0.5:
        raise ConfigError(f"--alpha {options.alpha:g}: must lie between 0 and 0.5")
    named = find_policy(options.policy or "calibrated", nearest_project(options))
    judged = at_levels(named, margin=margin, alpha=options.alpha)
    plan = Plan(
        agent=_agent(options),
        design=Design(tasks, trials, live=options.live, confirm=named.confirm),
        policy=judged.policy,
        margin=judged.margin,
        rows=at_least("--rows", options.rows, 100, 100000),
        seed=at_least("--seed", options.seed, 0, MOST_SEED),
    )
    found = power_of(plan)
    print(json.dumps(power_json(plan, found), indent=2) if options.json else power_text(plan, found))
    return 0


def _agent(options: argparse.Namespace) -> Any:
    """The kind of agent that was named, or one of a rate and a spread."""
    from pytest_trace2evolve.gate.power import agent_of
    from pytest_trace2evolve.gate.simulate import AGENTS

    given = options.rate is not None, options.spread is not None
    if options.agent is not None and any(given):
        raise ConfigError("give --agent, or --rate and --spread")
    if not any(given):
        return AGENTS[options.agent or "medium"]
    if not all(given):
        raise ConfigError("--rate and --spread go together: give both")
    try:
        return agent_of(options.rate, options.spread)
    except ValueError:
        raise ConfigError(
            f"--rate {options.rate:g} --spread {options.spread:g}: a rate lies between 0 and 1, and a spread "
            "between 0 and sqrt(rate × (1 − rate))"
        ) from None
