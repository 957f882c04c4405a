"""Write a run's results to GitHub's job summary, to summary files and to JUnit properties."""

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.plugin.items import SUSPECTED, ItemResult
from pytest_trace2evolve.records.failure import Failure
from pytest_trace2evolve.records.verdict import Decision, RunSummary
from pytest_trace2evolve.report.summary import (
    SUMMARY_NAME,
    append_step_summary,
    reproduction_command,
    verdict_properties,
    write_summary,
)
from pytest_trace2evolve.report.trace import broken_task_lines
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.planner import Resources
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.memory import pause_garbage_collection
from pytest_trace2evolve.utils.sanitize import SanitizedStream, sanitize_file
from pytest_trace2evolve.utils.secrets import Secrets

STEP_SUMMARY_VAR = "GITHUB_STEP_SUMMARY"
"""The environment variable that holds the path of a GitHub job's summary file."""


MAX_EXPLAINED_TASKS = 3
"""Maximum number of broken tasks that the terminal explains without -v."""

FAILURES_NAME = "what-broke.txt"
"""The file of a run's folder that explains the tasks that regressed or fail newly."""


def write_summaries(config: pytest.Config, plan: Plan, summary: RunSummary) -> list[str]:
    """Write summaries and add JUnit properties, before pytest writes its own files.

    Returns:
        One line for each summary that could not be written. Such a failure does not change the verdict or
        the exit status.
    """
    _add_junit_properties(config, summary)
    folder = config.invocation_params.dir
    error_lines = []
    for name in config.option.t2e_summary or ():
        try:
            write_summary(folder / name, summary)
        except (OSError, ValueError) as error:
            error_lines.append(_write_error_text(f"the summary could not be written to {name}", error))
    step_summary_path = os.environ.get(STEP_SUMMARY_VAR)
    has_gate = plan.policy is not None and any(planned.baseline for planned in plan.suites.values())
    if step_summary_path and has_gate:
        try:
            append_step_summary(Path(step_summary_path), summary)
        except (OSError, ValueError) as error:
            error_lines.append(
                _write_error_text(f"the job's summary ({STEP_SUMMARY_VAR}) could not be written", error)
            )
    return error_lines


def write_page(
    config: pytest.Config,
    resources: Resources,
    folder: Path,
    summary: RunSummary,
    failures: Mapping[tuple[str, str], Failure],
) -> tuple[str, list[str]]:
    """Write the report page of a gated run, and the summary from which it can be rendered again.

    Returns:
        The page's path as the report shows it, empty if there is none; and a line if it could not be written.
    """
    option = config.option.t2e_report
    if not any(suite.verdicts for suite in summary.suites):
        return "", []
    try:
        write_summary(folder / SUMMARY_NAME, summary)
        if option == "none":
            return "", []
        from pytest_trace2evolve.report.page import PAGE_NAME, write_page
        from pytest_trace2evolve.session.page_data import run_facts

        path = config.invocation_params.dir / option if option else folder / PAGE_NAME
        with pause_garbage_collection():  # it would take a third of the page's time, and find nothing
            facts = run_facts(folder, summary, resources.project, resources.worlds, failures)
            write_page(path, summary, facts)
    except (OSError, ValueError, Trace2EvolveError) as error:
        return "", [_write_error_text("the report page could not be written", error)]
    return option or str(Path(summary.evidence) / PAGE_NAME), []


def write_failures(
    folder: Path, summary: RunSummary, failures: Mapping[tuple[str, str], ItemResult]
) -> list[str]:
    """Write the explanations of broken tasks to the run's folder; return a line if that fails."""
    texts = {name: failure.explanation for name, failure in failures.items()}
    if not (lines := broken_task_lines(summary, texts)):
        return []
    try:
        write_atomic(folder / FAILURES_NAME, sanitize_file("\n".join(lines) + "\n"))
    except OSError as error:
        return [_write_error_text(f"{FAILURES_NAME} could not be written", error)]
    return []


def print_failures(
    terminal: pytest.TerminalReporter, summary: RunSummary, failures: Mapping[tuple[str, str], ItemResult]
) -> None:
    """Explain three broken tasks, or all with -v, except those that pytest has explained as failures."""
    has_tracebacks = terminal.config.option.tbstyle not in ("no", "line")
    texts = {
        name: failure.explanation
        for name, failure in failures.items()
        if failure.is_suspected or not has_tracebacks
    }
    max_tasks = None if terminal.config.get_verbosity() > 0 else MAX_EXPLAINED_TASKS
    if lines := broken_task_lines(summary, texts, max_tasks):
        terminal.section("what broke")
        terminal.write("\n".join(lines) + "\n")


def sanitize_terminal(config: pytest.Config) -> None:
    """Sanitize everything that pytest and its plugins print to the terminal from now on.

    Wraps the terminal's stream, because hooks would not see the output of other plugins and of live logs.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        writer = reporter._tw
        terminal = writer.hasmarkup or reporter.isatty
        writer._file = SanitizedStream(writer._file, is_terminal=terminal)


def finish_junit(config: pytest.Config, decision: Decision | None) -> None:
    """Report suspected tasks in the JUnit file of pytest, and sanitize it.

    Pytest escapes only characters that XML forbids. The escapes contain no special characters of XML, so the
    file can be processed as text.
    """
    for plugin in config.pluginmanager.get_plugins():
        file = getattr(plugin, "logfile", None)
        if callable(getattr(plugin, "add_global_property", None)) and isinstance(file, str | os.PathLike):
            path = Path(file)
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                finished = _report_suspected(text, is_promoted=decision is Decision.PROMOTE)
                sanitized = sanitize_file(finished.replace("&#13;", "\r"))
                if sanitized != text:
                    write_atomic(path, sanitized)


def _report_suspected(text: str, *, is_promoted: bool) -> str:
    """Turn the skipped entries of suspected tasks into failures, or into output if the run promotes."""
    if f'message="{SUSPECTED}' not in text:
        return text
    root = ElementTree.fromstring(text)
    for suite in root.iter("testsuite"):
        for case in suite.iter("testcase"):
            entry = case.find("skipped")
            if entry is None or not (explanation := entry.get("message", "")).startswith(SUSPECTED):
                continue
            case.remove(entry)
            new_entry = ElementTree.SubElement(case, "system-out" if is_promoted else "failure")
            new_entry.text = explanation
            if not is_promoted:
                new_entry.set("message", explanation.partition("\n")[0])
            for name, change in (("skipped", -1), ("failures", 0 if is_promoted else 1)):
                suite.set(name, str(int(suite.get(name, "0")) + change))
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _write_error_text(message: str, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return f"{message}: {reason}; the verdict and the exit status are unchanged"


def _add_junit_properties(config: pytest.Config, summary: RunSummary) -> None:
    """Pass the verdict to each plugin that accepts properties of a run, such as pytest's JUnit writer."""
    for plugin in config.pluginmanager.get_plugins():
        add_property = getattr(plugin, "add_global_property", None)
        if callable(add_property):
            for name, value in verdict_properties(summary):
                add_property(name, value)


def command_of(config: pytest.Config, plan: Plan) -> tuple[str, ...]:
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
