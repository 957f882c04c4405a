"""Gives each run a folder of its own: an unused one, which no other run can use at the same time."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.evidence.results import SIMULATIONS_KEY
from pytest_trace2evolve.session.cassettes import check_recordable, recording_path
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.utils.files import folder_lock


def check_folders_unused(live: LiveSettings | None, suites: Iterable[str], folders: Sequence[Path]) -> None:
    """Check that no folder of a run holds a run or a recording. The first folder is the run's own.

    Raises:
        ConfigError: a folder is used.
    """
    run_folder, names = folders[0], list(suites)
    for folder in folders:
        for path in (folder, *(folder / suite for suite in names)):
            if (path / SIMULATIONS_KEY).exists():
                raise ConfigError(f"{path} already holds a run; choose a different --t2e-run-folder")
    if live is not None and live.record is not None:
        check_recordable(live.record)
        if recording_path(run_folder).exists():
            raise ConfigError(f"{run_folder} already holds a recording; choose a different --t2e-run-folder")


@contextlib.contextmanager
def use_run_folder(plan: Plan) -> Iterator[None]:
    """Make the run's folder and hold its lock; a new folder that stays empty is removed at the end.

    Raises:
        ConfigError: another run uses the folder, or has used it since the plan was made, or it is not
            writable.
    """
    is_new = not plan.run_folder.exists()
    with contextlib.ExitStack() as stack:
        try:
            plan.run_folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder_lock(plan.run_folder, wait=False, ignore_unsupported=True))
        except BlockingIOError:
            raise ConfigError(
                f"{plan.run_folder}: another run uses this folder; choose a different --t2e-run-folder"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"cannot write to {plan.run_folder}: {error.strerror}; choose a different folder with "
                "--t2e-run-folder"
            ) from None
        check_folders_unused(plan.live, plan.suites, [plan.run_folder, *plan.stage_folders])
        try:
            yield
        finally:
            if is_new:
                with contextlib.suppress(OSError):
                    plan.run_folder.rmdir()
