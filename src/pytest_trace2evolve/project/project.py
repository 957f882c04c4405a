"""A project: the folders of its suites, candidates, baselines, runs and ledger, and its locked suites."""

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pytest_trace2evolve.errors import CaseError, ConfigError, LockError, SuiteError, name_suggestion
from pytest_trace2evolve.project.lock import (
    LOCK_NAME,
    RENEW_REMEDY,
    Lock,
    SuiteLock,
    lock_suite,
    parse_lock,
    render_lock,
    verify_lock,
)
from pytest_trace2evolve.project.pytest_ini import ini_words, may_have_hooks
from pytest_trace2evolve.project.suites import (
    SPLITS_NAME,
    Role,
    Split,
    Suite,
    TaskFile,
    read_splits,
    read_suite,
    split_registry,
)
from pytest_trace2evolve.project.tool_settings import ToolSettings, read_tool_settings
from pytest_trace2evolve.records.score import SCORER_VERSION
from pytest_trace2evolve.utils.files import find_root, is_inside, real_path, write_atomic
from pytest_trace2evolve.utils.import_path import add_to_path, is_import_path
from pytest_trace2evolve.utils.reading import MAX_RECORD_BYTES, read_text

if TYPE_CHECKING:
    from pytest_trace2evolve.cases.written import WrittenTask
    from pytest_trace2evolve.project.adapters import Adapters
    from pytest_trace2evolve.project.candidates import Candidates
    from pytest_trace2evolve.project.extensions import Extensions
    from pytest_trace2evolve.records.protocols import World
    from pytest_trace2evolve.records.task import Content, Task
    from pytest_trace2evolve.worlds.registry import Worlds


DEFAULT_TASK_SPLIT = "heldout"
"""The split of a written task that names no split."""


@dataclass(frozen=True)
class LockedSuite:
    """A suite as its file defines it, and its lock."""

    suite: Suite
    path: Path
    lock: SuiteLock

    @property
    def name(self) -> str:
        return self.suite.name

    @property
    def domain(self) -> str:
        return self.suite.domain


@dataclass(frozen=True)
class Project:
    """A project.

    Attributes:
        root: Its top folder (pytest's rootdir).
        suites_folder: The folder of its suites.
        hooks: The registrations of its hooks if a pytest session has read them; if None, they are loaded
            when needed.
    """

    root: Path
    suites_folder: Path
    hooks: "Extensions | None" = field(default=None, kw_only=True, compare=False, repr=False)

    @classmethod
    def find(cls, start: Path | None = None) -> Self:
        """Find the project of a folder (default: the current folder).

        The root is the folder itself or its nearest parent with a folder `suites/`.

        Raises:
            ConfigError: neither the folder nor a parent has a folder `suites/`.
        """
        start_folder = Path.cwd() if start is None else start
        root = find_root(real_path(start_folder))
        if root is None:
            raise ConfigError(
                f"no folder suites/ in {start_folder} or its parents; run 'trace2evolve init', or "
                "name a project"
            )
        return cls(root=root, suites_folder=root / "suites")

    @property
    def tasks_copies(self) -> Path:
        """The folder of copies of other commits' suites and tasks, by commit."""
        return self.root / ".trace2evolve" / "tasks"

    @property
    def tasks_root(self) -> Path:
        """The folder to which a suite's files of cases and tasks are relative: the root, or a copy."""
        parent = self.suites_folder.parent
        return parent if parent.parent == self.tasks_copies else self.root

    @property
    def baselines_folder(self) -> Path:
        return self.root / "baselines"

    @property
    def policies_folder(self) -> Path:
        """The folder of the project's own gate policies, one TOML file each."""
        return self.root / "policies"

    @property
    def runs_folder(self) -> Path:
        return self.root / ".trace2evolve" / "runs"

    @property
    def finished_folder(self) -> Path:
        """The folder of finished live simulations, which later runs reuse."""
        return self.root / ".trace2evolve" / "finished"

    @property
    def draws_folder(self) -> Path:
        """The folder of the accounts of finished simulations, one account for each candidate and agent.

        It lies in the folder of finished simulations, so a copy of that folder includes the accounts.
        """
        return self.finished_folder / "draws"

    @property
    def answers_cache(self) -> Path:
        """The file of models' answers that later runs with `--t2e-cache` reuse."""
        return self.root / ".trace2evolve" / "cache.sqlite"

    @property
    def ledger_folder(self) -> Path:
        """The folder of the ledger, which records verdicts and accesses to traces in one file per entry."""
        return self.root / "ledger"

    @property
    def lock_path(self) -> Path:
        return self.suites_folder / LOCK_NAME

    @property
    def adapters(self) -> "Adapters":
        from pytest_trace2evolve.project.adapters import Adapters

        return Adapters(self.root / "adapters")

    @cached_property
    def candidates(self) -> "Candidates":
        from pytest_trace2evolve.project.candidates import Candidates

        return Candidates(self.root / "candidates", self.adapters)

    @cached_property
    def splits(self) -> dict[str, Split]:
        """The registry of splits: the built-in ones and those of the project's `_splits.toml`."""
        return split_registry(read_splits(self.suites_folder / SPLITS_NAME))

    @cached_property
    def extensions(self) -> "Extensions":
        """The registrations of the hooks in the project's `conftest.py` and plugins, loaded at the first use.

        Only commands need this, because a pytest session reads the hooks of its own configuration.

        Raises:
            ConfigError: the hooks cannot be loaded; the message names the file and the error.
        """
        if self.hooks is not None:
            return self.hooks
        from pytest_trace2evolve.project.extensions import (
            Extensions,
            collect_trace_checks,
            load_extensions,
        )

        if may_have_hooks(self.root, self.suites_folder):
            return load_extensions(self.root, self.suites_folder)
        return Extensions(trace_checks=collect_trace_checks(self.root))

    @property
    def may_have_checks(self) -> bool:
        """Whether the project may have checks of its own, which `extensions` loads."""
        has_hooks = self.hooks is not None or may_have_hooks(self.root, self.suites_folder)
        return has_hooks or self.settings.checks is not None

    def open_worlds(self) -> "Worlds":
        """Return worlds of all providers that a command knows, including those of the project's hooks."""
        from pytest_trace2evolve.worlds.registry import Worlds

        return Worlds(lambda: self.extensions.worlds, self.root, self.find_agent_files)

    def find_agent_files(self) -> list[Path]:
        """Return the files of the agents that settings and suites name by their import paths."""
        from pytest_trace2evolve.evidence.python_modules import locate_module

        names = {self.settings.agent, *ini_words(self.root, "t2e_agent")}
        for name in self.suite_names:
            with contextlib.suppress(SuiteError):
                names.add(self.suite(name).default_agent)
        add_to_path(self.root)
        modules = [name.partition(":")[0] for name in names if name and is_import_path(name)]
        return [path.resolve() for path in map(locate_module, modules) if path is not None]

    @property
    def suite_names(self) -> list[str]:
        """Names of all suites. A file whose name starts with an underscore is not a suite."""
        return sorted(path.stem for path in self.suites_folder.glob("*.toml") if path.name[0] != "_")

    def suite_path(self, name: str) -> Path:
        names = self.suite_names
        if name not in names:
            remedy = name_suggestion(name, names)
            if name.startswith("toolsandbox"):
                remedy = "clone ToolSandbox and run `trace2evolve import CLONE --format toolsandbox`"
            raise SuiteError(f"unknown suite {name!r} in {self.suites_folder}; {remedy}")
        return self._path_of(name)

    def _path_of(self, suite: str) -> Path:
        return self.suites_folder / f"{suite}.toml"

    @cached_property
    def settings(self) -> ToolSettings:
        """The settings of `pyproject.toml`. Raises `ConfigError` if one is invalid."""
        return read_tool_settings(self.root)

    def suite(self, name: str) -> Suite:
        return read_suite(
            self.suite_path(name),
            self.splits,
            default_world=self.settings.world,
            read_task_splits=lambda file: self._splits_of_tasks(name, file),
        )

    def _splits_of_tasks(self, suite: str, file: str) -> list[str]:
        """Return the splits that the written tasks of a file name, in the order of the registry."""
        split_names = {task.split or DEFAULT_TASK_SPLIT for task in self._written_tasks(suite, file)}
        return [
            *(name for name in self.splits if name in split_names),
            *sorted(split_names - self.splits.keys()),
        ]

    def _written_tasks(self, suite: str, file: str) -> "list[WrittenTask]":
        from pytest_trace2evolve.cases.written import read_written_tasks

        try:
            return read_written_tasks(self.resolve_path(file))
        except CaseError as error:
            raise SuiteError(f"{self._path_of(suite)}: {error}") from None

    def world(self, suite: Suite, worlds: "Worlds") -> "World":
        """Return the world of a suite, with the cases and the written tasks of the suite's files."""
        files = tuple(
            self.tasks_root / name
            for name in (
                *(spec.cases for spec in suite.case_splits.values()),
                *dict.fromkeys(spec.tasks for spec in suite.task_splits.values()),
            )
        )
        if not files:
            return worlds.open(suite.provider, suite.domain)
        return worlds.open_extended(suite.provider, suite.domain, files, lambda: self._cases(suite, worlds))

    def _cases(self, suite: Suite, worlds: "Worlds") -> "dict[str, list[Task]]":
        """Read the tasks of a suite's files, and check that no id and no case occurs twice."""
        from pytest_trace2evolve.cases.case import read_cases

        path = self._path_of(suite.name)
        ids = dict.fromkeys(worlds.open(suite.provider, suite.domain).tasks(), suite.domain)
        digests: dict[str, str] = {}
        split_of: dict[Content, str] = {}
        tasks_by_split: dict[str, list[Task]] = {}
        for split, spec in suite.case_splits.items():
            try:
                cases = read_cases(self.resolve_path(spec.cases))
            except CaseError as error:
                raise SuiteError(f"{path}: split {split!r}: {error}") from None
            for case in cases:
                owner = ids.get(case.id) or digests.get(case.digest)
                if owner is not None:
                    raise SuiteError(
                        f"{path}: split {split!r}: case {case.id!r} of {spec.cases} is also in {owner}; "
                        "a task belongs to one split"
                    )
                ids[case.id] = digests[case.digest] = spec.cases
            for content in dict.fromkeys(case.script.content for case in cases):
                self._check_content(path, split, content, split_of)
            tasks_by_split[spec.split] = [case.task for case in cases]
        for split, task_file in suite.task_splits.items():
            tasks_by_split[task_file.world_split] = self._tasks_of_file(suite, split, task_file, ids)
        return tasks_by_split

    def _tasks_of_file(
        self, suite: Suite, split: str, spec: TaskFile, owners: dict[str, str]
    ) -> "list[Task]":
        """Return the written tasks of one split, and add their ids with their file to `owners`."""
        path = self._path_of(suite.name)
        tasks = []
        for task in self._written_tasks(suite.name, spec.tasks):
            if spec.split is None and task.split not in (None, split):
                raise SuiteError(
                    f"{path}: split {split!r}: task {task.id!r} of {spec.tasks} says that its split is "
                    f"{task.split!r}; remove one of the two"
                )
            if spec.split is not None and (task.split or DEFAULT_TASK_SPLIT) != spec.split:
                continue
            if task.id in owners:
                raise SuiteError(
                    f"{path}: split {split!r}: task {task.id!r} of {spec.tasks} is also in "
                    f"{owners[task.id]}; a task belongs to one split"
                )
            owners[task.id] = spec.tasks
            tasks.append(task.to_task())
        return tasks

    def _check_content(
        self, path: Path, split: str, content: "Content", split_of: "dict[Content, str]"
    ) -> None:
        """Check that a split to learn from shares no content with a split of any other role.

        `split_of` maps each content to the first split that holds it; a new content is added.
        """
        first_split = split_of.setdefault(content, split)
        roles = {self.splits[first_split].role, self.splits[split].role}
        if Role.REPORT in roles and len(roles) > 1:
            raise SuiteError(
                f"{path}: splits {first_split!r} and {split!r} both contain cases of {content.value} "
                "content, but "
                "a split to learn from must not share its content with another split"
            )

    def resolve_path(self, name: str) -> Path:
        """Return the path of a file that is named relative to the project's root.

        Raises:
            CaseError: the file lies outside of the root.
        """
        path = self.tasks_root / name
        if Path(name).is_absolute() or not is_inside(path, self.root):
            raise CaseError(f"{name}: is outside {self.root}; name a file of cases relative to it")
        return path

    @cached_property
    def lock(self) -> Lock:
        if not os.path.lexists(self.lock_path):
            return Lock()
        return parse_lock(read_text(self.lock_path, LockError, max_bytes=MAX_RECORD_BYTES), self.lock_path)

    def suite_lock(self, suite: Suite, worlds: "Worlds") -> SuiteLock:
        """Return a suite's lock after comparing it with the suite's file.

        The lock is not compared with the world; `verify_world` does that.

        Raises:
            LockError: the suite is not locked, or its file was edited after it was locked; the message
                names the change.
        """
        lock = self.lock.suites.get(suite.name)
        path = self._path_of(suite.name)
        if lock is None:
            raise LockError(
                f"{path}: not in {self.lock_path.name}; run 'trace2evolve lock' and commit the result"
            )
        if lock.definition != suite.definition:
            self.verify_world(suite, lock, worlds)
            raise LockError(f"{path}: its settings changed since {LOCK_NAME} was written; {RENEW_REMEDY}")
        return lock

    def verify_world(self, suite: Suite, suite_lock: SuiteLock, worlds: "Worlds") -> None:
        """Compare a suite's lock with its world.

        Raises:
            LockError: a task, the policy, a tool, the data or the scorer changed; the message names the
                change.
        """
        verify_lock(self._path_of(suite.name), suite_lock, self.current_lock(suite, worlds))

    def current_lock(self, suite: Suite, worlds: "Worlds") -> SuiteLock:
        world, code = self.world(suite, worlds), worlds.code(suite.provider, suite.domain)
        return lock_suite(suite, world, self._path_of(suite.name), SCORER_VERSION, code)

    def renew_lock(self, worlds: "Worlds", names: Sequence[str] = ()) -> Lock:
        """Lock the suites `names` again (all suites if empty). Other suites keep their locks."""
        all_names = self.suite_names
        for name in names:
            self.suite_path(name)
        kept_locks = (
            {} if not names else {name: lock for name, lock in self.lock.suites.items() if name in all_names}
        )
        new_locks = {name: self.current_lock(self.suite(name), worlds) for name in names or all_names}
        lock = Lock(suites=kept_locks | new_locks)
        write_atomic(self.lock_path, render_lock(lock))
        return lock

    def baseline_path(self, suite: str, name: str) -> Path:
        return self.baselines_folder / suite / f"{name}.json"

    def baseline_files(self, suite: str | None = None) -> dict[str, Path]:
        """Return the files of saved baselines by name: `desk/v0`, and `v0` if only one suite has it.

        Args:
            suite: The suite whose baselines need no suite in their names; None for those of a single suite.
        """
        paths = sorted(self.baselines_folder.glob("*/*.json"))
        counts = Counter(path.stem for path in paths)
        return {f"{path.parent.name}/{path.stem}": path for path in paths} | {
            path.stem: path
            for path in paths
            if (path.parent.name == suite if suite else counts[path.stem] == 1)
        }

    def baseline_names(self, suite: str) -> list[str]:
        return sorted(path.stem for path in (self.baselines_folder / suite).glob("*.json"))
