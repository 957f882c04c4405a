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

from pytest_trace2evolve.errors import ConfigError, nearest
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.report.verdict import comparison_text
from pytest_trace2evolve.session import compare as recorded
from pytest_trace2evolve.session.events import (
    Event,
    Run,
    SimulationFinished,
    StageFinished,
    TaskDecided,
    TaskName,
    VerdictReached,
    ignore,
)
from pytest_trace2evolve.session.option_table import OPTIONS, Option
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.planner import make_plan, resources_of
from pytest_trace2evolve.session.session import run
from pytest_trace2evolve.session.settings import Context, check_values, read_judge, read_options
from pytest_trace2evolve.worlds.registry import Worlds

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


class Comparison(recorded.Comparison):
    """A verdict on two sides, with the figures of both."""

    def summary(self) -> str:
        """Figures of both sides, the gate's table and the verdict, as text for a terminal."""
        return comparison_text(self)


def evaluate(
    project: Project,
    *,
    tasks: Iterable[TaskName] | None = None,
    on_event: Callable[[Event], None] = ignore,
    executor: "RayExecutor | None" = None,
    **options: Any,
) -> Run:
    """Run suites with a candidate, gate the result against its baseline, and store the evidence.

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
    values = _values(options)
    check_values(values)
    settings = Context(root=project.root, here=Path.cwd())
    resources = resources_of(project)
    plan = make_plan(
        read_options(values, settings),
        resources,
        suite_names=list(project.suite_names),
        judge=read_judge(values),
    )
    named = None if tasks is None else _named_tasks(plan, tasks)
    return run(plan, resources, on_event, named, executor)


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
    """Gate two sides of evidence, without recording anything.

    Args:
        baseline, candidate: A run, one or more paths of results files or evidence, or the name of a saved
            baseline.
        project: The project whose suites, policies and baselines are used; by default, the project of a
            given run.
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
    found = recorded.compare(
        _paths(baseline, project, suite),
        _paths(candidate, project, suite),
        Worlds() if project is None else project.open_worlds(),
        policy=policy,
        goal=Goal(goal),
        project=project,
        suite=suite,
        split=split,
    )
    return Comparison(**vars(found))


def _named_tasks(plan: Plan, tasks: Iterable[TaskName]) -> list[TaskName]:
    known = {(name, task) for name, planned in plan.suites.items() for task in planned.lock.tasks}
    named = [tuple(pair) for pair in tasks]
    if unknown := [pair for pair in named if pair not in known]:
        remedy = ""
        if len(unknown[0]) == 2 and unknown[0][0] in plan.suites:
            suite, task = unknown[0]
            remedy = f"; {nearest(str(task), plan.suites[suite].lock.tasks, most=3)}"
        raise ConfigError(
            f"tasks: {unknown[0]!r} is no pair of a suite of this run and the id of a task of it{remedy}"
        )
    return [(suite, task) for suite, task in named]


def _paths(side: str | Path | Run | Sequence[Path], project: Project | None, suite: str | None) -> list[Path]:
    if isinstance(side, Run):
        assert suite is not None
        return [side.plan.suite_folder(suite)]
    if not isinstance(side, str | Path):
        if paths := [Path(path) for path in side]:
            return paths
        raise ConfigError("a side of a comparison names no file")
    if isinstance(side, str):
        saved: list[str] = []
        if project is not None and suite is not None:
            saved = project.baseline_names(suite)
            if side in saved:
                return [project.baseline_path(suite, side)]
        if not Path(side).exists():
            names = ", ".join(saved) or "none"
            raise ConfigError(f"{side!r} is neither a path nor a saved baseline; saved are {names}")
    return [Path(side)]


def _values(options: dict[str, Any]) -> SimpleNamespace:
    """The values of all options by destination, validated as on the command line."""
    values = dict.fromkeys((option.destination for option in OPTIONS), None)
    by_name = {option.name.replace("-", "_"): option for option in OPTIONS}
    for name, value in options.items():
        option = by_name.get(_PLURALS.get(name, name))
        if option is None:
            raise ConfigError(f"unknown option {name!r}; {nearest(name, [*by_name, *_PLURALS])}")
        values[option.destination] = _checked(name, option, value)
    return SimpleNamespace(**values)


def _checked(name: str, option: Option, value: Any) -> Any:
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
