"""Suites: tasks of a world, grouped into splits by the kind of evidence. Each suite has one TOML file.

provider = "inspect_evals"
domain = "retail"

[splits]
heldout = ["100..113"]                  # ids; two dots make a range of whole numbers
discovery = { rest = "base" }           # tasks of a benchmark split that no other split here names
development = { benchmark = "test" }    # a benchmark split as it is
synthetic = { cases = "synthetic/pressure.jsonl" }    # the synthetic cases of a file, from the project's root

`estimand = "suite"` asks the gate about exactly these tasks, `estimand = "tasks"` about tasks like these.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo

from pytest_trace2evolve.errors import SuiteError, WorldError, similar_names
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.evidence import Mode
from pytest_trace2evolve.records.verdict import Estimand
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.import_path import is_import_path
from pytest_trace2evolve.utils.reading import first_problem, main_problem, read_toml

if TYPE_CHECKING:
    from pytest_trace2evolve.records.protocols import World

SPLITS_NAME = "_splits.toml"
"""The file next to the suites that defines a project's own splits."""

_ID_RANGE = re.compile(r"^(\d{1,18})\.\.(\d{1,18})$")

TrialCount = Annotated[int, Field(ge=1, le=10_000, strict=True)]
PositiveCount = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
PositiveSeconds = Annotated[float, Field(gt=0, le=1e6, strict=True)]


LockedText = Literal["policy", "tools"]
"""A text that a suite can lock: the world's policy, or the descriptions of its tools."""


class Role(StrEnum):
    """The use of a split."""

    GATE = "gate"
    DEVELOPMENT = "development"
    GUARD = "guard"
    REPORT = "report"


class Split(Record):
    """A kind of evidence. `name` is also its pytest marker, and `role` limits the gate's use of it."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    role: Role
    description: str


BUILT_IN_SPLITS = (
    Split(
        name="discovery", role=Role.REPORT, description="may be read and learned from; reported, never gated"
    ),
    Split(name="heldout", role=Role.GATE, description="decides; its traces stay unread"),
    Split(name="development", role=Role.DEVELOPMENT, description="decides if there is no heldout split"),
    Split(name="transfer", role=Role.GUARD, description="a different domain; can only discard"),
    Split(name="synthetic", role=Role.GUARD, description="generated pressure cases; can only discard"),
)


class BenchmarkSplit(Record):
    """All tasks of one of the benchmark's own splits."""

    benchmark: str


class RemainingTasks(Record):
    """The tasks of one of the benchmark's own splits that no other split of the suite contains."""

    rest: str


def _check_path(value: str, info: ValidationInfo) -> str:
    if PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts:
        raise ValueError(f"a file of {info.field_name} must be inside the project's root")
    return value


class CaseFile(Record):
    """All synthetic cases of a file, whose path is relative to the project's root."""

    cases: Annotated[str, Field(min_length=1), AfterValidator(_check_path)]

    @property
    def split(self) -> str:
        """The name of the world's split that holds these cases. No benchmark split has such a name."""
        return f"cases:{self.cases}"


class TaskFile(Record):
    """The written tasks of a file, whose path is relative to the project's root.

    Attributes:
        tasks: The file.
        split: The split whose tasks are taken; None takes all tasks of the file.
    """

    tasks: Annotated[str, Field(min_length=1), AfterValidator(_check_path)]
    split: str | None = None

    @property
    def world_split(self) -> str:
        """The name of the world's split that holds these tasks. No benchmark split has such a name."""
        return f"tasks:{self.tasks}:{self.split or ''}"


_SPLIT_FORMS: dict[str, type[Record]] = {
    "benchmark": BenchmarkSplit,
    "rest": RemainingTasks,
    "cases": CaseFile,
    "tasks": TaskFile,
}


def _parse_members(value: object) -> object:
    """Choose the form of a split, because pydantic would try all forms and report a problem of each."""
    if isinstance(value, dict) and len(value) == 1 and (form := _SPLIT_FORMS.get(next(iter(value)))):
        return form.model_validate(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if isinstance(value, BenchmarkSplit | RemainingTasks | CaseFile | TaskFile):
        return value
    raise ValueError(
        'a split must be a list of ids as text, { benchmark = "NAME" }, { rest = "NAME" }, '
        '{ cases = "FILE" } or { tasks = "FILE" }'
    )


class Suite(Record):
    """A suite as its file defines it. Its tasks are known once its world is open.

    Attributes:
        provider: The name of the world's provider, or the import path of a world of the project.
        timeout: The time limit of one simulation in seconds of wall-clock time; None sets no limit.
        solo: Whether the agent works without a user. It then reads a ticket and also has the user's tools.
        default_agent: The agent of runs that name none; the key `agent` is a shorter name for it.
        SHORT_KEYS: Keys of the file that stand for others; see `read_suite`.
        locks: The texts that are part of the benchmark. A text that is not locked belongs to the candidate.
        estimand: The tasks that the gate's verdict is about; None for the default of the suite's world.
    """

    SHORT_KEYS: ClassVar[tuple[str, ...]] = ("agent", "tasks", "world")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    provider: str
    domain: str
    description: str = ""
    trials: TrialCount = 1
    max_steps: PositiveCount = 200
    max_errors: PositiveCount = 10
    timeout: PositiveSeconds | None = None
    solo: Annotated[bool, Field(strict=True)] = False
    default_agent: str | None = None
    locks: tuple[LockedText, ...] | None = None
    estimand: Estimand | None = None
    splits: dict[
        str,
        Annotated[
            BenchmarkSplit | RemainingTasks | CaseFile | TaskFile | tuple[str, ...],
            BeforeValidator(_parse_members),
        ],
    ] = Field(min_length=1)

    @property
    def definition(self) -> str:
        """Digest of the file's settings, except those that do not change the benchmark.

        The excluded settings are the description, the default agent, the trials, and the estimand. The
        estimand is part of the policy that judges a run, so the ledger counts a run with a different one as a
        different test.
        """
        excluded = {"description", "default_agent", "trials", "estimand"}
        # Fields that were added later count only if they are set. This keeps older locks valid.
        excluded |= {name for name in ("solo", "timeout") if not getattr(self, name)}
        excluded |= {"locks"} if self.locks is None else set()
        return digest(self.model_dump(mode="json", exclude=excluded))

    def estimand_of(self, min_trials: int) -> Estimand:
        """Return the estimand of runs with at least this many trials of each task.

        By default, a world by import path is the project's own, and its tasks are exactly those that must
        keep working. The tasks of a benchmark are a sample of the tasks that matter, and so are the tasks of
        a run with single trials, because trial noise cannot be estimated from one trial.
        """
        if self.estimand is not None:
            return self.estimand
        return Estimand.SUITE if is_import_path(self.provider) and min_trials > 1 else Estimand.TASKS

    @property
    def mode(self) -> Mode:
        return Mode(self.domain, self.solo)

    @property
    def case_splits(self) -> dict[str, CaseFile]:
        return {name: spec for name, spec in self.splits.items() if isinstance(spec, CaseFile)}

    @property
    def task_splits(self) -> dict[str, TaskFile]:
        return {name: spec for name, spec in self.splits.items() if isinstance(spec, TaskFile)}

    @property
    def is_scripted(self) -> bool:
        """Whether every task is a synthetic case or a written task, whose user has a script."""
        return len(self.case_splits) + len(self.task_splits) == len(self.splits)

    def is_locked(self, text: LockedText) -> bool:
        """Whether a text belongs to the benchmark. By default, the texts of a project's own world do not."""
        if self.locks is None:
            return not is_import_path(self.provider)
        return text in self.locks

    def resolve(self, world: "World", path: Path) -> dict[str, list[str]]:
        """Return the task ids of each split, in the order of the file.

        Raises:
            SuiteError: the world lacks a task or a benchmark split, a task is in two splits, or a split is
                empty; in a solo suite, the world has no solo mode or a task cannot be run in it.
        """
        members = {
            name: _split_members(spec, name, world, path)
            for name, spec in self.splits.items()
            if not isinstance(spec, RemainingTasks)
        }
        owners: dict[str, str] = {}
        for name, ids in members.items():
            for task_id in ids:
                if task_id in owners:
                    places = (
                        f"{owners[task_id]!r} and {name!r}" if owners[task_id] != name else f"{name!r} twice"
                    )
                    raise SuiteError(f"{path}: task {task_id!r} is in {places}; a task belongs to one split")
                owners[task_id] = name
        for name, spec in self.splits.items():
            if isinstance(spec, RemainingTasks):
                benchmark_ids = _benchmark_tasks(spec.rest, name, world, path)
                members[name] = [task_id for task_id in benchmark_ids if task_id not in owners]
                owners |= dict.fromkeys(members[name], name)
        for name in self.splits:
            if not members[name]:
                raise SuiteError(f"{path}: split {name!r} contains no tasks")
        if self.solo:
            _check_solo_world(world, path)
            for name, ids in members.items():
                _check_solo_tasks(ids, name, world, path)
        return {name: members[name] for name in self.splits}


def read_suite(
    path: Path,
    splits: Mapping[str, Split],
    *,
    default_world: str | None = None,
    read_task_splits: Callable[[str], Sequence[str]] | None = None,
) -> Suite:
    """Read one suite's file.

    Args:
        path: The TOML file; its stem is the suite's name.
        splits: The registry of splits; a suite may use only these.
        default_world: The import path of the world of a suite that names none.
        read_task_splits: Returns the splits that the tasks of a file name, for a suite with the key `tasks`.
    """
    settings = _expand_short_keys(read_toml(path, SuiteError), path, default_world, read_task_splits)
    if settings.get("name", path.stem) != path.stem:
        raise SuiteError(f"{path}: a suite is named after its file; remove 'name' or rename the file")
    try:
        suite = Suite.model_validate({**settings, "name": path.stem})
    except ValidationError as error:
        problem = main_problem(error)
        if problem["type"] == "missing" and problem["loc"] == ("provider",):
            raise SuiteError(
                f'{path}: no world is named; add world = "module:name" to [tool.trace2evolve] in '
                "pyproject.toml, or to this file"
            ) from None
        raise SuiteError(f"{path}: {first_problem(error)}") from None
    for name in suite.splits:
        if name not in splits:
            raise SuiteError(
                f"{path}: unknown split {name!r}; known are {', '.join(splits)}; define others in "
                f"{SPLITS_NAME}"
            )
    return suite


def _expand_short_keys(
    settings: dict[str, Any],
    path: Path,
    default_world: str | None,
    read_task_splits: Callable[[str], Sequence[str]] | None,
) -> dict[str, Any]:
    """Replace the keys `world`, `agent` and `tasks` of a suite's file by those that they stand for."""
    settings = dict(settings)
    world = settings.pop("world", None)
    if world is None and "provider" not in settings:
        world = default_world
    if world is not None:
        if "provider" in settings:
            raise SuiteError(f"{path}: 'world' and 'provider' name the same thing; remove one")
        if not isinstance(world, str) or not is_import_path(world):
            raise SuiteError(f"{path}: world {world!r} is not an import path such as 'app.hotel:world'")
        module, _, name = world.partition(":")
        # `hotel` for app.hotel:world, and `desk` for desk.world:world.
        names = [part for part in (*module.split("."), name) if part != "world"]
        domain = names[-1] if names else name
        settings = {"domain": domain, **settings, "provider": world}
    if "agent" in settings:
        if "default_agent" in settings:
            raise SuiteError(f"{path}: 'agent' and 'default_agent' name the same thing; remove one")
        settings["default_agent"] = settings.pop("agent")
    tasks = settings.pop("tasks", None)
    if tasks is not None and read_task_splits is not None:
        if not isinstance(tasks, str):
            raise SuiteError(f"{path}: tasks is a {type(tasks).__name__}, not the path of a file")
        task_splits = {split: TaskFile(tasks=tasks, split=split) for split in read_task_splits(tasks)}
        splits = settings.get("splits", {})
        if not isinstance(splits, dict):
            raise SuiteError(f"{path}: splits is a {type(splits).__name__}, not a table")
        if repeated := sorted(splits.keys() & task_splits.keys()):
            raise SuiteError(
                f"{path}: split {repeated[0]!r} is in [splits] and in {tasks}; remove it from one of them"
            )
        settings["splits"] = {**splits, **task_splits}
    return settings


def split_registry(project_splits: Sequence[Split] = ()) -> dict[str, Split]:
    """The known splits by name: the built-in ones and those that a project adds."""
    registry = {split.name: split for split in BUILT_IN_SPLITS}
    for split in project_splits:
        if split.name in registry:
            raise SuiteError(f"split {split.name!r} already exists; choose a different name")
        registry[split.name] = split
    return registry


def read_splits(path: Path) -> tuple[Split, ...]:
    """Read a project's own splits from `_splits.toml`: one table each, with `role` and `description`."""
    if not os.path.lexists(path):
        return ()
    splits = []
    for name, table in read_toml(path, SuiteError).items():
        fields = dict(table) if isinstance(table, dict) else {}
        if "name" in fields:
            fields["a second name"] = fields.pop("name")  # rejected like any other unknown field
        try:
            splits.append(Split.model_validate({**fields, "name": name}))
        except ValidationError as error:
            raise SuiteError(
                f"{path}: split {name!r}: {first_problem(error)}; roles are {', '.join(Role)}"
            ) from None
    return tuple(splits)


def _check_solo_world(world: "World", path: Path) -> None:
    try:
        world.policy(solo=True)
    except WorldError as error:
        raise SuiteError(f"{path}: 'solo' is set, but {error}; remove 'solo'") from None
    agent_tools, user_tools = ({tool.name for tool in world.tools(side)} for side in ("assistant", "user"))
    if shared_names := sorted(agent_tools & user_tools):
        raise SuiteError(
            f"{path}: 'solo' is set, but the agent and the user of {world.domain} both have a tool "
            f"{shared_names[0]!r}; "
            "remove 'solo'"
        )


def _check_solo_tasks(ids: Sequence[str], split: str, world: "World", path: Path) -> None:
    """Check that tau2's solo agent would accept the tasks of a split."""
    for task_id in ids:
        task = world.tasks()[task_id]
        talk_flags = (
            message.role == "user" or (message.role == "assistant" and not message.tool_calls)
            for message in task.history
        )
        problem = ""
        if not task.ticket:
            problem = "has no ticket for the agent to work on"
        elif any(talk_flags):
            problem = "starts in the middle of a conversation with the user"
        elif task.initial_state is None and not task.actions:
            problem = "has no gold actions"
        if problem:
            raise SuiteError(
                f"{path}: 'solo' is set, but task {task_id!r} of split {split!r} {problem}; "
                "remove it from the split or remove 'solo'"
            )


def _split_members(
    spec: BenchmarkSplit | CaseFile | TaskFile | tuple[str, ...], split: str, world: "World", path: Path
) -> list[str]:
    if isinstance(spec, TaskFile):
        return list(world.splits()[spec.world_split])
    if isinstance(spec, CaseFile):
        return list(world.splits()[spec.split])  # the world of a suite has each of its case files as a split
    if isinstance(spec, BenchmarkSplit):
        return _benchmark_tasks(spec.benchmark, split, world, path)
    ids: list[str] = []
    for entry in spec:
        range_match = _ID_RANGE.match(entry)
        if range_match is None:
            ids.append(entry)
            continue
        first, last = int(range_match.group(1)), int(range_match.group(2))
        if last < first:
            raise SuiteError(f"{path}: split {split!r} has the empty range {entry!r}")
        if last - first >= len(world.tasks()):
            raise SuiteError(
                f"{path}: split {split!r} has the range {entry!r}, but {world.domain} has only "
                f"{len(world.tasks())} tasks"
            )
        ids.extend(str(number) for number in range(first, last + 1))
    for task_id in ids:
        if task_id not in world.tasks():
            suggestions = similar_names(task_id, world.tasks(), max_names=1, cutoff=0.6)
            remedy = f"; did you mean {suggestions[0]!r}?" if suggestions else ""
            raise SuiteError(
                f"{path}: split {split!r} names task {task_id!r}, which {world.domain} does not have{remedy}"
            )
    return ids


def _benchmark_tasks(name: str, split: str, world: "World", path: Path) -> list[str]:
    available = world.splits()
    if name not in available:
        names = ", ".join(available)
        raise SuiteError(
            f"{path}: split {split!r} asks for benchmark split {name!r}; {world.domain} has {names or 'none'}"
        )
    return list(available[name])
