"""The interfaces between packages. A class implements an interface by its methods, without inheritance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.completion import Answer, Completion, JournalEntry, Usage, provider_fields
from pytest_trace2evolve.records.message import PROVIDER_FIELDS, Message, Requestor, ToolCall
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import Check, JudgeUse, Score, ToolType
from pytest_trace2evolve.records.task import Action, Assertion, Content, InitialState, Task

if TYPE_CHECKING:
    from pytest_trace2evolve.records.environment import Reaction
    from pytest_trace2evolve.records.trace import Simulation


class ToolSchema(Record):
    """A tool as a model sees it; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolResult(Record):
    """A tool's answer, as the text that a model reads, and whether the tool raised."""

    content: str
    error: bool = False

    def to_message(self, call: ToolCall) -> Message:
        fields = provider_fields(call)
        return Message(
            role="tool",
            id=call.id,
            content=self.content,
            requestor=call.requestor,
            error=self.error,
            **({PROVIDER_FIELDS: {"id": fields["id"]}} if "id" in fields else {}),
        )


class WorldSession(Protocol):
    """A private copy of a world's databases. It is cheap to open, and no other session sees its changes."""

    def initialise(self, state: InitialState | None) -> None:
        """Merge initialization data, then run the initialization actions (not the message history)."""

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        """Call a tool as a participant does; a tool that raises gives a result with `error`."""

    def perform(self, action: Action) -> None:
        """Carry out a gold action. Its errors are ignored, and the toolkits are not synced after it."""

    def check(self, assertion: Assertion) -> bool:
        """Whether the assertion's function returns the expected value."""

    def sync(self) -> None:
        """Transfer the changes of one toolkit to the other, if the domain needs it."""

    def same_state(self, other: "WorldSession") -> bool:
        """Whether both databases equal those of another session of the same world."""


@runtime_checkable
class SupportsDatabases(Protocol):
    """A session that gives access to its databases, so that a failed trial can name the differences.

    A session without this method is only reported as different.
    """

    def databases(self) -> Mapping[str, Any]:
        """The databases by the side that owns them (`agent`, `user`): models, mappings and lists.

        The caller only reads them, and only before it uses the session again.
        """


@runtime_checkable
class SupportsComparedDatabases(Protocol):
    """A session with assertions that compare its database with an expected one."""

    def compared_databases(self, assertion: Assertion) -> tuple[Any, Any] | None:
        """The expected and the actual database of an assertion; None if the assertion compares none."""


@runtime_checkable
class SupportsSameValue(Protocol):
    """A session that compares values in its own way, for example numbers with a tolerance.

    By default, values are equal if their JSON is equal.
    """

    def is_same_value(self, expected: Any, actual: Any) -> bool:
        """Whether two values of its databases that are not both mappings or both lists are equal."""


class World(Protocol):
    """A benchmark domain of one provider."""

    provider: str
    domain: str

    def tasks(self) -> Mapping[str, Task]:
        """Every task of the domain by its id."""

    def splits(self) -> Mapping[str, Sequence[str]]:
        """The benchmark's own splits: task ids by name."""

    def policy(self, *, solo: bool = False) -> str:
        """The text that the agent must follow."""

    def guidelines(self) -> str:
        """The benchmark's instructions for a simulated user."""

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The tools of the agent or of the user."""

    def tool_types(self) -> Mapping[str, ToolType]:
        """The type of each tool of the agent and the user, by the tool's name."""

    def has_tool(self, name: str) -> bool:
        """Whether the agent or the user can call a tool of this name."""

    def changes_state(self, name: str) -> bool:
        """Whether a tool can change a database (only such calls need replaying)."""

    def open(self, *, solo: bool = False) -> WorldSession:
        """A fresh session; in solo mode the agent may call the user's tools."""

    def data_digest(self) -> str:
        """Digest of the initial databases."""

    def version(self) -> str:
        """Version of the package that contains the data."""


@runtime_checkable
class SupportsRules(Protocol):
    """A world that declares rules; a world without rules needs no such method."""

    def rules(self) -> Rules | None:
        """The rules that every agent must follow; None if this domain declares none."""


@runtime_checkable
class SupportsExpectedCalls(Protocol):
    """A world in which a call satisfies at most one expected call, and none if it raised; not τ²'s rule."""

    def has_arguments(self, name: str, arguments: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
        """Whether the arguments of a call agree with the expected ones, of which there may be fewer."""


def rules_of(world: World) -> Rules | None:
    """A world's rules; None if it declares none."""
    return world.rules() if isinstance(world, SupportsRules) else None


@runtime_checkable
class SupportsParallelCalls(Protocol):
    """A session with a rule for several calls in one message, for example that no order may fail."""

    def call_all(self, calls: Sequence[ToolCall]) -> Sequence[ToolResult]:
        """Run the calls of one message; the results are in the order of the calls."""


@runtime_checkable
class SupportsTaskTools(Protocol):
    """A world whose agent has different tools in each task."""

    def task_tools(self, task: Task) -> Sequence[ToolSchema]:
        """The agent's tools in a task, as its model sees them."""


@runtime_checkable
class SupportsScore(Protocol):
    """A world that scores simulations in its own way; not by τ²'s rules."""

    def score(self, simulation: "Simulation", task: Task) -> Score:
        """Score a simulation that ended regularly or at its step budget.

        Raises:
            TraceError, WorldError: the simulation cannot be measured.
        """


class Judge(Protocol):
    """Checks natural-language assertions on a trace."""

    def judge(self, assertions: Sequence[str], trace: Sequence[Message]) -> tuple[list[Check], JudgeUse]:
        """One check for each assertion, in order. Raises `JudgeError` if no usable answer came."""


class Model(Protocol):
    """A chat model; messages are in the API's own shape."""

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> Completion:
        """Return a completion. Raises `InfrastructureError` if no completion could be made."""


class FirstTokens(Protocol):
    """A chat model that reports the log-probabilities of the first token of its answer."""

    async def first_tokens(self, messages: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
        """The log-probabilities of the likeliest first tokens, in nats, by the tokens' text."""


class Meter(Protocol):
    """Counts the usage of models, and decides when a request may be sent."""

    async def admit(self) -> None:
        """Wait until a request may be sent. Raises if no more requests may be sent."""

    def raise_if_stopped(self) -> None:
        """Raise if no more requests may be sent."""

    def spend(self, usage: Usage) -> None:
        """Count the usage of one answer."""


class AnswerStore(Protocol):
    """A store of models' answers by their keys."""

    async def get(self, key: str) -> Answer | None:
        """Return the answer of a key; None if the store has none."""

    async def put(self, key: str, answer: Answer) -> Answer:
        """Store an answer unless the key has one already, and return the stored answer."""


class Journal(Protocol):
    """The answers of one simulation by request, each of which is taken once."""

    @property
    def is_redrawn(self) -> bool:
        """Whether answers are untaken, so that the simulation differs from the one that was begun."""

    @property
    def seconds(self) -> float:
        """The generation time of all answers that are not yet taken, in seconds."""

    def take(self, request: str) -> JournalEntry | None:
        """Take the next answer to this request; None if a model has to be asked."""

    def add(self, entry: JournalEntry) -> None:
        """Append an answer."""


class Agent(Protocol):
    """The participant that answers the user."""

    name: str

    async def respond(self, history: Sequence[Message]) -> Message:
        """The agent's next message, given all messages so far."""


class User(Protocol):
    """The participant that plays the customer. It gets the trace as the agent sees it."""

    async def respond(self, history: Sequence[Message]) -> Message:
        """The user's next message, given all messages so far."""


class Generator(Protocol):
    """Makes scenarios that reward exactly one capability, and grades traces of them.

    A scenario is a τ² task with its customer's script. `initial_state` holds its part of the database and, as
    `message_history`, the messages before the agent's turn. The gold actions are those of an expert, with the
    actions of the history first.

    All arguments and results are JSON (`Task` and `Message` by `model_dump(mode="json")`), so that a
    generator can run in another process.

    Attributes:
        capability: The capability, in snake_case.
        digest: Digest of everything that its scenarios and rewards depend on.
    """

    capability: str
    digest: str

    def scenario(self, seed: int) -> Task:
        """Return the scenario of a seed.

        Equal seeds give equal scenarios. Different seeds give scenarios that differ in substance.
        """

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        """Grade how far the capability was exercised, as one of `records.environment.GRADES`.

        Only a solved scenario gets the top grade.

        Args:
            task: The scenario.
            trace: All messages so far, including the history.
            solved: Whether the databases equal those after the gold actions, and everything required was
                said.
        """

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        """Whether no further message can raise the grade."""

    def shortcut(self, task: Task) -> Sequence[Message]:
        """The messages of an agent that lacks the capability and fails in the most likely way."""


@dataclass(frozen=True)
class Offer:
    """An environment that a project or a package offers for one capability.

    Attributes:
        make: Makes the generator for a difficulty, from 1 (easiest) to 5, and a content.
        pays: The behavior that is rewarded, in one line.
        provider: The provider of the world in which it is played.
        domain: The domain of that world.
        elsewhere: Makes the generator in a separate process; None uses a new process of this package.
        close: Ends the processes of its generators; they start again when needed.
    """

    make: Callable[[int, Content], Generator]
    pays: str
    provider: str = "trace2evolve"
    domain: str = "support"
    elsewhere: Callable[[int, Content], Generator] | None = None
    close: Callable[[], None] = lambda: None


class Environment(Protocol):
    """A seeded environment that exercises one capability with the target's own tools.

    Attributes:
        capability: The capability, in snake_case.
    """

    capability: str

    def tools(self) -> Sequence[ToolSchema]:
        """The environment's tools, which are those of the target."""

    def reset(self, seed: int) -> Sequence[Message]:
        """Begin the scenario of a seed; returns the messages before the agent's turn."""

    def step(self, message: Message) -> "Reaction":
        """Process the agent's message: make its tool calls, or let the customer answer."""

    def reward(self) -> float:
        """The reward since the last reset: one of `records.environment.GRADES`."""
