"""A world with tasks from elsewhere beside its own: synthetic cases of a project's files."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolSchema, World, WorldSession, rules_of
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Task


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
        self._further = {task.id: task for tasks in further.values() for task in tasks}
        self._splits = {name: [task.id for task in tasks] for name, tasks in further.items()}

    def tasks(self) -> Mapping[str, Task]:
        """Every task by its id, the other world's first."""
        own = self._world.tasks()
        return MappingProxyType({**own, **self._further} if own else self._further)

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
