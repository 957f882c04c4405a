"""Learning from failures: capabilities, train, routing and evolve."""

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.cli.common import (
    check_plot,
    environments_of,
    nearest_project,
    progress_bar,
    project_of,
    worlds_of,
)
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.diagnose.diagnosis import LabelSet
    from pytest_trace2evolve.diagnose.traces import TraceSet
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.project.project import Project
    from pytest_trace2evolve.records.improvement import Stage
    from pytest_trace2evolve.training.train import Order

_JUDGE_OPTIONS = ("judge_base_url", "judge_api_key_env", "no_cache", "dry_run")
"""Options that have no effect without a judge."""


def capabilities(options: argparse.Namespace) -> int:
    """Print the capabilities that the failures of runs lack."""
    from pytest_trace2evolve.diagnose.contrast import STANDARD
    from pytest_trace2evolve.diagnose.diagnosis import by_rules, report
    from pytest_trace2evolve.diagnose.traces import gather
    from pytest_trace2evolve.report.capabilities import capabilities_text, capability_picture

    given = [name for name in _JUDGE_OPTIONS if getattr(options, name)]
    if options.judge is None and given:
        raise ConfigError(f"--{given[0].replace('_', '-')} is for a judge: name one with --judge")
    check_plot(options.plot)
    project = nearest_project(options)
    gathered = gather(
        options.runs,
        worlds_of(project),
        project=project,
        here=Path.cwd(),
        splits=tuple(options.include_sealed or ()),
        suite=options.suite or "",
        provider=options.provider,
    )
    labelled: LabelSet | None
    if options.judge is None:
        labelled = by_rules(gathered, options.repeats or 1)
    else:
        labelled = _labelled_by_judge(options, gathered, project)
    if labelled is None:
        return 0
    found = report(gathered, labelled)
    if options.plot is not None:
        picture = capability_picture(
            found,
            coverage_threshold=STANDARD.coverage,
            delta_threshold=STANDARD.delta,
            file_format=options.plot.suffix[1:].lower(),
        )
        options.plot.write_bytes(picture)
    print(json.dumps(found.model_dump(mode="json"), indent=2) if options.json else capabilities_text(found))
    return 0


def _labelled_by_judge(
    options: argparse.Namespace, gathered: "TraceSet", project: "Project | None"
) -> "LabelSet | None":
    """Label traces with the judge; return None if only the cost estimate was requested."""
    from pytest_trace2evolve.diagnose.judge_labels import RUNS, JudgeLabeller, JudgeSettings, estimate
    from pytest_trace2evolve.engine.factories import open_cache
    from pytest_trace2evolve.models.prices import PRICES_NAME, read_prices
    from pytest_trace2evolve.models.settings import ModelSettings

    prices = read_prices(project.root / PRICES_NAME) if project is not None else {}
    model = ModelSettings(
        model=options.judge,
        base_url=options.judge_base_url,
        url_option="--judge-base-url",
        api_key_env=options.judge_api_key_env or "OPENAI_API_KEY",
        temperature=1.0,
        seed=0,
        price=prices.get(options.judge),
    )
    settings = JudgeSettings(model, runs=options.repeats or RUNS)
    expected = estimate(gathered, settings)
    cost = f"about ${expected.cost:.2f}" if expected.cost is not None else "price not known (prices.toml)"
    print(
        f"{len(gathered.behaviors)} traces × {settings.runs} runs: {expected.requests:,} requests, about "
        f"{expected.prompt_tokens:,} prompt and {expected.completion_tokens:,} completion tokens, {cost}",
        file=sys.stderr,
    )
    if options.dry_run:
        return None
    model.key()
    model.require_url()
    with contextlib.ExitStack() as stack:
        if project is not None and not options.no_cache:
            cache = open_cache(project.answers_cache)
            stack.callback(cache.close)
            settings = JudgeSettings(model, runs=settings.runs, cache=cache)
        show = stack.enter_context(progress_bar("labelling", None))
        judged = JudgeLabeller(settings, lambda done, total: show(done, "", total))
        labelled = judged.label(gathered)
    spent = f", ${judged.used.cost:.2f}" if judged.used.cost is not None and judged.used.calls else ""
    print(f"asked {judged.used.calls:,} times, {judged.used.tokens:,} tokens{spent}", file=sys.stderr)
    return labelled


def train(options: argparse.Namespace) -> int:
    """Train an adapter for one capability or several, by GRPO in their environments."""
    project = nearest_project(options)  # first, because torch cannot be loaded in a deleted folder
    from pytest_trace2evolve.serving.server import QUIET_THREADS

    # These variables must be set before torch is loaded.
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET_THREADS.items()})
    from pytest_trace2evolve.environments.admission import draw_first_seed, require_admitted
    from pytest_trace2evolve.records.adapter import MANIFEST
    from pytest_trace2evolve.training.train import check_order, orders_of

    with contextlib.closing(environments_of(project)) as environments:
        orders = orders_of(environments, options, project, Path.cwd())
        if options.from_run is not None:
            for order in orders:
                if (order.out / MANIFEST).is_file():
                    print(f"{order.out}: is there already and stays as it is", file=sys.stderr)
            orders = [order for order in orders if not (order.out / MANIFEST).is_file()]
        for order in orders:
            check_order(order)
            if project is not None:
                first = draw_first_seed(order.recipe.first_scenario, order.recipe.scenarios)
                require_admitted(environments, order.capabilities, project, first)
        for order in orders:
            _train_one(environments, order)
    return 0


def _train_one(environments: "Environments", order: "Order") -> None:
    from pytest_trace2evolve.report.improvement import heldout_text, training_progress
    from pytest_trace2evolve.training.train import train_adapter

    recipe = order.recipe
    print(
        f"training {order.name} on {order.base.name}: {recipe.steps} steps × {recipe.groups} groups × "
        f"{recipe.rollouts} rollouts, difficulty "
        + ", ".join(str(order.difficulties[name]) for name in order.capabilities),
        file=sys.stderr,
    )
    curve: list[dict[str, Any]] = []
    total = 2 * order.measurement().count
    with progress_bar(order.name, recipe.steps) as show:

        def on_step(step: Any) -> None:
            curve.append({"reward": step.reward, "informative": step.informative, "kl": step.kl})
            show(step.step, training_progress(curve))

        made = train_adapter(
            environments, order, on_step=on_step, on_progress=lambda done: show(done, "held out", total)
        )
    if made is None:
        return
    trained = made.trained
    print(
        f"{order.out}: {len(trained.curve)} steps, {trained.rollouts} rollouts "
        f"in {trained.seconds / 60:.1f} minutes"
    )
    if made.after:
        print(heldout_text(order.capabilities, made.before, made.after))


def eval_router(options: argparse.Namespace) -> int:
    """Print the router's accuracy on held-out content."""
    from pytest_trace2evolve.improve.routing import OPENINGS, openings_of, route_locally, table_of
    from pytest_trace2evolve.report.improvement import routing_json, routing_text
    from pytest_trace2evolve.serving.folder import read_model
    from pytest_trace2evolve.utils.resources import embedded_model

    base = read_model(options.base or embedded_model())
    project = nearest_project(options)
    with contextlib.closing(environments_of(project)) as environments:
        table = table_of(environments, options.capability, project, base)
        openings = openings_of(environments, table, options.openings or OPENINGS)
        with progress_bar("routing", len(openings)) as show:
            found = route_locally(base, table, openings, on_progress=show)
    names = [row.name for row in table]
    print(routing_json(found, names) if options.json else routing_text(found, base.name), end="")
    return 0


def evolve(options: argparse.Namespace) -> int:
    """Train adapters for the failures of a run, and pass the adapters through the gate."""
    from pytest_trace2evolve.improve.arguments import parse_run_options, run_values
    from pytest_trace2evolve.improve.loop import evolve
    from pytest_trace2evolve.improve.plan import budget_of, budget_text, check_budget
    from pytest_trace2evolve.improve.planner import plan_evolution
    from pytest_trace2evolve.project.pytest_ini import ini_value
    from pytest_trace2evolve.report.improvement import evolution_text
    from pytest_trace2evolve.session.planner import resources_of
    from pytest_trace2evolve.session.settings import Context

    parse_run_options(options.run_options, options)
    project = project_of(options)
    context = Context(
        root=project.root,
        here=Path.cwd(),
        agent=ini_value(project.root, "t2e_agent") or "",
        gate=ini_value(project.root, "t2e_gate") or "",
    )
    with contextlib.closing(environments_of(project)) as environments:
        resources = resources_of(project)
        plan = plan_evolution(options, run_values(options), resources, environments, context)
        budget = budget_of(plan, environments.names)
        print(budget_text(plan, budget), file=sys.stderr, flush=True)
        check_budget(plan, budget)
        if options.dry_run:
            return 0
        state = evolve(plan, resources, environments, _print_stage)
    text = state.model_dump_json(indent=1) if options.json else evolution_text(state, project.adapters)
    print(text.rstrip("\n"))
    return 0


def _print_stage(stage: "Stage", text: str) -> None:
    print(f"{stage.value}: {sanitize_line(text)[:160]}", file=sys.stderr, flush=True)
