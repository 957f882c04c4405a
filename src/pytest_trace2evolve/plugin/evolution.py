"""`--t2e-evolve`: a session as it would be without, and then an evolution that learns from its failures."""

import argparse
import shlex
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.errors import ModelFolderError
from pytest_trace2evolve.improve.options import DECIDING, OFF, PACING, SUITE, parted
from pytest_trace2evolve.plugin.items import PLUGIN_NAME as RUN_NAME
from pytest_trace2evolve.plugin.options import OPTIONS
from pytest_trace2evolve.plugin.participant import project_of, suites_under
from pytest_trace2evolve.plugin.usage import usage_error
from pytest_trace2evolve.serving.folder import expanded
from pytest_trace2evolve.session.live import names_folder

PLUGIN_NAME = "trace2evolve-evolution"

_PASSED = frozenset(one.removeprefix("--").replace("-", "_") for one in (*DECIDING, *PACING))
"""Options of the session that those of its adapters get too: about what, who talks and how, who decides, and
what each of them may take."""

_NO_BASE = ("t2e_replay", "t2e_playback", "t2e_agent", "t2e_base_url", "t2e_adapter")
"""Options beside which no model of a folder talks for itself."""

_OF_THE_SESSION = frozenset(
    {
        *_NO_BASE,  # refused
        "t2e_stages",  # refused
        "t2e_candidate",  # each session has its own
        "t2e_model",  # given as the base
        "t2e_run_folder",
        "t2e_baseline",  # of the others it is the session's run
        "t2e_save_baseline",
        "t2e_baseline_mode",
        "t2e_baseline_base_url",  # the others' baseline is asked where they ask
        "t2e_baseline_key_var",
        "t2e_inconclusive",
        "t2e_summary",
        "t2e_case_budget",
        "t2e_freeze",
        "t2e_evolve",
        "t2e_evolve_options",
        "t2e_route",  # refused where nothing is routed
        "t2e_fresh",
        "t2e_cache",
        "t2e_record",
    }
)
"""Options of the session alone."""


_STEPWISE = ("stepwise", "stepwise_skip", "stepwise_reset")

_TYPED = ("-m", "--deselect", "--ignore", "--ignore-glob")
"""Options that leave tests out and may stand in `addopts` for other tests: they are refused where they are
typed."""


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
            raise usage_error(
                f"--{name.replace('_', '-')} does not go with --t2e-evolve, which trains adapters of the "
                "embedded model, or of one in a folder: --t2e-model ./FOLDER"
            )
    _refuse_without_verdict(config)
    _refuse_a_part(config)
    given = config.invocation_params
    if option.t2e_model is not None and not names_folder(option.t2e_model, given.dir):
        raise usage_error(
            f"--t2e-model {option.t2e_model}: --t2e-evolve trains adapters, and needs a model that lies in a "
            "folder: --t2e-model ./FOLDER"
        )
    asked = _evolve(config)
    try:
        status = main([*asked, "--dry-run", "--", *_session(config)])
    except SystemExit:  # of argparse, which has told what is wrong with --t2e-evolve-options
        status = pytest.ExitCode.USAGE_ERROR
    if status != 0:
        return pytest.ExitCode.USAGE_ERROR
    watched = Watched()
    status = pytest.main(list(given.args), plugins=[*(given.plugins or ()), watched])
    if watched.folder is not None and status not in (
        pytest.ExitCode.INTERRUPTED,
        pytest.ExitCode.INTERNAL_ERROR,
        pytest.ExitCode.USAGE_ERROR,
    ):
        command = [*asked, "--from-run", str(watched.folder), "--", *_session(config)]
        if main(command) != 0:
            told = "trace2evolve: of this run, without another session, that is:"
            print(f"{told} trace2evolve {shlex.join(command)}", file=sys.stderr)
    return status


def _refuse_without_verdict(config: pytest.Config) -> None:
    """Refuse a session whose run could be nobody's baseline, or whose options leave no verdict."""
    if config.option.t2e_stages is not None:
        raise usage_error(
            "--t2e-stages does not go with --t2e-evolve: a run that may stop early is no baseline of the "
            "adapters' sessions; leave it out"
        )
    if (config.option.t2e_gate or config.getini("t2e_gate")) == OFF:
        raise usage_error(
            f"--t2e-evolve promotes adapters by the gate's verdict, and the gate is {OFF}: leave --t2e-gate "
            f"out, or name a policy where the ini key t2e_gate is {OFF}"
        )


def _refuse_a_part(config: pytest.Config) -> None:
    """Refuse options by which the session would leave tests out: its run could be nobody's baseline."""
    option = config.option
    given = {
        "-k": option.keyword,
        "-x (or --maxfail)": option.maxfail,
        "--lf": getattr(option, "lf", False),
        **{f"--{name.replace('_', '-')}": getattr(option, name, False) for name in _STEPWISE},
        **{word: True for word in map(str, config.invocation_params.args) if _leaves_out(word, option)},
        **{str(one): True for one in config.args if "::" in str(one)},
    }
    for name, value in given.items():
        if value:
            raise usage_error(
                f"{name} does not go with --t2e-evolve: adapters are judged against the session's run, which "
                "must be whole; leave it out"
            )


def _leaves_out(word: str, option: argparse.Namespace) -> bool:
    """Whether a word that was typed leaves tests out; an empty `-m` undoes that of `addopts`."""
    name, _ = parted(word)
    return name in _TYPED and (name != "-m" or bool(option.markexpr))


def _evolve(config: pytest.Config) -> list[str]:
    """The command that evolves, without what the session says."""
    option = config.option
    asked = ["--root", str(config.rootpath), "evolve"]
    if option.t2e_candidate is not None:
        asked += ["--candidate", option.t2e_candidate]
    if option.t2e_model is not None:
        asked += ["--base", str(_place(option.t2e_model, config))]
    try:
        return asked + shlex.split(option.t2e_evolve_options or "")
    except ValueError as error:
        raise usage_error(f"--t2e-evolve-options: {error}") from None


def _session(config: pytest.Config) -> list[str]:
    """Options of the sessions of adapters."""
    found = []
    for names, settings in OPTIONS:
        value = getattr(config.option, settings["dest"], None)
        if settings["dest"] not in _PASSED or value is None:
            continue
        for one in value if settings.get("action") == "append" else [value]:
            if settings["dest"] == "t2e_user_model" and names_folder(one, config.invocation_params.dir):
                one = str(_place(one, config))  # those sessions stand in the project's own folder
            text = ",".join(map(str, one)) if isinstance(one, tuple | list) else str(one)
            found.append(f"{names[0]}={text}")
    if config.option.t2e_suite is None:
        found += [f"{SUITE}={name}" for name in _by_path(config)]
    found += [f"-p{name}" for name in config.option.plugins]
    workers = getattr(config.option, "numprocesses", None)
    return [*found, f"-n{workers}"] if workers else found


def _by_path(config: pytest.Config) -> list[str]:
    """The suites that the session runs because their files are named; none where that is all of them."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return []
    project = project_of(config)
    found = suites_under(config, project)
    return found if found != list(project.suite_names) else []


def _place(model: str, config: pytest.Config) -> Path:
    """The folder of a model.

    Raises:
        pytest.UsageError: it lies in a home folder that nobody here has.
    """
    try:
        return config.invocation_params.dir / expanded(Path(model))
    except ModelFolderError as error:
        raise usage_error(str(error)) from None
