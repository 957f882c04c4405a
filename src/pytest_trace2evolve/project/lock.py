"""The lock: digests of everything in a suite that must not change between two sides of a comparison."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from pytest_trace2evolve.errors import LockError
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.evidence import Code, LockParts, code_differences
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.utils.canonical import canonical_json, digest, digest_text
from pytest_trace2evolve.utils.reading import parse_json, problem_in, reported

LOCK_NAME = "suites.lock"
LOCK_SCHEMA = 1
RENEW = "run 'trace2evolve lock' if the change is meant"


class SuiteLock(Record):
    """The locked content of a suite: digests of its tasks by split, and digests of their world.

    `provider_version` is for information only. `code` identifies the implementation of the world's tools;
    older locks have none. Neither is part of `digest`.
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
    splits: dict[str, dict[str, str]]

    @property
    def digest(self) -> str:
        """Identifies the suite's content. Evidence records this digest."""
        return digest(self.model_dump(mode="json", exclude={"provider_version", "code"}))

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
    suite: Suite, world: World, path: Path, scorer_version: int, code: Code | None = None
) -> SuiteLock:
    """Compute the lock of a suite from its current file, its world and the code of the world's tools."""
    splits = suite.resolve(world, path)
    tasks = world.tasks()
    tools = {
        side: [tool.model_dump(mode="json") for tool in world.tools(side)] for side in ("assistant", "user")
    }
    return SuiteLock(
        definition=suite.definition,
        provider=suite.provider,
        provider_version=world.version(),
        domain=suite.domain,
        scorer_version=scorer_version,
        policy=digest_text(world.policy(solo=suite.solo)),
        tools=digest(tools),
        data=world.data_digest(),
        code=code,
        splits={
            split: {task_id: tasks[task_id].digest_in(solo=suite.solo) for task_id in ids}
            for split, ids in splits.items()
        },
    )


def changes(locked: SuiteLock, current: SuiteLock) -> Iterator[str]:
    """Yield each difference between the lock and the current state as a phrase, tasks first."""
    for split in sorted(locked.splits.keys() | current.splits.keys()):
        before, after = locked.splits.get(split, {}), current.splits.get(split, {})
        for task_id in after:
            if task_id not in before:
                yield f"task {task_id!r} was added to split {split!r}"
            elif after[task_id] != before[task_id]:
                yield f"the content of task {task_id!r} in split {split!r} changed"
        for task_id in before:
            if task_id not in after:
                yield f"task {task_id!r} was taken out of split {split!r}"
    for field in ("provider", "domain", "scorer_version", "policy", "tools", "data"):
        old, new = getattr(locked, field), getattr(current, field)
        if old != new:
            yield f"its {field.replace('_', ' ')} changed from {old} to {new}"
    yield from _code_changes(locked.code, current.code)
    if locked.definition != current.definition:
        yield "its settings changed"


def _code_changes(old: Code | None, new: Code | None) -> Iterator[str]:
    """Yield a phrase if the code differs.

    Versions of distributions are not compared, because machines that share a lock may have different ones.
    """
    if old is None or new is None:
        return
    if changed := list(
        code_differences(*(code.model_copy(update={"distributions": {}}) for code in (old, new)))
    ):
        yield f"the implementation of its tools changed ({', '.join(changed)})"
    elif new.unknown != old.unknown:
        why = (
            f"it cannot be identified: {new.unknown}" if new.unknown else "it could not be identified before"
        )
        yield f"the implementation of its tools is not that of the lock ({why})"


def verify(path: Path, locked: SuiteLock, current: SuiteLock) -> None:
    """Compare a suite with its lock.

    Raises:
        LockError: they differ; the message names the file, the first changes and the remedy.
    """
    found = list(changes(locked, current))
    if not found:
        return
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    versions = ""
    if locked.provider_version != current.provider_version:
        versions = f" ({current.provider} was {locked.provider_version} and is {current.provider_version})"
    raise LockError(f"{path}: {'; '.join(found[:3])}{more} since {LOCK_NAME} was written{versions}; {RENEW}")


def parse_lock(text: str, path: Path) -> Lock:
    """Read the text of a lock file."""
    with reported(path, LockError, f"restore it or {RENEW}"):
        record = parse_json(text, unique=True, nul=False)
    version = record.get("schema_version") if isinstance(record, dict) else LOCK_SCHEMA
    if version != LOCK_SCHEMA:
        raise LockError(f"{path}: format {version} is not {LOCK_SCHEMA}, the one this version reads")
    try:
        return Lock.model_validate(record)
    except ValidationError as error:
        raise LockError(f"{path}: damaged ({problem_in(error)}); restore it or {RENEW}") from None


def render_lock(lock: Lock) -> str:
    """Render the text of a lock file. Each task has its own line, so its change is one line of a diff."""
    blocks = []
    for name, suite in sorted(lock.suites.items()):
        absent = {"code"} if suite.code is None else set()
        head = canonical_json(suite.model_dump(mode="json", exclude={"splits", *absent}))[1:-1]
        blocks.append(f'{canonical_json(name)}:{{{head},"splits":{{\n{_rendered_splits(suite.splits)}\n}}}}')
    body = ",\n".join(blocks)
    return f'{{"schema_version":{lock.schema_version},"suites":{{\n{body}\n}}}}\n'


def _rendered_splits(splits: Mapping[str, Mapping[str, str]]) -> str:
    return ",\n".join(
        f"{canonical_json(split)}:{{\n"
        + ",\n".join(f"  {canonical_json(task)}:{canonical_json(value)}" for task, value in tasks.items())
        + "\n}"
        for split, tasks in splits.items()
    )
