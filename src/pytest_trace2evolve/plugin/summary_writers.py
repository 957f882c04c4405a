"""Writers of a run's output outside the terminal: GitHub's job summary, summary files, JUnit properties."""

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.records.verdict import RunSummary
from pytest_trace2evolve.report.summary import (
    append_step_summary,
    reproducing,
    verdict_properties,
    write_summary,
)
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.sanitize import SanitizedStream, sanitize
from pytest_trace2evolve.utils.secrets import Secrets

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""The environment variable that holds the path of a GitHub job's summary file."""


def write_summaries(config: pytest.Config, plan: Plan, summary: RunSummary) -> list[str]:
    """Write summaries and JUnit properties, before pytest writes its own files.

    Returns:
        One line for each summary that could not be written. Such a failure changes neither the verdict nor
        the exit status.
    """
    _add_junit_properties(config, summary)
    summary = summary.model_copy(update={"command": _command(config, plan)})
    here = config.invocation_params.dir
    trouble = []
    for name in config.option.t2e_summary or ():
        try:
            write_summary(here / name, summary)
        except (OSError, ValueError) as error:
            trouble.append(_unwritten(f"the summary could not be written to {name}", error))
    step = os.environ.get(STEP_SUMMARY)
    gates = plan.policy is not None and any(one.baseline for one in plan.suites.values())
    if step and gates:
        try:
            append_step_summary(Path(step), summary)
        except (OSError, ValueError) as error:
            trouble.append(_unwritten(f"the job's summary ({STEP_SUMMARY}) could not be written", error))
    return trouble


def sanitize_terminal(config: pytest.Config) -> None:
    """Sanitise everything that pytest and its plugins print from now on.

    Wraps the terminal's stream, because hooks would not see the output of other plugins and of live logs.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        writer = reporter._tw
        terminal = writer.hasmarkup or reporter.isatty
        writer._file = SanitizedStream(writer._file, terminal=terminal)


def sanitize_junit(config: pytest.Config) -> None:
    """Sanitise the JUnit file that pytest has written, because pytest escapes only what XML forbids.

    The escapes that `sanitize` writes hold no special characters of XML, so it can process the file as text.
    """
    for plugin in config.pluginmanager.get_plugins():
        file = getattr(plugin, "logfile", None)
        if callable(getattr(plugin, "add_global_property", None)) and isinstance(file, str | os.PathLike):
            path = Path(file)
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                safe = sanitize(text.replace("&#13;", "\r"))
                if safe != text:
                    write_atomic(path, safe)


def _unwritten(what: str, error: OSError | ValueError) -> str:
    why = getattr(error, "strerror", None) or " ".join(str(error).split())
    return f"{what}: {why}; the verdict and the exit status stand as they are"


def _add_junit_properties(config: pytest.Config, summary: RunSummary) -> None:
    """Add the verdict to each plugin that accepts properties of a whole run, like pytest's JUnit writer."""
    for plugin in config.pluginmanager.get_plugins():
        add = getattr(plugin, "add_global_property", None)
        if callable(add):
            for name, value in verdict_properties(summary):
                add(name, value)


def _command(config: pytest.Config, plan: Plan) -> tuple[str, ...]:
    """The command that started the run, without the secrets that its options hold."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    command = reproducing(arguments, os.environ.get("PYTEST_ADDOPTS", ""))
    found = [_judge_secrets(config.option)]
    if plan.live is not None:
        found += [
            Secrets.of(model.endpoint(), os.environ.get(model.api_key_env), model.extra_body)
            for model in (plan.live.agent, plan.live.user)
        ]
    for secrets in found:
        command = tuple(secrets.out_of(part) for part in command)
    # Arguments may not be valid UTF-8, but a text file must be.
    return tuple(part.encode("utf-8", "backslashreplace").decode() for part in command)


def _judge_secrets(option: Any) -> Secrets:
    return Secrets.of(option.t2e_judge_base_url, os.environ.get("OPENAI_API_KEY"))
