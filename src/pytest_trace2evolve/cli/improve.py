"""Commands that learn from failures: improve, capabilities and train."""

import argparse
import contextlib
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.cli.common import (
    environments_of,
    nearest_project,
    progress_bar,
    project_of,
    worlds_of,
)
from pytest_trace2evolve.errors import ConfigError, GitHubError
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.diagnose.diagnosis import LabelSet
    from pytest_trace2evolve.diagnose.traces import TraceSet
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.project.project import Project
    from pytest_trace2evolve.session.settings import Context
    from pytest_trace2evolve.training.train import TrainingSpec


def show_capabilities(options: argparse.Namespace) -> int:
    """Print the capabilities that the failures of runs lack."""
    from pytest_trace2evolve.diagnose.contrast import Thresholds
    from pytest_trace2evolve.diagnose.diagnosis import build_report, label_set_by_rules
    from pytest_trace2evolve.diagnose.traces import gather_traces
    from pytest_trace2evolve.report.capabilities import capabilities_text

    if options.judge is None and options.dry_run:
        raise ConfigError("--dry-run needs a judge; name one with --judge")
    project = nearest_project(options)
    traces = gather_traces(
        options.runs,
        worlds_of(project),
        project=project,
        base_folder=Path.cwd(),
        splits=tuple(options.include_sealed or ()),
        suite=options.suite or "",
        provider=options.provider,
    )
    by_rules = options.judge is None
    labels = label_set_by_rules(traces, options.repeats or 1) if by_rules else None
    if (labels := labels or _label_with_judge(options, traces, project)) is None:
        return 0
    thresholds = Thresholds(options.coverage, options.contrast)
    capability_report = build_report(traces, labels, thresholds)
    print(
        json.dumps(capability_report.model_dump(mode="json"), indent=2)
        if options.json
        else capabilities_text(capability_report)
    )
    return 0


def _label_with_judge(
    options: argparse.Namespace, traces: "TraceSet", project: "Project | None"
) -> "LabelSet | None":
    """Label traces with the judge; return None if only the cost estimate was requested."""
    from pytest_trace2evolve.diagnose.judge_labels import (
        DEFAULT_RUNS,
        JudgeLabeller,
        JudgeSettings,
        estimate_usage,
    )
    from pytest_trace2evolve.engine.factories import open_cache
    from pytest_trace2evolve.models.prices import PRICES_NAME, read_prices
    from pytest_trace2evolve.models.settings import ModelSettings

    prices = read_prices(project.root / PRICES_NAME) if project is not None else {}
    model = ModelSettings(
        model=options.judge,
        base_url=options.judge_base_url,
        url_option="t2e_judge_base_url",
        temperature=1.0,
        seed=0,
        price=prices.get(options.judge),
    )
    settings = JudgeSettings(model, runs=options.repeats or DEFAULT_RUNS)
    cost_estimate = estimate_usage(traces, settings)
    cost_text = (
        f"about ${cost_estimate.cost:.2f}"
        if cost_estimate.cost is not None
        else "price unknown (add it to prices.toml)"
    )
    print(
        f"{len(traces.behaviors)} traces × {settings.runs} runs: {cost_estimate.requests:,} requests, about "
        f"{cost_estimate.prompt_tokens:,} prompt and {cost_estimate.completion_tokens:,} completion "
        f"tokens, {cost_text}",
        file=sys.stderr,
    )
    if options.dry_run:
        return None
    model.key()
    model.require_url()
    with contextlib.ExitStack() as stack:
        if project is not None:
            cache = open_cache(project.answers_cache)
            stack.callback(cache.close)
            settings = JudgeSettings(model, runs=settings.runs, cache=cache)
        update = stack.enter_context(progress_bar("labelling", None))
        labeller = JudgeLabeller(settings, lambda done, total: update(done, "", total))
        labels = labeller.label(traces)
    spent_text = (
        f", ${labeller.usage.cost:.2f}" if labeller.usage.cost is not None and labeller.usage.calls else ""
    )
    print(
        f"asked {labeller.usage.calls:,} times, {labeller.usage.tokens:,} tokens{spent_text}", file=sys.stderr
    )
    return labels


def train(options: argparse.Namespace) -> int:
    """Train an adapter for one or more capabilities, with GRPO in their environments; or train the router."""
    if options.router and (options.capability or options.from_run):
        raise ConfigError("--router trains no adapter; leave out --capability and --from-run")
    if options.router:
        return _train_router(options)
    project = nearest_project(options)  # first, because torch cannot be loaded in a deleted folder
    from pytest_trace2evolve.serving.server import PASSIVE_THREAD_VARIABLES

    # These variables must be set before torch is loaded.
    os.environ.update({name: os.environ.get(name, value) for name, value in PASSIVE_THREAD_VARIABLES.items()})
    from pytest_trace2evolve.environments.admission import draw_first_seed, require_admitted
    from pytest_trace2evolve.records.adapter import MANIFEST_NAME
    from pytest_trace2evolve.training.train import check_packages, check_spec, make_specs

    check_packages()
    with contextlib.closing(environments_of(project)) as environments:
        specs = make_specs(environments, options, project, Path.cwd())
        if options.from_run is not None:
            for spec in specs:
                if (spec.out / MANIFEST_NAME).is_file():
                    print(f"{spec.out}: already exists; left unchanged", file=sys.stderr)
            specs = [spec for spec in specs if not (spec.out / MANIFEST_NAME).is_file()]
        for spec in specs:
            check_spec(spec)
            if project is not None:
                first_seed = draw_first_seed(spec.recipe.first_scenario, spec.recipe.scenarios)
                require_admitted(environments, spec.capabilities, project, first_seed)
        for spec in specs:
            _train_adapter(environments, spec)
    return 0


def _train_adapter(environments: "Environments", spec: "TrainingSpec") -> None:
    from pytest_trace2evolve.report.improvement import heldout_text, training_progress
    from pytest_trace2evolve.training.train import train_adapter

    recipe = spec.recipe
    print(
        f"training {spec.name} on {spec.base.name}: {recipe.steps} steps × {recipe.groups} groups × "
        f"{recipe.rollouts} rollouts, difficulty "
        + ", ".join(str(spec.difficulties[name]) for name in spec.capabilities),
        file=sys.stderr,
    )
    curve: list[dict[str, Any]] = []
    total = 2 * spec.measurement().rollout_count
    with progress_bar(spec.name, recipe.steps) as update:

        def on_step(step: Any) -> None:
            curve.append({"reward": step.reward, "informative": step.informative, "kl": step.kl})
            update(step.step, training_progress(curve))

        result = train_adapter(
            environments, spec, on_step=on_step, on_progress=lambda done: update(done, "held out", total)
        )
    if result is None:
        return
    training = result.training
    size = f"{len(training.curve)} steps, {training.rollouts} rollouts in {training.seconds / 60:.1f} minutes"
    fall = "; rewards fell, so the best weights before were kept" if training.has_collapsed else ""
    print(f"{spec.out}: {size}{fall}")
    if result.after:
        print(heldout_text(spec.capabilities, result.before, result.after))


def _train_router(options: argparse.Namespace) -> int:
    """Train the router, write its file, and print its accuracy on held-out openings."""
    from pytest_trace2evolve.agents.probe import PROBE_FILE, write_probe
    from pytest_trace2evolve.improve.routing import train_router
    from pytest_trace2evolve.report.improvement import routing_text
    from pytest_trace2evolve.serving.folder import folder_digest, read_model
    from pytest_trace2evolve.utils.optional import require
    from pytest_trace2evolve.utils.resources import embedded_model

    base = read_model(options.base or embedded_model())
    require("torch", extra="local")
    project = nearest_project(options)
    with contextlib.closing(environments_of(project)) as environments, progress_bar("reading", 1) as update:
        matrix, confusion = train_router(base, environments, on_progress=update)
    path = (Path.cwd() if project is None else project.root) / "adapters" / PROBE_FILE
    write_probe(path, matrix, confusion.labels, folder_digest(base.path))
    print(f"{path}: trained on {base.name}", file=sys.stderr)
    print(routing_text(confusion), end="")
    return 0


def improve(options: argparse.Namespace) -> int:
    """Propose candidates, screen them, and keep those that the gate promotes."""
    from pytest_trace2evolve.improve.arena import improve
    from pytest_trace2evolve.improve.arguments import parse_run_options, run_values
    from pytest_trace2evolve.improve.search_planner import plan_search
    from pytest_trace2evolve.report.improvement import plan_text, search_json, search_page, search_text
    from pytest_trace2evolve.session.planner import resources_of

    parse_run_options(options.run_options, options)
    project = project_of(options)
    resources = resources_of(project)
    values = run_values(options)
    plan = plan_search(options, values, resources, _context_of(project))
    print(plan_text(plan), file=sys.stderr, flush=True)
    if options.dry_run:
        return 0
    result = improve(plan, resources, lambda line: print(sanitize_line(line), file=sys.stderr, flush=True))
    page = plan.folder(project) / "report.html"
    write_atomic(page, search_page(plan, result))
    print(search_json(result) if options.json else search_text(plan, result))
    print(f"page: {page}", file=sys.stderr)
    if options.publish and result.rows:
        body = textwrap.indent(search_text(plan, result), "    ")  # which no text of a proposal can end
        try:
            url = plan.branch(project).publish(f"Improve {plan.root} on {plan.suite}: {result.best}", body)
            print(f"published: {sanitize_line(url)}", file=sys.stderr)
        except GitHubError as error:
            print(f"not published: {error}; rerun the same command to publish", file=sys.stderr)
    return 0


def _context_of(project: "Project") -> "Context":
    from pytest_trace2evolve.project.pytest_ini import ini_value
    from pytest_trace2evolve.session.settings import Context

    return Context(
        root=project.root,
        base_folder=Path.cwd(),
        agent=ini_value(project.root, "t2e_agent") or "",
        gate=ini_value(project.root, "t2e_gate") or "",
    )
