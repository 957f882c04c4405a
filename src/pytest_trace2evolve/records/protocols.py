"""What rooms ask of one another: a class fits by its methods, not by its ancestors."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from pytest_trace2evolve.records.answer import Answer, JournalEntry
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.completion import Completion, Usage
from pytest_trace2evolve.records.environment import Reaction
from pytest_trace2evolve.records.message import Message, Requestor, ToolCall
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import Check, JudgeUse, ToolType
from pytest_trace2evolve.records.task import Action, Assertion, InitialState, Task


class ToolSchema(Record):
    """A tool as a model sees it; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolResult(Record):
    """What a tool answered, as the text a model reads, and whether it raised."""

    content: str
    error: bool = False

    def answering(self, call: ToolCall) -> Message:
        """The message that answers a call with this result."""
        return Message(
            role="tool", id=call.id, content=self.content, requestor=call.requestor, error=self.error
        )


class WorldSession(Protocol):
    """One private copy of a world's databases. Opening it is cheap; nothing done in it reaches another."""

    def initialise(self, state: InitialState | None) -> None:
        """Merge initialization data, then run the initialization actions (not the message history)."""

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        """Call a tool as a participant does; a tool that raises gives a result with `error`."""

    def perform(self, action: Action) -> None:
        """Carry out a gold action. Its errors are ignored and the toolkits are not synced after it."""

    def check(self, assertion: Assertion) -> bool:
        """Whether the assertion's function returns the value it must return."""

    def sync(self) -> None:
        """Carry what one toolkit did over to the other, where the domain needs it."""

    def same_state(self, other: "WorldSession") -> bool:
        """Whether both databases equal those of another session of the same world."""


class World(Protocol):
    """A benchmark domain as one provider carries it."""

    provider: str
    domain: str

    def tasks(self) -> Mapping[str, Task]:
        """Every task of the domain by its id."""

    def splits(self) -> Mapping[str, Sequence[str]]:
        """The benchmark's own splits: name to task ids."""

    def policy(self, *, solo: bool = False) -> str:
        """The text the agent must follow."""

    def guidelines(self) -> str:
        """How a simulated user is to behave: the benchmark's own text."""

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The tools offered to the agent or to the user."""

    def tool_types(self) -> Mapping[str, ToolType]:
        """What each tool of the agent and the user does."""

    def has_tool(self, name: str) -> bool:
        """Whether the agent or the user can call a tool of this name."""

    def changes_state(self, name: str) -> bool:
        """Whether a tool can change a database (only such calls need replaying)."""

    def open(self, *, solo: bool = False) -> WorldSession:
        """A fresh session; in solo mode the agent may call the user's tools."""

    def data_digest(self) -> str:
        """Digest of the initial databases."""

    def version(self) -> str:
        """Version of the package that carries the data."""


@runtime_checkable
class Ruled(Protocol):
    """A world that declares rules; one that does not needs no such method."""

    def rules(self) -> Rules | None:
        """What every agent in it must keep to; None where this domain declares nothing."""


def rules_of(world: World) -> Rules | None:
    """A world's rules; None where it declares none."""
    return world.rules() if isinstance(world, Ruled) else None


class Judge(Protocol):
    """Holds natural-language assertions against a trace."""

    def judge(self, assertions: Sequence[str], trace: Sequence[Message]) -> tuple[list[Check], JudgeUse]:
        """One check an assertion, in order. Raises `JudgeError` where no usable answer came."""


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
        """One completion. Raises `InfrastructureError` where none could be had."""


class FirstTokens(Protocol):
    """A chat model that tells how likely it would begin its answer with which token."""

    async def first_tokens(self, messages: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
        """The log-probabilities of the likeliest first tokens, in nats, by the tokens' text."""


class Meter(Protocol):
    """Counts what models use, and says when a request may be sent."""

    def admit(self) -> float:
        """Seconds to wait before a request is sent. Raises where none may be sent any more."""

    def stand(self) -> None:
        """Raise where no request may be sent any more."""

    def spend(self, usage: Usage) -> None:
        """Count one good answer."""


class Answers(Protocol):
    """Answers of models by their keys, in whatever keeps them."""

    def get(self, key: str) -> Answer | None:
        """The answer of a key; None where there is none."""

    def put(self, key: str, answer: Answer) -> Answer:
        """Keep an answer; returns what is kept, which is the first that came."""


class Journal(Protocol):
    """The answers of one simulation, in the order in which they arrived."""

    def take(self, request: str) -> JournalEntry | None:
        """The next answer, if it is one to this request; None if a model has to be asked."""

    def add(self, entry: JournalEntry) -> None:
        """Write an answer down."""


class Agent(Protocol):
    """Whoever answers the user."""

    name: str

    async def respond(self, history: Sequence[Message]) -> Message:
        """The agent's next message, given everything said so far."""


class User(Protocol):
    """Whoever plays the customer; `history` is seen from the agent's side, as a trace has it."""

    async def respond(self, history: Sequence[Message]) -> Message:
        """The user's next message, given everything said so far."""


class Generator(Protocol):
    """Makes scenarios in which exactly one capability is paid, and grades what was done in them.

    A scenario is a τ² task with its customer's script inside: `initial_state` holds its part of the database
    and, as `message_history`, what was said before the agent's turn comes; the gold actions are the
    expert's, those of the history first.

    Everything that goes in and out is JSON (`Task` and `Message` by `model_dump(mode="json")`), so that one
    can answer from another process.

    Attributes:
        capability: The capability, in snake_case.
        digest: Of everything that its scenarios and rewards depend on.
    """

    capability: str
    digest: str

    def scenario(self, seed: int) -> Task:
        """The scenario of a seed: equal for equal seeds, different in substance for others."""

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        """How far the capability was exercised: one of `records.environment.GRADES`.

        The top is for what is solved alone.

        Args:
            task: The scenario.
            trace: All that was said so far, the history included.
            solved: Whether the databases are as after the gold actions, and all was said that must be.
        """

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        """Whether nothing that may follow raises the grade: what the capability is about has happened."""

    def shortcut(self, task: Task) -> Sequence[Message]:
        """What an agent says that lacks the capability and takes the nearest wrong way; must not be paid."""


class Environment(Protocol):
    """A seeded place to exercise one capability with the target's own tools.

    Attributes:
        capability: The capability, in snake_case.
    """

    capability: str

    def tools(self) -> Sequence[ToolSchema]:
        """The tools that it has: the target's own."""

    def reset(self, seed: int) -> Sequence[Message]:
        """Begin the scenario of a seed from nothing; what was said before it is the agent's turn."""

    def step(self, message: Message) -> Reaction:
        """Take the agent's next message: its tool calls are made, or the customer answers."""

    def reward(self) -> float:
        """The reward of what was done since the last reset: one of `records.environment.GRADES`."""
