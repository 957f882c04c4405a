"""Commands for saved evidence: runs, traces, baselines, the lock, checks and the ledger."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.cli.common import project_of
from pytest_trace2evolve.errors import CaseError, ConfigError, ResultsError
from pytest_trace2evolve.records.task_revision import revision_name
from pytest_trace2evolve.utils.files import find_root
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.project.project import Project
    from pytest_trace2evolve.session.ledger import ProjectLedger


def lock(options: argparse.Namespace) -> int:
    """Write `suites.lock`, unless a written task names a tool or an argument that does not exist."""
    from pytest_trace2evolve.session.admission import find_call_problems

    project = project_of(options)
    worlds = project.open_worlds()
    for name in options.suites or project.suite_names:
        for path, problem in find_call_problems(project, project.suite(name), worlds):
            raise CaseError(f"{path}: {problem}")
    new_lock = project.renew_lock(worlds, options.suites)
    for name, locked_suite in new_lock.suites.items():
        splits = ", ".join(f"{split} {len(tasks)}" for split, tasks in locked_suite.splits.items())
        version = f" {locked_suite.provider_version}" if locked_suite.provider_version else ""
        revision = locked_suite.task_revision
        tasks_text = f"; tasks of {revision_name(revision)}" if revision else ""
        print(f"{name}: {splits}; {locked_suite.provider}{version}{tasks_text}; lock {locked_suite.digest}")
    print(f"written: {project.lock_path}")
    return 0


def check(options: argparse.Namespace) -> int:
    """Check the project's files and worlds, or an endpoint; warnings do not change the exit status."""
    if options.model is not None:
        from pytest_trace2evolve.cli.endpoint import check_endpoint

        return check_endpoint(options)
    from pytest_trace2evolve.session.check import check_project

    project = project_of(options)
    findings = check_project(project, project.open_worlds(), options.against)
    for finding in findings:
        path = finding.path
        shown_path = path.relative_to(project.root) if path.is_relative_to(project.root) else path
        print(f"{shown_path}: {'warning: ' if finding.is_warning else ''}{finding.text}")
    return 1 if any(not finding.is_warning for finding in findings) else 0


def _list_runs(options: argparse.Namespace) -> int:
    """List the project's runs."""
    from pytest_trace2evolve.report.evidence import runs_table
    from pytest_trace2evolve.session.runs import list_runs

    project = project_of(options)
    facts = list_runs(project)
    empty_text = f"no runs in {project.runs_folder}; start one with pytest --candidate ID"
    return _print_records("runs", facts, runs_table, empty_text, as_json=options.json)


def list_baselines(options: argparse.Namespace) -> int:
    """List the saved baselines."""
    from datetime import UTC, datetime

    from pytest_trace2evolve.report.evidence import baselines_table
    from pytest_trace2evolve.session.baselines import saved_baselines

    project = project_of(options)
    baselines = saved_baselines(project, datetime.now(UTC))
    empty_text = f"no baselines in {project.baselines_folder}; save one with pytest --t2e-save-baseline NAME"
    return _print_records("baselines", baselines, baselines_table, empty_text, as_json=options.json)


def _print_records(
    key: str, records: Sequence[Any], render_table: Callable[[Any], str], empty_text: str, *, as_json: bool
) -> int:
    """Print records as a table or JSON, and report damaged records on standard error."""
    if as_json:
        print(json.dumps({key: [asdict(record) for record in records]}, indent=2))
    else:
        print(render_table(records) if records else empty_text)
    errors = [record.error for record in records if record.error]
    for error in errors:
        print(f"trace2evolve: {error}", file=sys.stderr)
    return 1 if errors else 0


def extend(options: argparse.Namespace) -> int:
    """Add trials to a saved baseline, in a session with its own candidate that decides nothing.

    Returns:
        0 if the baseline then has the trials; otherwise the session's exit status, or 1.

    Raises:
        ConfigError: there is no such baseline, or it does not record one candidate.
        ResultsError: the baseline is damaged.
    """
    from datetime import UTC, datetime

    from pytest_trace2evolve.cli.gate import run_session
    from pytest_trace2evolve.session.baselines import saved_baselines

    project, name = project_of(options), options.name
    saved = saved_baselines(project, datetime.now(UTC))
    found = [facts for facts in saved if facts.name == name]
    if not found:
        names = ", ".join(sorted({facts.name for facts in saved})) or "none"
        raise ConfigError(f"no saved baseline has the name {name!r}; saved are {names}")
    if errors := [facts.error for facts in found if facts.error]:
        raise ResultsError(errors[0])
    candidates = {facts.candidate for facts in found}
    if len(candidates) > 1 or None in candidates:
        raise ConfigError(
            f"baseline {name!r} does not record one candidate for all of its suites; name one: pytest "
            f"--candidate ID --t2e-suite SUITE --t2e-save-baseline {name} --t2e-baseline-mode more-trials"
        )
    suites = [facts.suite for facts in found if facts.trials[0] < options.trials]
    if not suites:
        print(f"baseline {name} has {found[0].trials[0]} trials of each task already")
        return 0
    command = ["pytest", "--candidate", str(found[0].candidate), f"--t2e-trials={options.trials}"]
    command += [f"--t2e-save-baseline={name}", "--t2e-baseline-mode=more-trials"]
    command += [f"--t2e-suite={suite}" for suite in suites] + options.arguments
    command += [project.suite_path(suite).relative_to(project.root).as_posix() for suite in suites]
    print(shlex.join(command), flush=True)
    status = run_session(command, project.root)
    extended = [facts for facts in saved_baselines(project, datetime.now(UTC)) if facts.name == name]
    return 0 if all(facts.trials[0] >= options.trials for facts in extended) else status or 1


def promote(options: argparse.Namespace) -> int:
    """Make the candidate of a promoted run the baseline, as a single change to commit."""
    from pytest_trace2evolve.report.evidence import promotion_text
    from pytest_trace2evolve.session.promote import promote

    project, current_folder = project_of(options), Path.cwd()
    promotion = promote(
        project,
        options.run,
        name=options.name,
        suites=options.suite or (),
        base_folder=current_folder,
        dry_run=options.dry_run,
    )
    print(promotion_text(promotion, current_folder, dry_run=options.dry_run))
    return 0


def show(options: argparse.Namespace) -> int:
    """List the project's runs or a run's failed tasks, write its page, or open a trace and record that."""
    if options.serve is not None:
        from pytest_trace2evolve.cli.view import serve

        if options.run is not None:
            raise ConfigError("--serve shows all runs; leave out RUN")
        return serve(options)
    if options.run is None:
        return _list_runs(options)
    from pytest_trace2evolve.report.trace import failed_text, trace_text
    from pytest_trace2evolve.session.evidence_sources import path_exists
    from pytest_trace2evolve.session.traces import failed_tasks, open_trace

    if options.json:
        raise ConfigError("--json lists the runs; leave out RUN")
    if options.task is None and (options.trial is not None or options.full):
        raise ConfigError("--trial and --full show a trace; name its task after the run")
    if options.report is not None and options.task is not None:
        raise ConfigError("--report cannot be combined with TASK; leave it out")
    current_folder = Path.cwd()
    if options.root is None:
        # A run belongs to the project that contains the run's folder, whatever the current folder is.
        path = current_folder / options.run
        options.root = (find_root(path.resolve()) if path_exists(path) else None) or find_root(current_folder)
    project = project_of(options) if options.root is not None else None
    suite = options.suite or ""
    if options.report is not None:
        return _write_page(options, project or project_of(options))
    if options.task is None:
        text = failed_text(
            failed_tasks(options.run, project=project, base_folder=current_folder, suite=suite)
        )
    else:
        trace = open_trace(
            options.run,
            options.task,
            project=project,
            base_folder=current_folder,
            trial=options.trial,
            suite=suite,
        )
        text = trace_text(trace, is_full=options.full)
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
    return 0


def _write_page(options: argparse.Namespace, project: "Project") -> int:
    """Write the report page of a stored run."""
    from pytest_trace2evolve.report.page import write_page
    from pytest_trace2evolve.report.summary import SUMMARY_NAME, read_summary
    from pytest_trace2evolve.session.evidence_sources import find_run
    from pytest_trace2evolve.session.page_data import run_facts

    folder = find_run(options.run, project, Path.cwd())
    if not (folder / SUMMARY_NAME).exists():
        raise ConfigError(
            f"{folder}: holds no {SUMMARY_NAME}: the run was not gated, or an earlier version wrote it; "
            "compare it with trace2evolve compare BASELINE RUN --report FILE"
        )
    summary = read_summary(folder / SUMMARY_NAME)
    write_page(options.report, summary, run_facts(folder, summary, project, project.open_worlds()))
    print(f"written: {options.report}")
    return 0


def show_ledger(options: argparse.Namespace) -> int:
    """Print the history of the splits and the problems of the ledger, or repair the ledger."""
    from pytest_trace2evolve.report.evidence import ledger_json, ledger_text
    from pytest_trace2evolve.session.ledger import ProjectLedger, split_histories

    project = project_of(options)
    if options.action is None and options.yes:
        raise ConfigError("--yes is only for 'trace2evolve ledger repair'; add repair or leave out --yes")
    project_ledger = ProjectLedger(project)
    if options.action == "repair":
        return _repair_ledger(project_ledger, is_confirmed=options.yes)
    histories = split_histories(project, project_ledger, options.suite, options.split)
    if options.json:
        print(json.dumps(ledger_json(project_ledger.entries, project_ledger.problems, histories), indent=2))
    else:
        print(ledger_text(project_ledger.problems, histories))
    for problem in project_ledger.problems:
        print(f"trace2evolve: {sanitize_line(problem)}", file=sys.stderr)
    return 1 if project_ledger.problems else 0


def _repair_ledger(project_ledger: "ProjectLedger", *, is_confirmed: bool) -> int:
    from pytest_trace2evolve.session.ledger import user_name

    if not project_ledger.problems:
        print("the ledger is not damaged; nothing was written")
        return 0
    for problem in project_ledger.problems:
        print(sanitize_line(problem))
    count = "1 entry is" if project_ledger.lost_entries == 1 else f"{project_ledger.lost_entries} entries are"
    print(f"{count} missing or unreadable, and each counts as one test of every split from now on.")
    print("Restore the files from git instead, if you can. A repair is recorded with your name.")
    if not is_confirmed:
        if not sys.stdin.isatty():
            raise ConfigError(
                "standard input is not a terminal, so nobody can confirm; check the list above and "
                "accept it with --yes"
            )
        if input("Accept this damage? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was written")
            return 1
    try:
        entry = project_ledger.repair(user_name())
    except OSError as error:
        raise ConfigError(f"the repair could not be recorded: {error.strerror or error}") from None
    print(f"recorded as ledger entry {entry.name}, by {entry.who}; commit it")
    return 0
