"""A world with tasks from elsewhere beside its own: synthetic cases of a project's files."""

from collections.abc import Iterator, Mapping, Sequence

from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolSchema, World, WorldSession, rules_of
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Task


class _Tasks(Mapping[str, Task]):
    """Two mappings of tasks as one. A world's own may be validated only when asked for, one by one."""

    def __init__(self, own: Mapping[str, Task], further: Mapping[str, Task]) -> None:
        self._own, self._further = own, further

    def __getitem__(self, task_id: str) -> Task:
        found = self._further.get(task_id)
        return self._own[task_id] if found is None else found

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._further

    def __len__(self) -> int:
        return len(self._own) + len(self._further)


class ExtendedWorld:
    """A world whose tasks and splits are those of another one and further ones; all else is the other's.

    Args:
        world: The other one.
        further: Tasks by the name of their split; no id occurs twice, nor among the other world's.
    """

    def __init__(self, world: World, further: Mapping[str, Sequence[Task]]) -> None:
        self._world = world
        self.provider = world.provider
        self.domain = world.domain
        named = {task.id: task for tasks in further.values() for task in tasks}
        self._tasks = _Tasks(world.tasks(), named)
        self._splits = {name: [task.id for task in tasks] for name, tasks in further.items()}

    def tasks(self) -> Mapping[str, Task]:
        """Every task by its id, the other world's first."""
        return self._tasks

    def splits(self) -> Mapping[str, Sequence[str]]:
        """The other world's splits and the further ones: name to task ids."""
        return {**self._world.splits(), **self._splits}

    def policy(self, *, solo: bool = False) -> str:
        """The other world's policy."""
        return self._world.policy(solo=solo)

    def guidelines(self) -> str:
        """The other world's guidelines of the user simulator."""
        return self._world.guidelines()

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The other world's tools of one side."""
        return self._world.tools(requestor)

    def tool_types(self) -> Mapping[str, ToolType]:
        """What each tool does."""
        return self._world.tool_types()

    def has_tool(self, name: str) -> bool:
        """Whether the agent or the user can call a tool of this name."""
        return self._world.has_tool(name)

    def changes_state(self, name: str) -> bool:
        """Whether a tool can change a database."""
        return self._world.changes_state(name)

    def open(self, *, solo: bool = False) -> WorldSession:
        """A fresh session of the other world."""
        return self._world.open(solo=solo)

    def data_digest(self) -> str:
        """Digest of the other world's initial databases."""
        return self._world.data_digest()

    def rules(self) -> Rules | None:
        """The other world's rules."""
        return rules_of(self._world)

    def version(self) -> str:
        """Version of the package that carries the other world."""
        return self._world.version()
