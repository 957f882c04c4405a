"""Write a run's results to GitHub's job summary, to summary files and to JUnit properties."""

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.records.verdict import RunSummary
from pytest_trace2evolve.report.summary import (
    append_step_summary,
    reproduction_command,
    verdict_properties,
    write_summary,
)
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.sanitize import SanitizedStream, sanitize_file
from pytest_trace2evolve.utils.secrets import Secrets

STEP_SUMMARY_VAR = "GITHUB_STEP_SUMMARY"
"""The environment variable that holds the path of a GitHub job's summary file."""


def write_summaries(config: pytest.Config, plan: Plan, summary: RunSummary) -> list[str]:
    """Write summaries and add JUnit properties, before pytest writes its own files.

    Returns:
        One line for each summary that could not be written. Such a failure does not change the verdict or
        the exit status.
    """
    _add_junit_properties(config, summary)
    summary = summary.model_copy(update={"command": _reproduction_command(config, plan)})
    folder = config.invocation_params.dir
    error_lines = []
    for name in config.option.t2e_summary or ():
        try:
            write_summary(folder / name, summary)
        except (OSError, ValueError) as error:
            error_lines.append(_write_error_text(f"the summary could not be written to {name}", error))
    step_summary_path = os.environ.get(STEP_SUMMARY_VAR)
    has_gate = plan.policy is not None and any(
        planned_suite.baseline for planned_suite in plan.suites.values()
    )
    if step_summary_path and has_gate:
        try:
            append_step_summary(Path(step_summary_path), summary)
        except (OSError, ValueError) as error:
            error_lines.append(
                _write_error_text(f"the job's summary ({STEP_SUMMARY_VAR}) could not be written", error)
            )
    return error_lines


def sanitize_terminal(config: pytest.Config) -> None:
    """Sanitize everything that pytest and its plugins print to the terminal from now on.

    Wraps the terminal's stream, because hooks would not see the output of other plugins and of live logs.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        writer = reporter._tw
        terminal = writer.hasmarkup or reporter.isatty
        writer._file = SanitizedStream(writer._file, is_terminal=terminal)


def sanitize_junit(config: pytest.Config) -> None:
    """Sanitize the JUnit file of pytest, because pytest escapes only characters that XML forbids.

    The escapes contain no special characters of XML, so the file can be processed as text.
    """
    for plugin in config.pluginmanager.get_plugins():
        file = getattr(plugin, "logfile", None)
        if callable(getattr(plugin, "add_global_property", None)) and isinstance(file, str | os.PathLike):
            path = Path(file)
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                sanitized = sanitize_file(text.replace("&#13;", "\r"))
                if sanitized != text:
                    write_atomic(path, sanitized)


def _write_error_text(message: str, error: OSError | ValueError) -> str:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return f"{message}: {reason}; the verdict and the exit status are unchanged"


def _add_junit_properties(config: pytest.Config, summary: RunSummary) -> None:
    """Pass the verdict to each plugin that accepts properties of a run, such as pytest's JUnit writer."""
    for plugin in config.pluginmanager.get_plugins():
        add_property = getattr(plugin, "add_global_property", None)
        if callable(add_property):
            for name, value in verdict_properties(summary):
                add_property(name, value)


def _reproduction_command(config: pytest.Config, plan: Plan) -> tuple[str, ...]:
    """Return the command that started the run, without the secrets in its options."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    command = reproduction_command(arguments, os.environ.get("PYTEST_ADDOPTS", ""))
    all_secrets = [_judge_secrets(config.option)]
    if plan.live is not None:
        all_secrets += [
            Secrets.of_endpoint(model.endpoint(), os.environ.get(model.api_key_env), model.extra_body)
            for model in (plan.live.agent, plan.live.user)
        ]
    for secrets in all_secrets:
        command = tuple(secrets.remove_from(part) for part in command)
    # Arguments may contain invalid UTF-8, but a text file must not.
    return tuple(part.encode("utf-8", "backslashreplace").decode() for part in command)


def _judge_secrets(option: Any) -> Secrets:
    return Secrets.of_endpoint(option.t2e_judge_base_url, os.environ.get("OPENAI_API_KEY"))
