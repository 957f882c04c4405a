"""The runs of an evolution: how they are made, and which of them can be learnt from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError, LockError
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.improve.order import EvolveOrder
from pytest_trace2evolve.project.lock import RENEW
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.planner import Resources, make_plan
from pytest_trace2evolve.session.session import Event, TaskDecided, check_plan, run
from pytest_trace2evolve.session.sides import expand, provenance
from pytest_trace2evolve.session.verdicts import deciding


@dataclass(frozen=True)
class Runs:
    """Makes the runs of an evolution, in this process.

    Args:
        order: What the runs share.
        resources: What the project offers.
    """

    order: EvolveOrder
    resources: Resources

    def make(
        self, candidate: str, folder: Path, baseline: str | None, on_progress: Callable[[str], None]
    ) -> None:
        """Run a candidate.

        Args:
            candidate: Its id.
            folder: The run folder.
            baseline: The folder of the run that it is compared with; None compares it as any other run.
            on_progress: Called with a line now and then.

        Raises:
            ConfigError, ResultsError, EndpointError, ModelFolderError, StorageError: as `session.run`.
        """
        plan = self._plan(candidate, folder, baseline)
        total = sum(len(suite.lock.tasks) for suite in plan.suites.values())
        step = max(1, total // 10)
        decided = 0

        def on_event(event: Event) -> None:
            nonlocal decided
            if isinstance(event, TaskDecided):
                decided += 1
                if decided % step == 0 or decided == total:
                    on_progress(f"{decided} of {total} tasks")

        result = run(plan, self.resources, on_event)
        for note in result.notes:
            on_progress(note)

    def check(self, baseline: Path, folder: Path) -> None:
        """Check that the evolution's candidate could be compared with a run.

        Raises:
            ConfigError, ResultsError: it could not.
        """
        check_plan(self._plan(self.order.candidate, folder, str(baseline)))

    def _plan(self, candidate: str, folder: Path, baseline: str | None) -> Plan:
        options = replace(self.order.options, candidate=candidate, run_folder=folder, baseline=baseline)
        # A project caches what it reads, and adapters change while an evolution works.
        project = replace(self.resources.project)
        resources = replace(self.resources, project=project)
        return make_plan(options, resources, suite_names=list(project.suite_names), judge=self.order.judge)


def refuse_other(run: Path, origins: Sequence[Provenance], candidate: str, base: ModelFolder) -> None:
    """See that a run is of a candidate, and that the base itself talked in it.

    Raises:
        ConfigError: it is of another candidate, or another model talked.
    """
    for origin in origins:
        named = origin.candidate.id if origin.candidate else None
        if named != candidate:
            raise ConfigError(
                f"run {run.name} is of candidate {named!r}, and {candidate!r} is to evolve; name that one, "
                "or another run"
            )
        weights = (origin.agent.arguments or {}).get("weights")
        own = folder_digest(base.path)
        if weights != own:
            raise ConfigError(
                f"in run {run.name} model {origin.agent.model!r} ({str(weights)[:12]}) talked, and the base "
                f"is {base.name!r} ({own[:12]}): what failed is not its failing; name that model's folder "
                "with --base"
            )


def origins_of(run: Path) -> list[Provenance]:
    """Where the files of a run come from.

    Raises:
        ResultsError: a file cannot be read.
    """
    return [provenance(read_results(path)) for path in expand([run])]


def refuse_partial(run: Path, project: Project, suites: Sequence[Suite]) -> None:
    """See that a run holds every task by which adapters are judged: the others' sessions are held against it.

    Raises:
        ConfigError: it lacks some.
        ResultsError: a file cannot be read.
    """
    files = [read_results(path) for path in expand([run])]
    for one in suites:
        held = {
            simulation.task_id
            for file in files
            if provenance(file).suite in (None, one.name)
            for simulation in file.simulations
        }
        splits = project.lock.suites[one.name].splits
        for split, _ in deciding(project, splits):
            # Guards too: without their tasks an adapter could be promoted that nobody held against them.
            if count := len(splits[split].keys() - held):
                raise ConfigError(
                    f"run {run.name} lacks {count} of {len(splits[split])} tasks of {one.name}::{split}, by "
                    "which its adapters would be judged; run the whole suite, without options that narrow it "
                    "and with budgets that suffice"
                )


def refuse_undecided(project: Project, suites: Sequence[Suite]) -> None:
    """See that some split of the suites can promote an adapter.

    Raises:
        ConfigError: none can.
        LockError: a locked split is none any more.
    """
    locked = {one.name: project.lock.suites[one.name].splits for one in suites}
    for name, splits in locked.items():
        if unknown := sorted(splits.keys() - project.splits.keys()):
            raise LockError(
                f"{project.suite_path(name)}: split {unknown[0]!r} is in {project.lock_path.name} and in no "
                f"registry; {RENEW}"
            )
    if not any(not guard for splits in locked.values() for _, guard in deciding(project, splits)):
        told = ", ".join(f"{name} ({', '.join(splits)})" for name, splits in locked.items())
        raise ConfigError(
            f"no split decides in the suites that would be run: {told or 'none is locked'}; name one that "
            "has a held-out or a development split"
        )


def simulations_in(run: Path) -> int:
    """The simulations of a run's folder, those that confirmed falls among them.

    Raises:
        ResultsError: a file cannot be read.
    """
    fresh = [path.parent for path in run.glob("**/fresh/*/results.json")]
    return sum(len(read_results(path).simulations) for path in (*expand([run]), *fresh))
