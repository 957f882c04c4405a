"""The lock: digests of everything in a suite that must be equal on both sides of a comparison."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from pytest_trace2evolve.errors import LockError
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.evidence import Code, LockParts, code_differences
from pytest_trace2evolve.records.task_revision import revision_difference
from pytest_trace2evolve.utils.canonical import canonical_json, digest, digest_text
from pytest_trace2evolve.utils.reading import convert_failures, first_problem, parse_json

if TYPE_CHECKING:
    from pytest_trace2evolve.records.protocols import World

LOCK_NAME = "suites.lock"
LOCK_SCHEMA = 1
RENEW_REMEDY = "run 'trace2evolve lock' if the change is intended"


class SuiteLock(Record):
    """The locked content of a suite: digests of its tasks by split, and digests of their world.

    `provider_version` is for information only. `code` identifies the implementation of the world's tools,
    and `task_revision` the revision of the benchmark's tasks; older locks have neither. None of the three is
    part of `digest`.
    """

    definition: str
    provider: str
    provider_version: str
    domain: str
    scorer_version: int
    policy: str
    tools: str
    data: str
    code: Code | None = None
    task_revision: str | None = None
    splits: dict[str, dict[str, str]]

    @property
    def digest(self) -> str:
        """Identifies the suite's content. Evidence records this digest."""
        return digest(self.model_dump(mode="json", exclude={"provider_version", "code", "task_revision"}))

    @property
    def parts(self) -> LockParts:
        """The digests that evidence records besides `digest`, so that a difference can be named."""
        return LockParts(policy=self.policy, tools=self.tools, data=self.data)

    @property
    def tasks(self) -> dict[str, str]:
        """Digests of all tasks by id."""
        return {task_id: value for tasks in self.splits.values() for task_id, value in tasks.items()}


class Lock(Record):
    """`suites.lock`: every suite of a folder."""

    schema_version: int = LOCK_SCHEMA
    suites: dict[str, SuiteLock] = Field(default_factory=dict)


def lock_suite(
    suite: Suite, world: "World", path: Path, scorer_version: int, code: Code | None = None
) -> SuiteLock:
    """Compute the lock of a suite from its current file, its world and the code of the world's tools."""
    splits = suite.resolve(world, path)
    tasks = world.tasks()
    revision = getattr(world, "task_revision", None)
    tools = {
        side: [tool.model_dump(mode="json") for tool in world.tools(side)] for side in ("assistant", "user")
    }
    return SuiteLock(
        definition=suite.definition,
        provider=suite.provider,
        provider_version=world.version(),
        domain=suite.domain,
        scorer_version=scorer_version,
        policy=digest_text(world.policy(solo=suite.solo)) if suite.is_locked("policy") else "",
        tools=digest(tools if suite.is_locked("tools") else _without_descriptions(tools)),
        data=world.data_digest(),
        code=code,
        task_revision=None if revision is None or suite.is_scripted else revision(),
        splits={
            split: {task_id: tasks[task_id].digest_in(solo=suite.solo) for task_id in ids}
            for split, ids in splits.items()
        },
    )


def _without_descriptions(value: Any) -> Any:
    """Schemas of tools without the descriptions that a model reads."""
    if isinstance(value, dict):
        # A parameter may be named "description"; its value is a schema, not a text.
        return {
            key: _without_descriptions(item)
            for key, item in value.items()
            if not (key == "description" and isinstance(item, str))
        }
    if isinstance(value, list):
        return [_without_descriptions(item) for item in value]
    return value


def lock_differences(saved_lock: SuiteLock, current_lock: SuiteLock) -> Iterator[str]:
    """Yield each difference between the lock and the current state as a phrase, tasks first."""
    revisions = saved_lock.task_revision, current_lock.task_revision
    if text := revision_difference(*revisions, "changed from {!r} to {!r}"):
        yield f"its {text}"
    for split in sorted(saved_lock.splits.keys() | current_lock.splits.keys()):
        before, after = saved_lock.splits.get(split, {}), current_lock.splits.get(split, {})
        for task_id in after:
            if task_id not in before:
                yield f"task {task_id!r} was added to split {split!r}"
            elif after[task_id] != before[task_id]:
                yield f"the content of task {task_id!r} in split {split!r} changed"
        for task_id in before:
            if task_id not in after:
                yield f"task {task_id!r} was removed from split {split!r}"
    for field in ("provider", "domain", "scorer_version", "policy", "tools", "data"):
        old, new = getattr(saved_lock, field), getattr(current_lock, field)
        if old != new:
            yield f"its {field.replace('_', ' ')} changed from {old} to {new}"
    yield from _code_differences(saved_lock.code, current_lock.code)
    if saved_lock.definition != current_lock.definition:
        yield "its settings changed"


def _code_differences(old: Code | None, new: Code | None) -> Iterator[str]:
    """Yield a phrase if the code differs.

    Versions of distributions are not compared, because machines that share a lock may differ in them.
    """
    if old is None or new is None:
        return
    if changed_names := list(
        code_differences(*(code.model_copy(update={"distributions": {}}) for code in (old, new)))
    ):
        yield f"the implementation of its tools changed ({', '.join(changed_names)})"
    elif new.unknown != old.unknown:
        reason = (
            f"it cannot be identified: {new.unknown}" if new.unknown else "it could not be identified before"
        )
        yield f"the implementation of its tools differs from that of the lock ({reason})"


def verify_lock(path: Path, saved_lock: SuiteLock, current_lock: SuiteLock) -> None:
    """Compare a suite with its lock.

    Raises:
        LockError: they differ; the message names the file, the first changes and the remedy.
    """
    differences = list(lock_differences(saved_lock, current_lock))
    if not differences:
        return
    more_text = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    versions = ""
    if saved_lock.provider_version != current_lock.provider_version:
        versions = (
            f" ({current_lock.provider} was {saved_lock.provider_version} and is "
            f"{current_lock.provider_version})"
        )
    raise LockError(
        f"{path}: {'; '.join(differences[:3])}{more_text} since {LOCK_NAME} was written{versions}; "
        f"{RENEW_REMEDY}"
    )


def parse_lock(text: str, path: Path) -> Lock:
    """Parse the text of a lock file."""
    with convert_failures(path, LockError, f"restore it or {RENEW_REMEDY}"):
        record = parse_json(text, require_unique=True, allow_nul=False)
    version = record.get("schema_version") if isinstance(record, dict) else LOCK_SCHEMA
    if version != LOCK_SCHEMA:
        raise LockError(f"{path}: has format {version}, but this version reads format {LOCK_SCHEMA}")
    try:
        return Lock.model_validate(record)
    except ValidationError as error:
        raise LockError(f"{path}: damaged ({first_problem(error)}); restore it or {RENEW_REMEDY}") from None


def render_lock(lock: Lock) -> str:
    """Render the text of a lock file. Each task has its own line, so its change is one line of a diff."""
    blocks = []
    for name, suite in sorted(lock.suites.items()):
        excluded = {name for name in ("code", "task_revision") if getattr(suite, name) is None}
        header = canonical_json(suite.model_dump(mode="json", exclude={"splits", *excluded}))[1:-1]
        blocks.append(f'{canonical_json(name)}:{{{header},"splits":{{\n{_render_splits(suite.splits)}\n}}}}')
    body = ",\n".join(blocks)
    return f'{{"schema_version":{lock.schema_version},"suites":{{\n{body}\n}}}}\n'


def _render_splits(splits: Mapping[str, Mapping[str, str]]) -> str:
    return ",\n".join(
        f"{canonical_json(split)}:{{\n"
        + ",\n".join(f"  {canonical_json(task)}:{canonical_json(value)}" for task, value in tasks.items())
        + "\n}"
        for split, tasks in splits.items()
    )
