"""Saved evidence: runs, traces, baselines, the lock, checks, the ledger, and comments on pull requests."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.cli.common import project_of
from pytest_trace2evolve.errors import ConfigError, GitHubError
from pytest_trace2evolve.utils.files import find_root
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.session.ledger import ProjectLedger

TOKEN_VAR = "GITHUB_TOKEN"


def lock(options: argparse.Namespace) -> int:
    """Write the lock of suites."""
    project = project_of(options)
    lock = project.renew_lock(project.open_worlds(), options.suites)
    for name, locked in lock.suites.items():
        splits = ", ".join(f"{split} {len(tasks)}" for split, tasks in locked.splits.items())
        print(f"{name}: {splits}; {locked.provider} {locked.provider_version}; {locked.digest}")
    print(f"written: {project.lock_path}")
    return 0


def check(options: argparse.Namespace) -> int:
    """Check the project's files and worlds; warnings do not change the exit status."""
    from pytest_trace2evolve.session.check import check_project

    project = project_of(options)
    findings = check_project(project, project.open_worlds(), options.against)
    for finding in findings:
        path = finding.path
        shown = path.relative_to(project.root) if path.is_relative_to(project.root) else path
        print(f"{shown}: {'warning: ' if finding.warning else ''}{finding.text}")
    return 1 if any(not finding.warning for finding in findings) else 0


def runs(options: argparse.Namespace) -> int:
    """List the project's runs."""
    from pytest_trace2evolve.report.evidence import runs_table
    from pytest_trace2evolve.session.runs import listed_runs

    project = project_of(options)
    found = listed_runs(project)
    empty = f"no runs in {project.runs_folder}; make one with pytest --candidate ID"
    return _print_listed("runs", found, runs_table, empty, as_json=options.json)


def list_baselines(options: argparse.Namespace) -> int:
    """List saved baselines."""
    from datetime import UTC, datetime

    from pytest_trace2evolve.report.evidence import baselines_table
    from pytest_trace2evolve.session.baselines import saved_baselines

    project = project_of(options)
    found = saved_baselines(project, datetime.now(UTC))
    empty = f"no baselines in {project.baselines_folder}; save one with pytest --t2e-save-baseline NAME"
    return _print_listed("baselines", found, baselines_table, empty, as_json=options.json)


def _print_listed(
    key: str, found: Sequence[Any], table: Callable[[Any], str], empty: str, *, as_json: bool
) -> int:
    """Print a list of records, and report the damaged ones."""
    if as_json:
        print(json.dumps({key: [item.to_json() for item in found]}, indent=2))
    else:
        print(table(found) if found else empty)
    damaged = [item.error for item in found if item.error]
    for error in damaged:
        print(f"trace2evolve: {error}", file=sys.stderr)
    return 1 if damaged else 0


def promote(options: argparse.Namespace) -> int:
    """Make the candidate of a promoted run the baseline, as a single change to commit."""
    from pytest_trace2evolve.report.evidence import promotion_text
    from pytest_trace2evolve.session.promote import promote

    project, here = project_of(options), Path.cwd()
    promotion = promote(
        project,
        options.run,
        name=options.name,
        suites=options.suite or (),
        here=here,
        dry_run=options.dry_run,
    )
    print(promotion_text(promotion, project.root, here, dry_run=options.dry_run))
    return 0


def show(options: argparse.Namespace) -> int:
    """Open a trace and record the access, or list a run's failed tasks."""
    from pytest_trace2evolve.report.trace import failed_text, trace_text
    from pytest_trace2evolve.session.evidence_sources import path_exists
    from pytest_trace2evolve.session.traces import failed_tasks, open_trace

    if options.failed and (options.task is not None or options.trial is not None or options.full):
        raise ConfigError("--failed lists the failed tasks of a run: leave out TASK, --trial and --full")
    if not options.failed and options.task is None:
        raise ConfigError(
            f"show {options.run}: which task? name one, or list those that failed with --failed"
        )
    here = Path.cwd()
    if options.root is None:
        # A run belongs to the project that contains the run's folder, whatever the current folder is.
        place = (here / options.run).resolve() if path_exists(here / options.run) else here
        options.root = find_root(place) or find_root(here)
    project = project_of(options) if options.root is not None else None
    suite = options.suite or ""
    if options.failed:
        text = failed_text(failed_tasks(options.run, project=project, here=here, suite=suite))
    else:
        opened = open_trace(
            options.run, options.task, project=project, here=here, trial=options.trial, suite=suite
        )
        text = trace_text(opened, full=options.full)
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
    return 0


def ledger(options: argparse.Namespace) -> int:
    """Print the history of the splits and the problems of the ledger, or repair the ledger."""
    from pytest_trace2evolve.report.evidence import ledger_json, ledger_text
    from pytest_trace2evolve.session.ledger import ProjectLedger, split_histories

    project = project_of(options)
    if options.action is None and options.yes:
        raise ConfigError("--yes goes with 'trace2evolve ledger repair'")
    looks = ProjectLedger(project)
    if options.action == "repair":
        return _repair(looks, yes=options.yes)
    found = split_histories(project, looks, options.suite, options.split)
    if options.json:
        print(json.dumps(ledger_json(looks.entries, looks.problems, found), indent=2))
    else:
        print(ledger_text(looks.problems, found))
    for problem in looks.problems:
        print(f"trace2evolve: {sanitize_line(problem)}", file=sys.stderr)
    return 1 if looks.problems else 0


def _repair(looks: "ProjectLedger", *, yes: bool) -> int:
    from pytest_trace2evolve.session.ledger import user_name

    if not looks.problems:
        print("the ledger is not damaged; nothing was written")
        return 0
    for problem in looks.problems:
        print(sanitize_line(problem))
    count = "1 entry is" if looks.lost == 1 else f"{looks.lost} entries are"
    print(f"{count} missing or unreadable, and each counts as one test of every split from now on.")
    print("Restore the files from git instead, if you can. A repair is recorded with your name.")
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nobody can be asked here; read the list above, and give --yes to accept it")
        if input("Accept this damage? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was written")
            return 1
    try:
        entry = looks.repair(user_name())
    except OSError as error:
        raise ConfigError(f"the repair could not be recorded: {error.strerror or error}") from None
    print(f"recorded as ledger entry {entry.name}, by {entry.who}; commit it")
    return 0


def comment(options: argparse.Namespace) -> int:
    """Report a run's summary in one comment on its pull request."""
    from pytest_trace2evolve.report.github_comment import API_URL, GitHub, post_summary
    from pytest_trace2evolve.report.summary import read_summary

    if options.head and not options.sha:
        raise ConfigError("--head names a branch, which moves: give --sha, the commit that was measured, too")
    summary = read_summary(options.file)
    repository = options.repo or os.environ.get("GITHUB_REPOSITORY")
    if not repository:
        raise ConfigError("which repository? give --repo OWNER/NAME or set GITHUB_REPOSITORY")
    try:
        token = os.environ.get(TOKEN_VAR)
        if not token:
            raise GitHubError(f"no token: set {TOKEN_VAR} to one that may write to pull requests")
        posted = post_summary(
            GitHub(repository, token, api_url=os.environ.get("GITHUB_API_URL") or API_URL),
            summary,
            pull_request=options.pr and int(options.pr),
            branch=options.head,
            sha=options.sha,
            key=options.key,
            author=options.author,
            run_url=options.run_url,
            untrusted=options.untrusted,
        )
    except GitHubError as error:
        if not options.best_effort:
            raise
        print(f"trace2evolve: no comment: {error}; the job's summary tells the same", file=sys.stderr)
        return 0
    if posted is None:
        print(f"no comment: no open pull request has {options.head} at {options.sha}")
    else:
        print(f"comment {'made' if posted.created else 'renewed'}: {posted.url}")
    return 0
