"""Which capabilities the failures of a run lack: what there is to train."""

from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.evolving import Missing
from pytest_trace2evolve.workflow.capabilities.gather import gather
from pytest_trace2evolve.workflow.capabilities.mine import by_rules, report
from pytest_trace2evolve.workflow.environments.registry import Environments
from pytest_trace2evolve.workflow.project import Project


@dataclass(frozen=True)
class Learnt:
    """What a run's failures say.

    Attributes:
        missing: The capabilities that were selected, by Δ.
        runs: Ids of the runs.
        splits: The splits that were read, as `suite::split`.
        failed, traces: How many traces failed, of how many.
        environments: Names of the environments that have the tools of the run's world.
    """

    missing: tuple[Missing, ...]
    runs: tuple[str, ...]
    splits: tuple[str, ...]
    failed: int
    traces: int
    environments: tuple[str, ...]

    @property
    def trainable(self) -> tuple[Missing, ...]:
        """The missing capabilities that have an environment with the tools of the run's world.

        Raises:
            ConfigError: none has.
        """
        found = tuple(one for one in self.missing if one.name in self.environments)
        if not found:
            lacking = ", ".join(one.name for one in self.missing)
            raise ConfigError(
                f"run {', '.join(self.runs)} lacks {lacking}, and no environment with the tools of its world "
                "trains that: write one with trace2evolve environment synthesize NAME"
            )
        return found


def missing_of(project: Project, run: str, here: Path, environments: Environments) -> Learnt:
    """What the failures of a run lack, by rules, on the tasks that may be learnt from.

    Raises:
        ConfigError: the run is unknown or empty, no environment has the tools of its world, nothing failed,
            or nothing that can be named is missing.
        ResultsError: a file cannot be read.
    """
    worlds = project.open_worlds()
    gathered = gather([run], worlds, project=project, here=here, check_world=environments.require_tools_of)
    found = report(gathered, by_rules(gathered))
    if not found.failed:
        raise ConfigError(
            f"run {run}: none of its {found.traces} traces that may be learnt from failed: there is nothing "
            "to learn"
        )
    selected = tuple(
        Missing(name=one.name, delta=one.delta, coverage=one.coverage)
        for one in found.capabilities
        if one.selected
    )
    if not selected:
        raise ConfigError(
            f"run {run}: {found.failed} of {found.traces} traces failed, and no capability is missing in "
            "them by contrast; see trace2evolve capabilities, or name one to train (trace2evolve train)"
        )
    runs = tuple(dict.fromkeys(one.run for one in gathered.conducts))
    read = {one.task.id for one in gathered.conducts}
    splits = {
        f"{suite}::{split}" for task, held in gathered.splits.items() if task in read for suite, split in held
    }
    known = environments.with_tools_of(gathered.ran_in)
    return Learnt(selected, runs, tuple(sorted(splits)), found.failed, found.traces, known)
