"""`trace2evolve capabilities`: which capabilities the failures of runs lack.

`trace2evolve evolve`: from the failures of a run to adapters that went through the gate.

`trace2evolve train`: an adapter for one capability or several, by GRPO in their environments.

`trace2evolve routing`: how often the router is right, on content that it never saw.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.cli.common import (
    at_least,
    environments_of,
    nearest_project,
    progress_bar,
    project_of,
    refuse_picture,
    resources_of,
    worlds_of,
)
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.improve.arguments import (
    add_evolve_arguments,
    add_run_options,
    parse_run_options,
    run_values,
)
from pytest_trace2evolve.utils.option_types import integer
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.diagnose.diagnosis import LabelSet
    from pytest_trace2evolve.diagnose.traces import TraceSet
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.project.project import Project
    from pytest_trace2evolve.records.improvement import Stage
    from pytest_trace2evolve.training.train import Order


def add_capabilities(commands: Any) -> None:
    """Declare the command."""
    mine = commands.add_parser(
        "capabilities", help="which capabilities the failures of runs lack, by contrast with what passed"
    )
    mine.add_argument(
        "runs",
        nargs="+",
        metavar="RUN|RESULTS",
        help="a run's id or how it begins, a run folder, a results file",
    )
    labeller = mine.add_mutually_exclusive_group()
    labeller.add_argument("--judge", metavar="MODEL", help="discover and label by this model")
    labeller.add_argument("--rules", action="store_true", help="label by rules, offline (default)")
    mine.add_argument(
        "--runs", dest="times", type=integer, metavar="N", help="runs of the judge (default: 10)"
    )
    mine.add_argument(
        "--judge-base-url", metavar="URL", help="the judge's endpoint (default: OPENAI_BASE_URL)"
    )
    mine.add_argument("--judge-key-var", metavar="NAME", help="holds its key (default: OPENAI_API_KEY)")
    mine.add_argument("--no-cache", action="store_true", help="ask the judge anew, and keep no answer")
    mine.add_argument("--dry-run", action="store_true", help="only say what the judge would take")
    mine.add_argument(
        "--split", action="append", metavar="NAME", help="learn from a sealed split too; the ledger says so"
    )
    mine.add_argument("--suite", default="", metavar="NAME", help="which suite of runs over several")
    mine.add_argument("--provider", help="the world's provider (default: inspect_evals)")
    mine.add_argument("--picture", type=Path, metavar="FILE", help="write a picture (.svg or .png)")
    mine.add_argument("--json", action="store_true", help="print JSON")
    mine.set_defaults(command=_capabilities)


def _capabilities(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.diagnose.diagnosis import by_rules, report
    from pytest_trace2evolve.diagnose.traces import gather
    from pytest_trace2evolve.report.capabilities import capabilities_json, capabilities_text

    times = None if options.times is None else at_least("--runs", options.times, 1, 10000)
    _refuse_unheard(options)
    if options.picture is not None:
        refuse_picture(options.picture)
    project = nearest_project(options)
    gathered = gather(
        options.runs,
        worlds_of(project),
        project=project,
        here=Path.cwd(),
        splits=tuple(options.split or ()),
        suite=options.suite,
        provider=options.provider,
    )
    if options.judge is None:
        labelled: LabelSet | None = by_rules(gathered, times or 1)
    else:
        labelled = _judged(options, gathered, project, times)
    if labelled is None:
        return 0
    found = report(gathered, labelled)
    if options.picture is not None:
        from pytest_trace2evolve.report.plots import capability_picture

        file_format = options.picture.suffix[1:].lower()
        options.picture.write_bytes(capability_picture(found, file_format=file_format))
    print(json.dumps(capabilities_json(found), indent=2) if options.json else capabilities_text(found))
    return 0


_JUDGES_ONLY = ("judge_base_url", "judge_key_var", "no_cache", "dry_run")


def _refuse_unheard(options: argparse.Namespace) -> None:
    """Options that say something to a judge, where none is asked.

    Raises:
        ConfigError: there is one.
    """
    given = [name for name in _JUDGES_ONLY if getattr(options, name)]
    if options.judge is None and given:
        raise ConfigError(f"--{given[0].replace('_', '-')} is for a judge: name one with --judge")


def _judged(
    options: argparse.Namespace, gathered: "TraceSet", project: "Project | None", times: int | None
) -> "LabelSet | None":
    """Labels by the judge; None where only their cost was asked for."""
    from pytest_trace2evolve.diagnose.judge_labels import RUNS, JudgeLabeller, JudgeSettings, estimate
    from pytest_trace2evolve.engine.participants import open_cache
    from pytest_trace2evolve.models.prices import PRICES_NAME, read_prices
    from pytest_trace2evolve.models.settings import ModelSettings

    prices = read_prices(project.root / PRICES_NAME) if project is not None else {}
    model = ModelSettings(
        model=options.judge,
        base_url=options.judge_base_url,
        url_option="--judge-base-url",
        key_var=options.judge_key_var or "OPENAI_API_KEY",
        temperature=1.0,
        seed=0,
        price=prices.get(options.judge),
    )
    settings = JudgeSettings(model, runs=times or RUNS)
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
        judged = JudgeLabeller(settings, _shown(show))
        labelled = judged.label(gathered)
    spent = f", ${judged.used.cost:.2f}" if judged.used.cost is not None and judged.used.calls else ""
    print(f"asked {judged.used.calls:,} times, {judged.used.tokens:,} tokens{spent}", file=sys.stderr)
    return labelled


def _shown(show: Callable[..., None]) -> Callable[[int, int], None]:
    return lambda done, total: show(done, "", total)


def add_evolve(commands: Any) -> None:
    """Declare the command."""
    evolve = commands.add_parser(
        "evolve", help="train adapters for what failing tests lack, and gate them; rerun it to resume"
    )
    add_evolve_arguments(evolve)
    evolve.add_argument("--dry-run", action="store_true", help="only print what it would take")
    evolve.add_argument("--json", action="store_true", help="the outcome as JSON")
    add_run_options(evolve)
    evolve.add_argument("run_options", nargs="*", metavar="-- OPTION", help="the same, behind --")
    evolve.set_defaults(command=_evolve, goes_on=True)


def _evolve(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.improve.loop import evolve
    from pytest_trace2evolve.improve.plan import budget_of, budget_text, check_budget
    from pytest_trace2evolve.improve.planner import plan_evolution
    from pytest_trace2evolve.project.pytest_ini import ini_value
    from pytest_trace2evolve.report.improvement import evolved_text
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
        state = evolve(plan, resources, environments, _print_progress)
    print(
        state.model_dump_json(indent=1)
        if options.json
        else evolved_text(state, project.adapters).rstrip("\n")
    )
    return 0


def _print_progress(stage: "Stage", line: str) -> None:
    print(f"{stage.value}: {sanitize_line(line)[:160]}", file=sys.stderr, flush=True)


def add_train(commands: Any) -> None:
    """Declare the command."""
    train = commands.add_parser("train", help="train an adapter for a capability; goes on where it was")
    train.add_argument(
        "--capability", nargs="+", metavar="NAME", help="what is trained; several: one adapter"
    )
    train.add_argument(
        "--from-run", metavar="RUN", help="train an adapter for each capability that its failures lack"
    )
    train.add_argument("--name", metavar="NAME", help="the adapter's name (default: the capability)")
    train.add_argument("--base", type=Path, metavar="DIR", help="the base model (default: the embedded one)")
    train.add_argument("--preset", default="pocket", help="pocket or gpu (default: pocket)")
    train.add_argument("--config", type=Path, metavar="FILE", help="TOML with values of the recipe")
    train.add_argument("--seed", type=integer, metavar="N", help="(default: 1)")
    train.add_argument("--steps", type=integer, metavar="N", help="steps of the optimiser")
    train.add_argument(
        "--difficulty",
        type=integer,
        metavar="D",
        help="from 1 to 5 (default: what calibration found, else 1)",
    )
    train.add_argument("--candidate", metavar="ID", help="whose instruction the agent gets (default: none)")
    train.add_argument(
        "--out", type=Path, metavar="DIR", help="the adapter's folder (default: adapters/NAME)"
    )
    train.add_argument(
        "--heldout", type=integer, metavar="N", default=100, help="held-out scenarios (default: 100; 0: none)"
    )
    train.add_argument(
        "--heldout-others",
        type=integer,
        metavar="M",
        help="of each environment that is not trained (default: half as many; 0: none)",
    )
    train.add_argument(
        "--heldout-rollouts", type=integer, metavar="K", default=4, help="of each scenario (default: 4)"
    )
    train.set_defaults(command=_train, goes_on=True)


def _train(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.serving.server import QUIET_THREADS

    # Before torch is loaded.
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET_THREADS.items()})
    from pytest_trace2evolve.environments.admission import draw_first_seed, require_admitted
    from pytest_trace2evolve.training.train import check_order, orders_of

    project = nearest_project(options)
    with contextlib.closing(environments_of(project)) as environments:
        orders = orders_of(environments, options, project, Path.cwd())
        if options.from_run is not None:
            orders = _left(orders)
        for order in orders:
            check_order(order)
            if project is not None:
                first = draw_first_seed(order.recipe.first_scenario, order.recipe.scenarios)
                require_admitted(environments, order.capabilities, project, first)
        for order in orders:
            _trained(environments, order)
    return 0


def _left(orders: "list[Order]") -> "list[Order]":
    """Those whose adapters are not there yet: a command that was interrupted goes on with them."""
    from pytest_trace2evolve.records.adapter import MANIFEST

    for order in orders:
        if (order.out / MANIFEST).is_file():
            print(f"{order.out}: is there already and stays as it is", file=sys.stderr)
    return [order for order in orders if not (order.out / MANIFEST).is_file()]


def _trained(environments: "Environments", order: "Order") -> None:
    from pytest_trace2evolve.report.training import heldout_text, step_word
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

        def stepped(step: Any) -> None:
            curve.append({"reward": step.reward, "informative": step.informative, "kl": step.kl})
            show(step.step, step_word(curve))

        made = train_adapter(
            environments,
            order,
            on_step=stepped,
            on_progress=lambda done: show(done, "held out", total),
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


def add_routing(commands: Any) -> None:
    """Declare the command."""
    routing = commands.add_parser("routing", help="hold the router against oracle labels on held-out content")
    routing.add_argument(
        "capability",
        nargs="*",
        metavar="NAME",
        help="capabilities of the table (default: those of the promoted adapters of this base)",
    )
    routing.add_argument("--base", type=Path, metavar="DIR", help="the model (default: the embedded one)")
    routing.add_argument("--tasks", type=integer, metavar="N", help="openings a label (default: 50)")
    routing.add_argument("--json", action="store_true", help="as JSON")
    routing.set_defaults(command=_routing)


def _routing(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.improve.routing import TASKS, openings_of, route_locally, table_of
    from pytest_trace2evolve.report.improvement import routed_json, routed_text
    from pytest_trace2evolve.serving.folder import read_model
    from pytest_trace2evolve.utils.resources import embedded_model

    tasks = TASKS if options.tasks is None else at_least("--tasks", options.tasks, 1)
    base = read_model(options.base or embedded_model())
    project = nearest_project(options)
    with contextlib.closing(environments_of(project)) as environments:
        table = table_of(environments, options.capability, project, base)
        openings = openings_of(environments, table, tasks)
        with progress_bar("routing", len(openings)) as show:
            found = route_locally(base, table, openings, on_progress=show)
    names = [row.name for row in table]
    print(routed_json(found, names) if options.json else routed_text(found, base.name), end="")
    return 0
