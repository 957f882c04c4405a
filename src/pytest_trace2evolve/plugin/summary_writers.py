"""What a run writes besides the terminal: GitHub's job summary, summary files and JUnit properties."""

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
"""The variable by which a job on GitHub names the file that is shown below it."""


def write_summaries(config: pytest.Config, plan: Plan, summary: RunSummary) -> list[str]:
    """Write summaries and JUnit properties, before pytest writes its own files.

    Returns:
        What could not be written, a line each: it changes neither the verdict nor the exit status.
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
    """Sanitise what pytest and all its plugins print from now on.

    Hooks would see reports and warnings, but not what other plugins and live logs print: hence the stream.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        writer = reporter._tw
        terminal = writer.hasmarkup or reporter.isatty
        writer._file = SanitizedStream(writer._file, terminal=terminal)


def sanitize_junit(config: pytest.Config) -> None:
    """Sanitise the JUnit file that was written: pytest escapes what XML forbids, and nothing else.

    No escape of ours holds a character that XML reads, so the text of the file is sanitised as it is.
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
    """Add the verdict to each plugin that takes properties of a whole run: pytest's JUnit writer does."""
    for plugin in config.pluginmanager.get_plugins():
        add = getattr(plugin, "add_global_property", None)
        if callable(add):
            for name, value in verdict_properties(summary):
                add(name, value)


def _command(config: pytest.Config, plan: Plan) -> tuple[str, ...]:
    """How the run was started, without a secret that an option holds."""
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
    # An argument need not be UTF-8, and a file of text must be.
    return tuple(part.encode("utf-8", "backslashreplace").decode() for part in command)


def _judge_secrets(option: Any) -> Secrets:
    return Secrets.of(option.t2e_judge_base_url, os.environ.get("OPENAI_API_KEY"))
