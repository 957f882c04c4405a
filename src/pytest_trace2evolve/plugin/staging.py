"""A staged run: one pytest session a stage, in one process, until a stage decides.

Each session has a plan, workers and a run folder of its own. What an earlier stage made is taken from the
run's account and the finished simulations, so that each stage only adds trials; budgets hold for all stages
together, since they share the account.
"""

from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from pytest_trace2evolve.session.servers import LocalServers
from pytest_trace2evolve.utils.files import Scratch

PLUGIN_NAME = "trace2evolve-stages"


class StagedRun:
    """What the sessions of a staged run share; each has it registered as a plugin.

    Attributes:
        schedule: Trials a task and side, by stage.
        number: The stage of this session, from 1.
        goes_on: Whether this session ran whole and decided nothing, so that the next stage follows.
        servers: Of local models; they serve all stages.
        draw: The id of the draw that all stages make, if it is not that of the store.
    """

    __name__ = PLUGIN_NAME  # under which pytest registers it

    def __init__(self, schedule: Sequence[int]) -> None:
        self.schedule = tuple(schedule)
        self.number = 0
        self.goes_on = False
        self.servers = LocalServers()
        self.draw = uuid4().hex
        self._folder: Scratch | None = None

    @property
    def last(self) -> bool:
        """Whether no stage follows this one."""
        return self.number == len(self.schedule)

    def begin(self, number: int) -> None:
        """The next session is that of a stage."""
        self.number = number
        self.goes_on = False

    def account_folder(self) -> Path:
        """Where the account of all stages lies; made when it is first asked for.

        Raises:
            OSError: it cannot be made.
        """
        if self._folder is None:
            self._folder = Scratch()
        return self._folder.path

    def close(self) -> None:
        """Clear the account away, and end the servers."""
        self.servers.close()
        if self._folder is not None:
            self._folder.close()


def staged_run(config: pytest.Config) -> StagedRun | None:
    """The staged run that a session belongs to; None for a session that is a run by itself."""
    staged: StagedRun | None = config.pluginmanager.getplugin(PLUGIN_NAME)
    return staged


def run_stages(config: pytest.Config) -> int | pytest.ExitCode | None:
    """Run a session a stage; None inside such a session, which is to go its way.

    Returns:
        The exit status of the last session.
    """
    if staged_run(config) is not None:
        return None
    given = config.invocation_params
    staged = StagedRun(config.option.t2e_stages)
    status: int | pytest.ExitCode = pytest.ExitCode.OK
    try:
        for number in range(1, len(staged.schedule) + 1):
            staged.begin(number)
            status = pytest.main(list(given.args), plugins=[*(given.plugins or ()), staged])
            if not staged.goes_on:
                break
    finally:
        staged.close()
    return status
