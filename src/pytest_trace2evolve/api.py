"""The public Python API: evaluate a candidate, or compare two sides.

    from pytest_trace2evolve import Project, compare, evaluate

    run = evaluate(Project.find(), candidate="v6", suites=["support"], model="gpt-4.1-mini", trials=4)
    print(compare(baseline="v0", candidate=run).summary())

Only these names, and those of the documented submodules, are public.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.errors import ConfigError, name_suggestion
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.report.verdict import comparison_text
from pytest_trace2evolve.session import compare as session_compare
from pytest_trace2evolve.session.events import (
    Event,
    Run,
    SimulationFinished,
    StageFinished,
    TaskDecided,
    TaskName,
    VerdictReached,
    ignore_event,
)
from pytest_trace2evolve.session.evidence_sources import find_evidence
from pytest_trace2evolve.session.option_table import OPTIONS, Option
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.planner import make_plan, resources_of
from pytest_trace2evolve.session.session import run
from pytest_trace2evolve.session.settings import Context, check_not_empty, read_judge, read_options

if TYPE_CHECKING:
    from pytest_trace2evolve.engine.ray_executor import RayExecutor

__all__ = [
    "Comparison",
    "Event",
    "Project",
    "Run",
    "SimulationFinished",
    "StageFinished",
    "TaskDecided",
    "VerdictReached",
    "compare",
    "evaluate",
]

_PLURALS = {"suites": "suite"}
"""Plural names in the API for repeatable options that have a singular name."""


class Comparison(session_compare.Comparison):
    """A verdict on two sides, with the figures of both."""

    def summary(self) -> str:
        """Return the figures of both sides, the gate's table and the verdict, as text for a terminal."""
        return comparison_text(self)


def evaluate(
    project: Project,
    *,
    tasks: Iterable[TaskName] | None = None,
    on_event: Callable[[Event], None] = ignore_event,
    executor: "RayExecutor | None" = None,
    **options: Any,
) -> Run:
    """Run suites with a candidate, compare the result with the candidate's baseline, and store the evidence.

    Args:
        project: The project that holds the suites.
        tasks: Pairs of a suite's name and a task's id; by default, all tasks of the suites.
        on_event: Called for each event of the run, in a thread of the run.
        executor: Runs the simulations on other machines; if None, this process runs them.
        **options: The options of the pytest plugin without `--t2e-`: `candidate`, `suites`, `model`,
            `trials`, `baseline`, `gate`, `max_cost`, … Values have Python types.

    Returns:
        The result: figures, verdicts and notes; `plan.run_folder` holds the traces.

    Raises:
        ConfigError: an option is unknown or wrong, or the options contradict one another.
        ResultsError: a baseline or a replay was edited, or is not comparable with this run.
        EndpointError: a key is missing, or the endpoint would reject every request.
        StorageError: the evidence could not be stored.
    """
    values = _parse_options(options)
    check_not_empty(values)
    context = Context(root=project.root, base_folder=Path.cwd())
    resources = resources_of(project)
    plan = make_plan(
        read_options(values, context),
        resources,
        suite_names=list(project.suite_names),
        judge=read_judge(values),
    )
    task_names = None if tasks is None else _check_task_names(plan, tasks)
    return run(plan, resources, on_event, task_names, executor)


def compare(
    *,
    baseline: str | Path | Run | Sequence[Path],
    candidate: str | Path | Run | Sequence[Path],
    project: Project | None = None,
    suite: str | None = None,
    split: str | None = None,
    policy: str | None = None,
    goal: str = "improve",
) -> Comparison:
    """Compare two sides of evidence and return the gate's verdict, without recording anything.

    Args:
        baseline, candidate: A run, the id of one or its beginning, the name of a saved baseline (`v0`, or
            `desk/v0` if several suites have it), or one or more paths of results files or evidence.
        project: The project whose suites, policies and baselines are used; by default, that of a `Run`
            among the sides.
        suite: Compare only this suite's tasks; required for a run of several suites.
        split: Compare only this split of the suite.
        policy: The gate's policy; `calibrated` by default.
        goal: `improve`, `hold` or `no-regression`.

    Raises:
        ConfigError: a name is unknown, or `suite` is missing for a run of several suites.
        ResultsError: a side cannot be read, or the two cannot be compared.
    """
    runs = [side for side in (baseline, candidate) if isinstance(side, Run)]
    if project is None and runs:
        project = runs[0].plan.project
    if suite is None and runs:
        names = list(runs[0].plan.suites)
        if len(names) > 1:
            raise ConfigError(f"the run has {len(names)} suites: name one with suite= ({', '.join(names)})")
        suite = names[0]
    if goal not in [*Goal]:
        raise ConfigError(f"goal={goal!r}: choose from {', '.join(Goal)}")
    comparison = session_compare.compare(
        _side_paths(baseline, project, suite),
        _side_paths(candidate, project, suite),
        policy=policy,
        goal=Goal(goal),
        project=project,
        suite=suite,
        split=split,
    )
    return Comparison(**vars(comparison))


def _check_task_names(plan: Plan, tasks: Iterable[TaskName]) -> list[TaskName]:
    known_tasks = {(name, task) for name, suite in plan.suites.items() for task in suite.lock.tasks}
    task_names = [tuple(pair) for pair in tasks]
    if unknown_tasks := [pair for pair in task_names if pair not in known_tasks]:
        remedy = ""
        if len(unknown_tasks[0]) == 2 and unknown_tasks[0][0] in plan.suites:
            suite, task = unknown_tasks[0]
            remedy = f"; {name_suggestion(str(task), plan.suites[suite].lock.tasks, max_names=3)}"
        raise ConfigError(
            f"tasks: {unknown_tasks[0]!r} is not a suite of this run with the id of one of its tasks{remedy}"
        )
    return [(suite, task) for suite, task in task_names]


def _side_paths(
    side: str | Path | Run | Sequence[Path], project: Project | None, suite: str | None
) -> list[Path]:
    if isinstance(side, Run):
        assert suite is not None
        return [side.plan.suite_folder(suite)]
    if not isinstance(side, str | Path):
        if paths := [Path(path) for path in side]:
            return paths
        raise ConfigError("a side of a comparison must name at least one file")
    return [find_evidence(str(side), project, Path.cwd(), suite)]


def _parse_options(options: dict[str, Any]) -> SimpleNamespace:
    """Return the values of all options by destination, validated as on the command line."""
    values = dict.fromkeys((option.destination for option in OPTIONS), None)
    by_name = {option.name.replace("-", "_"): option for option in OPTIONS}
    for name, value in options.items():
        option = by_name.get(_PLURALS.get(name, name))
        if option is None:
            raise ConfigError(f"unknown option {name!r}; {name_suggestion(name, [*by_name, *_PLURALS])}")
        values[option.destination] = _parse_value(name, option, value)
    return SimpleNamespace(**values)


def _parse_value(name: str, option: Option, value: Any) -> Any:
    if value is None:
        return None
    if option.is_flag:
        return True if value else None
    if option.is_repeatable:
        return [str(item) for item in ([value] if isinstance(value, str | Path) else value)]
    if option.choices is not None and value not in option.choices:
        raise ConfigError(f"{name}={value!r}: choose from {', '.join(option.choices)}")
    if option.type is None:
        return str(value)
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    try:
        return option.type(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name}: {error}") from None
