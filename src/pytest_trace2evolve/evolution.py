"""`--t2e-evolve`: a session as it would be without, and then an evolution that learns from its failures."""

import shlex
from pathlib import Path

import pytest

from pytest_trace2evolve.cli import main
from pytest_trace2evolve.collect import PLUGIN_NAME as RUN_NAME
from pytest_trace2evolve.options import OPTIONS
from pytest_trace2evolve.workflow.planning.local import names_folder

PLUGIN_NAME = "trace2evolve-evolution"

_PASSED = frozenset(
    {
        "t2e_suite",
        "t2e_trials",
        "t2e_gate",
        "t2e_goal",
        "t2e_model",
        "t2e_user_model",
        "t2e_user_base_url",
        "t2e_user_key_var",
        "t2e_temperature",
        "t2e_seed",
        "t2e_concurrency",
        "t2e_call_timeout",
        "t2e_confirm",
        "t2e_stages",
    }
)
"""Options of the session that those of its adapters get too: who talks, about what, and who decides."""

_MODELS = ("t2e_model", "t2e_user_model")

_NO_BASE = ("t2e_replay", "t2e_playback", "t2e_agent", "t2e_base_url", "t2e_adapter")
"""Options beside which no model of a folder talks for itself."""


class Watched:
    """Sees where a session kept its run; the session has it registered as a plugin."""

    __name__ = PLUGIN_NAME  # under which pytest registers it

    def __init__(self) -> None:
        self.folder: Path | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Note the run's folder, if anything of it was kept."""
        run = session.config.pluginmanager.getplugin(RUN_NAME)
        plan = getattr(run, "plan", None)
        if plan is not None and plan.run_folder.exists() and not hasattr(session.config, "workerinput"):
            self.folder = plan.run_folder


def run_and_evolve(config: pytest.Config) -> int | pytest.ExitCode | None:
    """Run the session, then evolve; None inside that session, and where nothing is run.

    The evolution's budget is told before the session, and refused where it is impossible.

    Returns:
        The exit status of the session: what it said of the candidate stands, whatever is learnt from it.

    Raises:
        pytest.UsageError: an option leaves nothing to evolve, or the evolution cannot be as asked for.
    """
    option = config.option
    if config.pluginmanager.getplugin(PLUGIN_NAME) is not None or option.collectonly or option.help:
        return None
    for name in _NO_BASE:
        if getattr(option, name, None) is not None:
            raise pytest.UsageError(
                f"--{name.replace('_', '-')} does not go with --t2e-evolve, which trains adapters of the "
                "embedded model, or of one in a folder: --t2e-model ./FOLDER"
            )
    given = config.invocation_params
    if option.t2e_model is not None and not names_folder(option.t2e_model, given.dir):
        raise pytest.UsageError(
            f"--t2e-model {option.t2e_model}: --t2e-evolve trains adapters, and needs a model that lies in a "
            "folder: --t2e-model ./FOLDER"
        )
    asked = _evolve(config)
    if main([*asked, "--dry-run", "--", *_session(config)]) != 0:
        return pytest.ExitCode.USAGE_ERROR
    watched = Watched()
    status = pytest.main(list(given.args), plugins=[*(given.plugins or ()), watched])
    if watched.folder is not None and status not in (
        pytest.ExitCode.INTERRUPTED,
        pytest.ExitCode.INTERNAL_ERROR,
        pytest.ExitCode.USAGE_ERROR,
    ):
        main([*asked, "--from-run", str(watched.folder), "--", *_session(config)])
    return status


def _evolve(config: pytest.Config) -> list[str]:
    """The command that evolves, without what the session says."""
    option = config.option
    asked = ["--root", str(config.rootpath), "evolve"]
    if option.t2e_candidate is not None:
        asked += ["--candidate", option.t2e_candidate]
    if option.t2e_model is not None:
        asked += ["--base", str(config.invocation_params.dir / option.t2e_model)]
    try:
        return asked + shlex.split(option.t2e_evolve_options or "")
    except ValueError as error:
        raise pytest.UsageError(f"--t2e-evolve-options: {error}") from None


def _session(config: pytest.Config) -> list[str]:
    """Options of the sessions of adapters."""
    found, here = [], config.invocation_params.dir
    for names, settings in OPTIONS:
        value = getattr(config.option, settings["dest"], None)
        if settings["dest"] not in _PASSED or value is None:
            continue
        for one in value if settings.get("action") == "append" else [value]:
            if settings["dest"] in _MODELS and names_folder(one, here):
                one = str(here / one)  # those sessions stand in the project's own folder
            text = ",".join(map(str, one)) if isinstance(one, tuple | list) else str(one)
            found.append(f"{names[0]}={text}")
    workers = getattr(config.option, "numprocesses", None)
    return [*found, f"-n{workers}"] if workers else found
