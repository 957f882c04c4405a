"""Offline checks of a project's own files and worlds, without a model or a network.

To add a check, write a generator of findings and name it in `check_project`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.errors import (
    CandidateError,
    ConfigError,
    LockError,
    MissingExtraError,
    ResultsError,
    SuiteError,
    Trace2EvolveError,
    WorldError,
)
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.draws import open_draws
from pytest_trace2evolve.evidence.ledger import Ledger, check_traces
from pytest_trace2evolve.project.candidates import Candidate, Candidates, parse_candidate, read_candidate
from pytest_trace2evolve.project.extensions import collect_trace_checks
from pytest_trace2evolve.project.lock import LOCK_NAME, RENEW_REMEDY, SuiteLock
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import SPLITS_NAME, Suite
from pytest_trace2evolve.project.tool_settings import FILE_NAME
from pytest_trace2evolve.records.ledger import TracesEntry
from pytest_trace2evolve.records.protocols import rules_of
from pytest_trace2evolve.records.score import SCORER_VERSION
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.world_checks import rule_problems, tool_problems
from pytest_trace2evolve.session.admission import find_call_problems
from pytest_trace2evolve.utils.git import git_text
from pytest_trace2evolve.utils.import_path import is_import_path, load_object
from pytest_trace2evolve.utils.reading import first_problem
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

_LATEST_TIMEZONE = timezone(timedelta(hours=14))
"""The time zone in which a day begins first, because a candidate may be frozen in any time zone."""


@dataclass(frozen=True)
class Finding:
    """One problem, in the form `path: problem; remedy`. A warning does not fail the check."""

    path: Path
    text: str
    is_warning: bool = False


def check_project(project: Project, worlds: Worlds, commit: str = "HEAD") -> list[Finding]:
    """Run all checks, and return the findings in the order of the checks, then by path.

    Args:
        worlds: Opens the suites' worlds.
        commit: The commit that frozen candidates are compared with.

    Raises:
        ConfigError: the commit does not exist, or the project's hooks cannot be loaded.
    """
    checks = (
        check_candidates(project),
        check_candidate_settings(project),
        check_own_code(project),
        check_frozen(project, commit),
        check_suites(project),
        check_lock(project, worlds),
        check_expected_calls(project, worlds),
        check_ledger(project),
        check_baselines(project),
        check_runs(project),
        check_own_worlds(project, worlds),
        check_draws(project),
    )
    return [
        finding
        for findings in checks
        for finding in sorted(findings, key=lambda finding: (finding.path, finding.text))
    ]


def check_candidates(project: Project) -> Iterator[Finding]:
    """Check that every candidate can be read, and that its ancestors exist and form no cycle."""
    folder = project.root / "candidates"
    candidates = Candidates(folder)
    reported_errors: set[frozenset[str]] = set()
    for name in candidates:
        try:
            candidates.lineage(name)
        except CandidateError as error:
            # A broken ancestor or a cycle is reported once, however many candidates lead to it.
            words = frozenset(word.strip(";") for word in str(error).split())
            if words not in reported_errors:
                reported_errors.add(words)
                yield to_finding(folder / f"{name}.md", error)


def check_candidate_settings(project: Project) -> Iterator[Finding]:
    """Check the agent, commit and date that each candidate names."""
    for path, candidate in _readable_candidates(project):
        if candidate.frozen_at is not None and candidate.frozen_at > datetime.now(_LATEST_TIMEZONE).date():
            yield Finding(
                path, f"has frozen_at {candidate.frozen_at}, which is in the future; correct the date"
            )
        yield from _agent_problems(project, path, candidate)


def _agent_problems(project: Project, path: Path, candidate: Candidate) -> Iterator[Finding]:
    if candidate.ref is not None:
        if git_text(project.root, "rev-parse", "--verify", "--quiet", f"{candidate.ref}^{{commit}}") is None:
            text = f"ref {candidate.ref!r} is not a commit in this repository; fetch it, or correct the ref"
            yield Finding(path, text)
    elif candidate.agent is not None:
        yield from _import_problems(project, path, candidate.agent)


def _import_problems(project: Project, path: Path, agent: str) -> Iterator[Finding]:
    """Yield a problem if an agent that a file names by its import path cannot be imported."""
    if not is_import_path(agent):
        return
    try:
        load_object(agent, project.root)
    except (Exception, SystemExit) as error:  # a module of the project can raise anything
        text = f"agent {agent!r} cannot be imported: {error_line(error)}"
        yield Finding(path, f"{text}; correct the path or the module")


def check_own_code(project: Project) -> Iterator[Finding]:
    """Check that the project's agent, and the module with its own checks, can be imported."""
    try:
        yield from _import_problems(project, project.root / FILE_NAME, project.settings.agent or "")
        collect_trace_checks(project.root)
    except ConfigError as error:
        yield to_finding(project.root / FILE_NAME, error)


def check_frozen(project: Project, commit: str) -> Iterator[Finding]:
    """Check that candidates that were frozen at a commit have not changed since."""
    root = project.root
    names = _changed_candidates(root, commit)
    if names is None:
        if any(candidate.frozen_at for _, candidate in _readable_candidates(project)):
            text = (
                "frozen texts were not compared, because git has no commit here; "
                "commit, or check them yourself"
            )
            yield Finding(root / "candidates", text, is_warning=True)
        return
    # The text of a prompt lies in a file of its own.
    prompted = [path for path, candidate in _readable_candidates(project) if candidate.prompt]
    for name in dict.fromkeys([*names, *(f"candidates/{path.name}" for path in prompted)]):
        path = root / name
        if path.suffix != ".md" or path.parent != root / "candidates" or not path.exists():
            continue
        old_text = git_text(root, "show", f"{commit}:./{name}")
        try:
            old_candidate = parse_candidate(old_text or "", path, partial(_committed_text, root, commit))
            new_candidate = read_candidate(path)
        except CandidateError:  # invalid then or now; another check reports the latter
            continue
        if old_candidate.frozen_at is not None and (text := _frozen_change(old_candidate, new_candidate)):
            yield Finding(
                path,
                f"{text} but {old_candidate.id} was frozen on {old_candidate.frozen_at}; make a new "
                "candidate",
            )


def _frozen_change(old_candidate: Candidate, new_candidate: Candidate) -> str:
    """Return the change of a frozen candidate that affects its evidence; empty if there is none."""
    if old_candidate.digest != new_candidate.digest:
        return "its text changed,"
    if old_candidate.frozen_at != new_candidate.frozen_at:
        return "its frozen_at changed,"
    if old_candidate.parent != new_candidate.parent:
        return "its parent changed,"
    dropped_splits = [
        split_name for split_name in old_candidate.informed_by if split_name not in new_candidate.informed_by
    ]
    return f"its informed_by no longer names {dropped_splits[0]!r}," if dropped_splits else ""


def _changed_candidates(root: Path, commit: str) -> list[str] | None:
    """Return the paths of candidate files that differ from a commit; None if the repository has no commit."""
    if git_text(root, "rev-parse", "--verify", "--quiet", "--end-of-options", "HEAD^{commit}") is None:
        return None
    if git_text(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}") is None:
        raise ConfigError(f"--against {commit!r} is not a commit here; fetch it, or name a different one")
    output = git_text(
        root, "diff", "--relative", "--name-only", "--no-renames", "-z", commit, "--", "candidates"
    )
    return [name for name in (output or "").split("\0") if name]


def check_suites(project: Project) -> Iterator[Finding]:
    """Check that `_splits.toml` and every suite can be read."""
    try:
        project.splits  # noqa: B018 - it is read here for its errors
    except SuiteError as error:
        yield to_finding(project.suites_folder / SPLITS_NAME, error)
        return
    for name in project.suite_names:
        try:
            project.suite(name)
        except SuiteError as error:
            yield to_finding(project.suites_folder / f"{name}.toml", error)


def check_lock(project: Project, worlds: Worlds) -> Iterator[Finding]:
    """Check that the lock holds exactly the suites, and matches their files, cases and worlds.

    Raises:
        ConfigError: the project's hooks cannot be loaded.
    """
    try:
        lock = project.lock
    except LockError as error:
        yield to_finding(project.lock_path, error)
        return
    for name in lock.suites.keys() - set(project.suite_names):
        yield Finding(
            project.lock_path,
            f"locks suite {name!r}, which has no file; restore it or run 'trace2evolve lock'",
        )
    for suite in _readable_suites(project):
        path = project.suites_folder / f"{suite.name}.toml"
        suite_lock = lock.suites.get(suite.name)
        if suite_lock is None:
            yield Finding(path, f"not in {LOCK_NAME}; run 'trace2evolve lock' and commit the result")
        elif suite_lock.scorer_version != SCORER_VERSION:
            yield Finding(
                project.lock_path,
                f"{suite.name} is locked for scorer {suite_lock.scorer_version}, but this version has "
                f"{SCORER_VERSION}; {RENEW_REMEDY}",
            )
        else:
            yield from _check_world(project, suite, suite_lock, worlds)


def _check_world(project: Project, suite: Suite, suite_lock: SuiteLock, worlds: Worlds) -> Iterator[Finding]:
    """Check that a suite and its world match the lock. A missing package is a warning."""
    path = project.suite_path(suite.name)
    try:
        project.verify_world(suite, project.suite_lock(suite, worlds), worlds)
    except (LockError, SuiteError) as error:
        yield to_finding(path, error)
    except (MissingExtraError, WorldError, ImportError) as error:
        if suite_lock.definition != suite.definition:
            yield Finding(path, f"its settings changed since {LOCK_NAME} was written; {RENEW_REMEDY}")
        text = f"not compared with {LOCK_NAME}: {error_line(error)}"
        yield Finding(path, text, is_warning=not isinstance(error, WorldError))
    except ConfigError:  # from the project's hooks, not from one suite
        raise
    except Exception as error:  # from the project's own code
        yield Finding(path, f"its world cannot be read: {error_line(error)}; correct it")


def check_expected_calls(project: Project, worlds: Worlds) -> Iterator[Finding]:
    """Check that the calls that written tasks expect or forbid are calls of existing tools."""
    for suite in _readable_suites(project):
        with contextlib.suppress(Exception):  # another check reports files and worlds that cannot be read
            for path, text in find_call_problems(project, suite, worlds):
                yield Finding(path, text)


def check_ledger(project: Project) -> Iterator[Finding]:
    """Check that the ledger is unchanged, or that a repair accepted its damage."""
    for problem in Ledger(project.ledger_folder).read().problems:
        name, _, text = problem.partition(": ")
        yield Finding(project.root / name, f"{text}, or accept the damage with 'trace2evolve ledger repair'")


def check_baselines(project: Project) -> Iterator[Finding]:
    """Check that every baseline can be read and belongs to its suite."""
    for path in project.baselines_folder.glob("*/*.json"):
        try:
            evidence = read_evidence(path)
        except ResultsError as error:
            yield to_finding(path, error)
            continue
        origin, suite = evidence.provenance, path.parent.name
        if suite not in project.suite_names:  # no run uses it
            continue
        if origin.suite != suite:
            yield Finding(
                path, f"belongs to suite {origin.suite!r}, not to {suite!r}; move it to that suite's folder"
            )


def check_runs(project: Project) -> Iterator[Finding]:
    """Check that the traces of the runs in the ledger are unchanged."""
    for entry in Ledger(project.ledger_folder).read().entries_by_time:
        if isinstance(entry, TracesEntry):
            yield from _check_run_traces(project.runs_folder / entry.run, entry)


def _check_run_traces(folder: Path, entry: TracesEntry) -> Iterator[Finding]:
    """Check that a run's traces are unchanged. A missing or moved folder is skipped."""
    folders = (folder / entry.suite, folder)
    traces_folder = next(
        (traces_folder for traces_folder in folders if (traces_folder / "results.json").exists()), None
    )
    if traces_folder is None:
        return
    try:
        check_traces([entry], entry.run, traces_folder)
    except ResultsError as error:
        yield to_finding(traces_folder, error)


def _committed_text(root: Path, commit: str, name: str) -> str:
    """Return the text of a file at a commit; empty if the commit does not have it."""
    return (git_text(root, "show", f"{commit}:./{name}") or "").strip()


def check_own_worlds(project: Project, worlds: Worlds) -> Iterator[Finding]:
    """Check that every rule of the project's own worlds can match, and that every tool can be replayed.

    The tests of this package cover built-in worlds.
    """
    for (provider, domain), suites in _own_worlds(project, worlds).items():
        path = project.suite_path(suites[0].name)
        name = provider if is_import_path(provider) else f"{domain} (provider {provider})"
        try:
            world = worlds.open(provider, domain)
            rules = rules_of(world)
        except (MissingExtraError, WorldError, ImportError):  # another check reports it
            continue
        except Exception as error:  # from the project's own code
            yield Finding(path, f"rules of {name}: cannot be read: {error_line(error)}; correct them")
            continue
        try:
            for problem in tool_problems(world, _world_tasks(project, suites, worlds)):
                yield Finding(path, f"world {name}: {problem}")
        except Exception as error:  # from the project's own code too
            text = f"world {name}: its tasks were not tried: {error_line(error)}"
            yield Finding(path, text, is_warning=True)
        for problem in rule_problems(rules, world.tools("assistant")) if rules else ():
            yield Finding(path, f"rules of {name}: {problem}")


def _own_worlds(project: Project, worlds: Worlds) -> dict[WorldName, list[Suite]]:
    """Return the worlds of the readable suites, except built-in worlds, with their suites."""
    suites: dict[WorldName, list[Suite]] = {}
    for suite in _readable_suites(project):
        if not worlds.is_built_in(suite.provider):
            suites.setdefault((suite.provider, suite.domain), []).append(suite)
    return suites


def _world_tasks(project: Project, suites: Sequence[Suite], worlds: Worlds) -> Iterator[Task]:
    """Yield each task of a world and of the suites' own files once; unreadable suites are skipped."""
    tasks: dict[str, Task] = {}
    for suite in suites:
        try:
            tasks.update(project.world(suite, worlds).tasks())
        except SuiteError:  # another check reports it
            continue
    yield from tasks.values()


def check_draws(project: Project) -> Iterator[Finding]:
    """Check that no stored simulation was deleted, changed or added by hand."""
    for store in open_draws(project.finished_folder, project.draws_folder):
        for problem in store.find_problems():
            yield to_finding(store.path, ResultsError(problem))


def _readable_candidates(project: Project) -> Iterator[tuple[Path, Candidate]]:
    for path in (project.root / "candidates").glob("*.md"):
        try:
            yield path, read_candidate(path)
        except CandidateError:  # another check reports it
            continue


def _readable_suites(project: Project) -> Iterator[Suite]:
    for name in project.suite_names:
        try:
            yield project.suite(name)
        except SuiteError:  # another check reports it
            continue


def to_finding(path: Path, error: Exception) -> Finding:
    """Convert an error to a finding about the file that its message names, or else about `path`."""
    text = " ".join(str(error).split())
    name, colon, remainder = text.partition(": ")
    return Finding(Path(name), remainder) if colon and Path(name).is_absolute() else Finding(path, text)


def error_line(error: BaseException) -> str:
    """Return an error as one line. For errors from outside this package, the line starts with the type."""
    if isinstance(error, ValidationError):
        return first_problem(error, error.title)
    text = " ".join(str(error).split())
    return text if isinstance(error, Trace2EvolveError) else f"{type(error).__name__}: {text}"
