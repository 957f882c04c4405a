"""Offline checks of a project's own files and worlds, without a model or a network.

To add a check, write a generator of findings and name it in `check_project`.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
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
    nearest,
)
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.draws import draws_in
from pytest_trace2evolve.evidence.integrity import (
    check_baseline,
    check_traces,
    edits_in_run,
    unverified_baseline,
)
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.project.candidates import Candidate, Candidates, parse_candidate, read_candidate
from pytest_trace2evolve.project.lock import LOCK_NAME, RENEW, SuiteLock
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import SPLITS_NAME, Suite, read_suite
from pytest_trace2evolve.records.ledger import Access, Dated, Evaluation, Traces
from pytest_trace2evolve.records.protocols import rules_of
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.invariants import Call
from pytest_trace2evolve.scoring.reward import SCORER_VERSION
from pytest_trace2evolve.scoring.rule_checks import gold_calls, rule_problems
from pytest_trace2evolve.utils.reading import problem_in
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

PUBLISHED = "published"
"""The folder below baselines/ for evidence that belongs to no suite, such as published runs."""


@dataclass(frozen=True)
class Finding:
    """One problem, in the form `path: problem; remedy`. A warning does not fail the check."""

    path: Path
    text: str
    warning: bool = False


def check_project(project: Project, worlds: Worlds, against: str = "HEAD") -> list[Finding]:
    """Run all checks; returns the findings in the order of the checks, then by path.

    Args:
        worlds: Opens the suites' worlds.
        against: The commit that frozen candidates are compared with.

    Raises:
        ConfigError: there is no commit `against`, or the project's hooks cannot be loaded.
    """
    checks = (
        check_candidates(project),
        check_frozen(project, against),
        check_suites(project),
        check_lock(project, worlds),
        check_ledger(project),
        check_baselines(project),
        check_runs(project),
        check_frozen_dates(project),
        check_rules(project, worlds),
        check_draws(project),
    )
    return [finding for check in checks for finding in sorted(check, key=lambda it: (it.path, it.text))]


def check_candidates(project: Project) -> Iterator[Finding]:
    """Check that every candidate can be read, and that its ancestors exist and form no cycle."""
    folder = project.root / "candidates"
    everything = Candidates(folder)
    reported: set[frozenset[str]] = set()
    for name in everything:
        try:
            everything.lineage(name)
        except CandidateError as error:
            # A broken ancestor or a cycle is reported once, however many candidates lead to it.
            words = frozenset(str(error).split())
            if words not in reported:
                reported.add(words)
                yield _finding(folder / f"{name}.md", error)


def check_frozen(project: Project, against: str) -> Iterator[Finding]:
    """Check that candidates that are frozen in commit `against` have not changed since."""
    root = project.root
    names = _changed_candidates(root, against)
    if names is None:
        if any(candidate.frozen_at for _, candidate in _readable_candidates(project)):
            what = "frozen texts were not compared: git shows no commit here; commit, or mind them yourself"
            yield Finding(root / "candidates", what, warning=True)
        return
    for name in names:
        path = root / name
        if path.suffix != ".md" or path.parent != root / "candidates" or not path.exists():
            continue
        before_text = _git(root, "show", f"{against}:./{name}")
        try:
            before, after = parse_candidate(before_text or "", path), read_candidate(path)
        except CandidateError:  # invalid then or now; another check reports the latter
            continue
        if before.frozen_at is not None and (what := _change_of_frozen(before, after)):
            yield Finding(
                path, f"{what} and {before.id} was frozen on {before.frozen_at}; make a new candidate"
            )


def _change_of_frozen(before: Candidate, after: Candidate) -> str:
    """The change of a frozen candidate that affects its evidence; empty if there is none."""
    if before.digest != after.digest:
        return "its text changed,"
    if before.frozen_at != after.frozen_at:
        return "its frozen_at changed,"
    if before.parent != after.parent:
        return "its parent changed,"
    gone = [seen for seen in before.informed_by if seen not in after.informed_by]
    return f"its informed_by no longer names {gone[0]!r}," if gone else ""


def _changed_candidates(root: Path, against: str) -> list[str] | None:
    """The candidate files that differ from a commit, relative to the project; None if git has no commit."""
    if _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", "HEAD^{commit}") is None:
        return None
    if _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{against}^{{commit}}") is None:
        raise ConfigError(f"--against {against!r} is no commit here; fetch it or name another")
    listed = _git(
        root, "diff", "--relative", "--name-only", "--no-renames", "-z", against, "--", "candidates"
    )
    return [name for name in (listed or "").split("\0") if name]


def check_suites(project: Project) -> Iterator[Finding]:
    """Check that `_splits.toml` and every suite can be read."""
    try:
        splits = project.splits
    except SuiteError as error:
        yield _finding(project.suites_folder / SPLITS_NAME, error)
        return
    for name in project.suite_names:
        path = project.suites_folder / f"{name}.toml"
        try:
            read_suite(path, splits)
        except SuiteError as error:
            yield _finding(path, error)


def check_lock(project: Project, worlds: Worlds) -> Iterator[Finding]:
    """Check that the lock holds exactly the suites, and matches their files, cases and worlds.

    Raises:
        ConfigError: the project's hooks cannot be loaded.
    """
    try:
        lock = project.lock
    except LockError as error:
        yield _finding(project.lock_path, error)
        return
    for name in lock.suites.keys() - set(project.suite_names):
        yield Finding(
            project.lock_path,
            f"locks suite {name!r}, which has no file; restore it or run 'trace2evolve lock'",
        )
    for suite in _readable_suites(project):
        path = project.suites_folder / f"{suite.name}.toml"
        locked = lock.suites.get(suite.name)
        if locked is None:
            yield Finding(path, f"not in {LOCK_NAME}; run 'trace2evolve lock' and commit the result")
        elif locked.scorer_version != SCORER_VERSION:
            yield Finding(
                project.lock_path,
                f"{suite.name} is locked for scorer {locked.scorer_version}, and this is {SCORER_VERSION}; "
                f"{RENEW}",
            )
        else:
            yield from _check_world(project, suite, locked, worlds)


def _check_world(project: Project, suite: Suite, locked: SuiteLock, worlds: Worlds) -> Iterator[Finding]:
    """Check that a suite and its world match the lock. A world with a missing package is a warning."""
    path = project.suite_path(suite.name)
    try:
        project.verify_world(suite, project.locked(suite, worlds), worlds)
    except (LockError, SuiteError) as error:
        yield _finding(path, error)
    except (MissingExtraError, WorldError, ImportError) as error:
        if locked.definition != suite.definition:
            yield Finding(path, f"its settings changed since {LOCK_NAME} was written; {RENEW}")
        text = f"not compared with {LOCK_NAME}: {_one_line(error)}"
        yield Finding(path, text, warning=not isinstance(error, WorldError))
    except ConfigError:  # from the project's hooks, not from one suite
        raise
    except Exception as error:  # from the project's own code
        yield Finding(path, f"its world cannot be read: {_one_line(error)}; correct it")


def check_ledger(project: Project) -> Iterator[Finding]:
    """Check that the ledger is unchanged, or that a repair accepted its damage."""
    for problem in Ledger(project.ledger_folder).read().problems:
        named, _, text = problem.partition(": ")
        yield Finding(project.root / named, f"{text}, or accept the damage with 'trace2evolve ledger repair'")


def check_baselines(project: Project) -> Iterator[Finding]:
    """Check that every baseline can be read, belongs to its suite and lock, and matches the ledger."""
    entries = Ledger(project.ledger_folder).read().in_time
    locks = _locks(project)
    for path in project.baselines_folder.rglob("*.json"):
        if path.parent.parent != project.baselines_folder:
            yield Finding(path, "lies in no suite's folder; a baseline is baselines/<suite>/<name>.json")
            continue
        try:
            evidence = read_evidence(path)
        except ResultsError as error:
            yield _finding(path, error)
            continue
        origin, suite = evidence.provenance, path.parent.name
        if suite not in project.suite_names:
            if suite == PUBLISHED and origin.suite is None:
                continue
            yield Finding(path, f"of unknown suite {suite!r}; {nearest(suite, project.suite_names)}")
            continue
        if origin.suite != suite:
            yield Finding(
                path, f"a baseline of suite {origin.suite!r}, not of {suite!r}; move it to its folder"
            )
            continue
        if origin.lock is not None and suite in locks and (now := locks[suite].digest) != origin.lock:
            # A renewed lock leaves old baselines behind, because evidence is kept. That is not an error.
            yield Finding(
                path,
                f"measured under lock {origin.lock}, and {suite!r} is now {now}; "
                "nothing can be compared with it: measure it again with pytest --t2e-save-baseline NAME "
                "--t2e-baseline-mode update",
                warning=True,
            )
        try:
            check_baseline(entries, suite, path.stem, path, evidence)
        except ResultsError as error:
            yield _finding(path, error)
            continue
        splits = locks[suite].splits if suite in locks else {}
        problem = unverified_baseline(entries, suite, path.stem, evidence, splits)
        if problem is not None:
            unknown = (
                "not in the ledger, so an edit of it cannot be found: it was saved by an older version or "
                "copied here; the next gated run that uses it records its digest"
            )
            yield Finding(path, problem or unknown, warning=True)


def check_runs(project: Project) -> Iterator[Finding]:
    """Check that the verdicts, evidence and traces of the runs in the ledger are unchanged."""
    runs: dict[str, list[Dated]] = {}
    for entry in Ledger(project.ledger_folder).read().in_time:
        if isinstance(entry, Evaluation):
            runs.setdefault(entry.run, []).append(entry)
        elif isinstance(entry, Traces):
            yield from _edited_traces(project.runs_folder / entry.run, entry)
    for run, entries in runs.items():
        folder = project.runs_folder / run
        yield from (_finding(folder, edit) for edit in edits_in_run(folder, entries))


def _edited_traces(folder: Path, entry: Traces) -> Iterator[Finding]:
    """Check that a run's traces are unchanged. A missing or moved folder is skipped."""
    places = (folder / entry.suite, folder)
    place = next((place for place in places if (place / "results.json").exists()), None)
    if place is None:
        return
    try:
        check_traces([entry], entry.run, place)
    except ResultsError as error:
        yield _finding(place, error)


def check_frozen_dates(project: Project) -> Iterator[Finding]:
    """Check that no candidate is dated before an access to traces although its text is younger."""
    entries = Ledger(project.ledger_folder).read().in_time
    accesses = [entry for entry in entries if isinstance(entry, Access)]
    for path, candidate in _readable_candidates(project) if accesses else ():
        frozen = candidate.frozen_at
        later = [access for access in accesses if frozen is not None and access.first_day > frozen]
        if not later:
            continue
        access = min(later, key=lambda entry: entry.at)
        what = (
            f"says frozen_at {frozen}, before traces of {access.suite}::{access.split} were opened on "
            f"{access.first_day}"
        )
        judged_before = (entry for entry in entries if isinstance(entry, Evaluation) and entry.at < access.at)
        if any(version.digest == candidate.digest for entry in judged_before for version in entry.versions):
            continue
        first = _first_commit(project.root, path, candidate)
        if first is None:
            text = (
                f"{what}, and neither a commit nor the ledger shows this text from before then; commit it, "
                "or fetch the whole history"
            )
            yield Finding(path, text, warning=True)
        elif first > access.at:
            text = f"{what}, and its text was first committed on {first:%Y-%m-%d}; set frozen_at to that day"
            yield Finding(path, text)


def _first_commit(root: Path, path: Path, candidate: Candidate) -> datetime | None:
    """The author's date of the first commit with a candidate's text; a rebase keeps this date.

    None if the text was never committed, or if the history is shallow.
    """
    if _git(root, "rev-parse", "--is-shallow-repository") != "false\n":
        return None
    name = path.relative_to(root).as_posix()
    listed = _git(root, "log", "--reverse", "--format=%H %aI", "--", name) or ""
    for line in listed.splitlines():
        commit, _, day = line.partition(" ")
        try:
            then = parse_candidate(_git(root, "show", f"{commit}:./{name}") or "", path)
        except CandidateError:  # the file was invalid or did not exist
            continue
        if then.digest == candidate.digest:
            return datetime.fromisoformat(day)
    return None


def check_rules(project: Project, worlds: Worlds) -> Iterator[Finding]:
    """Check that every rule of the project's own worlds can match; package tests cover built-in worlds."""
    suites: dict[WorldName, list[Suite]] = {}
    for suite in _readable_suites(project):
        if not worlds.is_built_in(suite.provider):
            suites.setdefault((suite.provider, suite.domain), []).append(suite)
    for (provider, domain), several in suites.items():
        path = project.suite_path(several[0].name)
        what = f"rules of {domain} (provider {provider})"
        try:
            world = worlds.open(provider, domain)
            rules = rules_of(world)
        except (MissingExtraError, WorldError, ImportError):  # another check reports it
            continue
        except Exception as error:  # from the project's own code
            yield Finding(path, f"{what}: cannot be read: {_one_line(error)}; correct them")
            continue
        if rules is None:
            continue
        calls: list[Call] = []
        try:
            calls = gold_calls(world, _tasks(project, several, worlds))
        except Exception as error:  # from the project's own code too
            yield Finding(path, f"{what}: results were not checked: {_one_line(error)}", warning=True)
        for problem in rule_problems(rules, world.tools("assistant"), calls):
            yield Finding(path, f"{what}: {problem.text}", warning=not problem.certain)


def _tasks(project: Project, suites: Sequence[Suite], worlds: Worlds) -> Iterator[Task]:
    """Yield each task of a world and of the suites' own files once; unreadable suites are skipped."""
    found: dict[str, Task] = {}
    for suite in suites:
        try:
            found.update(project.world(suite, worlds).tasks())
        except SuiteError:  # another check reports it
            continue
    yield from found.values()


def check_draws(project: Project) -> Iterator[Finding]:
    """Check that no stored simulation was deleted, changed or added by hand."""
    for store in draws_in(project.finished_folder, project.draws_folder):
        for problem in store.problems():
            yield _finding(store.path, ResultsError(problem))


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


def _locks(project: Project) -> Mapping[str, SuiteLock]:
    try:
        return project.lock.suites
    except LockError:  # another check reports it
        return {}


def _finding(path: Path, error: Exception) -> Finding:
    """Convert an error to a finding about the file that its message names, or else about `path`."""
    text = " ".join(str(error).split())
    named, colon, rest = text.partition(": ")
    return Finding(Path(named), rest) if colon and Path(named).is_absolute() else Finding(path, text)


def _one_line(error: Exception) -> str:
    """An error in one line, with the name of its type unless this package raised the error."""
    if isinstance(error, ValidationError):
        return problem_in(error, error.title)
    text = " ".join(str(error).split())
    return text if isinstance(error, Trace2EvolveError) else f"{type(error).__name__}: {text}"


def _git(root: Path, *arguments: str) -> str | None:
    """The output of a git command; None if git fails or is not installed."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
