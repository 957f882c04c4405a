"""Checks of a project's own files and worlds, offline: without a model and without a network.

Only worlds of the project and of installed packages are opened, for their rules. `CHECKS` lists the checks; a
further one is a function and a line there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.errors import (
    CandidateError,
    CaseError,
    ConfigError,
    LockError,
    ResultsError,
    SuiteError,
    Trace2EvolveError,
    WorldError,
)
from pytest_trace2evolve.evidence.draws import accounts_in
from pytest_trace2evolve.project.candidates import Candidate, Candidates, parse_candidate, read_candidate
from pytest_trace2evolve.project.lock import LOCK_NAME, RENEW, Lock
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import SPLITS_NAME, Suite, read_suite
from pytest_trace2evolve.records.protocols import rules_of
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.invariants import Call
from pytest_trace2evolve.scoring.reward import SCORER_VERSION
from pytest_trace2evolve.scoring.rule_checks import gold_calls, rule_problems
from pytest_trace2evolve.session.findings import Finding, Linted, found_in, git
from pytest_trace2evolve.session.lint_ledger import backdated, ledger, run_folders, saved_baselines
from pytest_trace2evolve.utils.reading import problem_in
from pytest_trace2evolve.worlds.registry import WorldName


def lint(linted: Linted) -> list[Finding]:
    """Everything that the checks find, in their order, then by path.

    Raises:
        ConfigError: `against` is no commit of a project that has commits.
    """
    return [
        finding for check in CHECKS for finding in sorted(check(linted), key=lambda one: (one.path, one.text))
    ]


def _candidates(linted: Linted) -> Iterator[Finding]:
    """Every candidate can be read, and its ancestors are there and turn in no circle."""
    folder = linted.project.root / "candidates"
    everything = Candidates(folder)
    told: set[frozenset[str]] = set()
    for name in everything:
        path = folder / f"{name}.md"
        try:
            everything.lineage(name)
        except CandidateError as error:
            # A broken ancestor is told once, and so is a circle, wherever one enters it.
            words = frozenset(str(error).split())
            if words not in told:
                told.add(words)
                yield found_in(path, error)


def _frozen(linted: Linted) -> Iterator[Finding]:
    """A candidate that was frozen in the last commit is as it was there."""
    root = linted.project.root
    names = _changed(root, linted.against)
    if names is None:
        if any(candidate.frozen_at for candidate in _sound(linted.project)):
            what = "frozen texts were not compared: git shows no commit here; commit, or mind them yourself"
            yield Finding(root / "candidates", what, warning=True)
        return
    for name in names:
        path = root / name
        if path.suffix != ".md" or path.parent != root / "candidates" or not path.exists():
            continue
        before_text = git(root, "show", f"{linted.against}:./{name}")
        try:
            before, after = parse_candidate(before_text or "", path), read_candidate(path)
        except CandidateError:  # it was broken then, or is now, which another check tells
            continue
        if before.frozen_at is not None and (what := _moved(before, after)):
            yield Finding(
                path, f"{what} and {before.id} was frozen on {before.frozen_at}; make a new candidate"
            )


def _moved(before: Candidate, after: Candidate) -> str:
    """What of a frozen candidate changed that its evidence rests on."""
    if before.digest != after.digest:
        return "its text changed,"
    if before.frozen_at != after.frozen_at:
        return "its frozen_at changed,"
    if before.parent != after.parent:
        return "its parent changed,"
    gone = [seen for seen in before.informed_by if seen not in after.informed_by]
    return f"its informed_by no longer names {gone[0]!r}," if gone else ""


def _suites(linted: Linted) -> Iterator[Finding]:
    """`_splits.toml` and every suite can be read."""
    project = linted.project
    try:
        splits = project.splits
    except SuiteError as error:
        yield found_in(project.suites_folder / SPLITS_NAME, error)
        return
    for name in project.suite_names:
        path = project.suites_folder / f"{name}.toml"
        try:
            read_suite(path, splits)
        except SuiteError as error:
            yield found_in(path, error)


def _lock(linted: Linted) -> Iterator[Finding]:
    """Each suite is in the lock, as its file is, and the lock names no other.

    Whether the worlds are as they were locked, `trace2evolve lock --check` says.
    """
    project = linted.project
    try:
        lock = project.lock
    except LockError as error:
        yield found_in(project.lock_path, error)
        return
    for name in lock.suites.keys() - set(project.suite_names):
        yield Finding(
            project.lock_path,
            f"locks suite {name!r}, which has no file; restore it or run 'trace2evolve lock'",
        )
    for suite in _readable(project):
        path = project.suites_folder / f"{suite.name}.toml"
        locked = lock.suites.get(suite.name)
        if locked is None:
            yield Finding(path, f"not in {LOCK_NAME}; run 'trace2evolve lock' and commit the result")
        elif locked.definition != suite.definition:
            yield Finding(path, f"its settings changed since {LOCK_NAME} was written; {RENEW}")
        elif locked.scorer_version != SCORER_VERSION:
            yield Finding(
                project.lock_path,
                f"{suite.name} is locked for scorer {locked.scorer_version}, and this is {SCORER_VERSION}; "
                f"{RENEW}",
            )


def _cases(linted: Linted) -> Iterator[Finding]:
    """Every file of synthetic cases that a suite names can be read, and is as it was locked."""
    project = linted.project
    told: set[Path] = set()
    for suite in _readable(project):
        locked = _locked_splits(project, suite.name)
        for split, spec in suite.case_splits.items():
            path = project.root / spec.cases
            try:
                cases = read_cases(path)
            except CaseError as error:
                if path not in told:
                    told.add(path)
                    yield found_in(path, error)
                continue
            held = {case.id: case.digest for case in cases}
            if locked is not None and held != locked.get(split):
                yield Finding(
                    path,
                    f"is not split {split!r} of {suite.name} as {LOCK_NAME} has it; {RENEW}",
                )


def _rules(linted: Linted) -> Iterator[Finding]:
    """Every rule of the project's own worlds can match; the tests of this package check the built-in ones."""
    project, worlds = linted.project, linted.worlds
    suites: dict[WorldName, list[Suite]] = {}
    for suite in _readable(project):
        if not worlds.is_built_in(suite.provider):
            suites.setdefault((suite.provider, suite.domain), []).append(suite)
    for (provider, domain), several in suites.items():
        path = project.suite_path(several[0].name)
        what = f"rules of {domain} (provider {provider})"
        try:
            world = worlds.open(provider, domain)
            rules = rules_of(world)
        except (ConfigError, WorldError, ImportError) as error:
            yield Finding(path, f"{what}: not checked: {_line(error)}", warning=True)
            continue
        except Exception as error:  # of the project's own code
            yield Finding(path, f"{what}: cannot be read: {_line(error)}; correct them")
            continue
        if rules is None:
            continue
        calls: list[Call] = []
        try:
            calls = gold_calls(world, _tasks(linted, several))
        except Exception as error:  # of the project's own code too
            yield Finding(path, f"{what}: results were not checked: {_line(error)}", warning=True)
        for problem in rule_problems(rules, world.tools("assistant"), calls):
            yield Finding(path, f"{what}: {problem.text}", warning=not problem.certain)


def _tasks(linted: Linted, suites: Sequence[Suite]) -> Iterator[Task]:
    """The tasks of a world and those of the suites' own files, as far as these can be read, each once."""
    found: dict[str, Task] = {}
    for suite in suites:
        try:
            found.update(linted.project.world(suite, linted.worlds).tasks())
        except SuiteError:  # another check tells
            continue
    yield from found.values()


def _draws(linted: Linted) -> Iterator[Finding]:
    """Stored simulations that were deleted, changed or added by hand."""
    project = linted.project
    for store in accounts_in(project.finished_folder, project.draws_folder):
        for problem in store.problems():
            yield found_in(store.path, ResultsError(problem))


def _line(error: Exception) -> str:
    """An error in one line; one that this package does not raise itself with its name."""
    if isinstance(error, ValidationError):
        return problem_in(error, error.title)
    text = " ".join(str(error).split())
    return text if isinstance(error, Trace2EvolveError) else f"{type(error).__name__}: {text}"


CHECKS: tuple[Callable[[Linted], Iterable[Finding]], ...] = (
    _candidates,
    _frozen,
    _suites,
    _lock,
    _cases,
    ledger,
    saved_baselines,
    run_folders,
    backdated,
    _rules,
    _draws,
)
"""What is checked, in the order in which it is told."""


def _sound(project: Project) -> Iterator[Candidate]:
    for path in (project.root / "candidates").glob("*.md"):
        try:
            yield read_candidate(path)
        except CandidateError:  # another check tells
            continue


def _readable(project: Project) -> Iterator[Suite]:
    for name in project.suite_names:
        try:
            yield project.suite(name)
        except SuiteError:  # another check tells
            continue


def _locked_splits(project: Project, suite: str) -> Mapping[str, Mapping[str, str]] | None:
    try:
        lock: Lock = project.lock
    except LockError:
        return None
    return lock.suites[suite].splits if suite in lock.suites else None


def _changed(root: Path, against: str) -> list[str] | None:
    """Candidates' files that differ from a commit, relative to the project; None where git has none.

    Raises:
        ConfigError: there is no such commit.
    """
    if git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", "HEAD^{commit}") is None:
        return None
    if git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{against}^{{commit}}") is None:
        raise ConfigError(f"--against {against!r} is no commit here; fetch it or name another")
    listed = git(root, "diff", "--relative", "--name-only", "--no-renames", "-z", against, "--", "candidates")
    return [name for name in (listed or "").split("\0") if name]
