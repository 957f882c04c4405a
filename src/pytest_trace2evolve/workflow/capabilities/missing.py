"""Which capabilities the failures of a run lack: what there is to train."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.evolving import Missing
from pytest_trace2evolve.workflow.capabilities.gather import gather
from pytest_trace2evolve.workflow.capabilities.mine import by_rules, report
from pytest_trace2evolve.workflow.project import Project


@dataclass(frozen=True)
class Learnt:
    """What a run's failures say.

    Attributes:
        missing: The capabilities that were selected, by Δ.
        runs: Ids of the runs.
        splits: The splits that were read, as `suite::split`.
        failed, traces: How many traces failed, of how many.
    """

    missing: tuple[Missing, ...]
    runs: tuple[str, ...]
    splits: tuple[str, ...]
    failed: int
    traces: int

    def trainable(self, known: Sequence[str]) -> tuple[Missing, ...]:
        """What is missing and has an environment.

        Args:
            known: The capabilities that have one.

        Raises:
            ConfigError: none has.
        """
        found = tuple(one for one in self.missing if one.name in known)
        if not found:
            lacking = ", ".join(one.name for one in self.missing)
            raise ConfigError(
                f"run {', '.join(self.runs)} lacks {lacking}, and no environment trains that: have one "
                "written by trace2evolve environment synthesize NAME"
            )
        return found


def missing_of(project: Project, run: str, here: Path) -> Learnt:
    """What the failures of a run lack, by rules, on the tasks that may be learnt from.

    Raises:
        ConfigError: the run is unknown or empty, nothing failed, or nothing that can be named is missing.
        ResultsError: a file cannot be read.
    """
    gathered = gather([run], project.open_worlds(), project=project, here=here)
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
    return Learnt(selected, runs, tuple(sorted(splits)), found.failed, found.traces)
