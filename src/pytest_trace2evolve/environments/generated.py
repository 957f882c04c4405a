"""Generators that a model wrote. Their functions run in the sandbox; what comes out is checked here.

A module says what a scenario holds, and grades what was done in it. It plays nothing itself: the tools, their
results and the end state are the target's own, so no module can make a look-alike of it.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from pydantic import Field, ValidationError, model_validator

from pytest_trace2evolve.environments.sandbox.box import Sandbox
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.environment import GRADES
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.task import SCRIPT, Content, Replies, Request, Said, Script, Slot, Task, Turn
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.reading import complaint

STEPS_MOST = 40
"""Messages of a history or of a shortcut, and calls of an expert in a turn."""

SEED = "-seed-"
"""What stands before the seed in the id of a scenario."""

LETTERS_MOST, DEPTH_MOST = 200_000, 40
"""How long and how deep a scenario may be: what it brings is read by us, outside of the sandbox."""

KEPT = 256
"""Scenarios that a generator remembers: a group of rollouts asks for the same one many times."""


class Called(Record):
    """A tool call."""

    name: str
    arguments: dict[str, Any]


class Step(Record):
    """One message: of the agent (`agent` or `call`) or of the customer."""

    agent: Said | None = None
    customer: Said | None = None
    call: Called | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "Step":
        if sum(one is not None for one in (self.agent, self.customer, self.call)) != 1:
            raise ValueError("a step is one of agent, customer and call")
        return self


class GeneratedTurn(Record):
    """What the customer brings up at one time, and what the expert calls for it.

    Attributes:
        says: How.
        calls: The expert's tool calls, in order; `done` of them stand in the history.
        about: Ids of records that an agent may name when it asks for a yes.
        details: What the customer answers when asked for it.
        answer: Text that the agent must say; empty where something is to be done.
        refused: The policy does not allow it.
    """

    says: Said
    calls: Annotated[tuple[Called, ...], Field(max_length=STEPS_MOST)] = ()
    about: tuple[str, ...] = ()
    details: dict[Slot, Said] = Field(default_factory=dict)
    answer: str = ""
    refused: bool = False


class GeneratedScenario(Record):
    """What a module's `scenario` returns.

    Attributes:
        tables: The part of the database that the scenario needs, in the target's own shape.
        identity: How the customer identifies themselves.
        turns: What they want.
        history: What was said before it is the agent's turn; results of tools are filled in.
        goal: What the module wants to know of the scenario when it grades; it goes with each question.
    """

    tables: dict[str, dict[str, Any]]
    identity: dict[Slot, Said]
    turns: Annotated[tuple[GeneratedTurn, ...], Field(min_length=1, max_length=6)]
    history: Annotated[tuple[Step, ...], Field(max_length=STEPS_MOST)] = ()
    goal: dict[str, Any] = Field(default_factory=dict)


class Box:
    """A module's sandbox, started when it is first asked.

    Args:
        source: The module's source.
        name: What to call it in errors.
    """

    def __init__(self, source: str, name: str) -> None:
        self._source, self._name = source, name
        self._lock = threading.Lock()
        self._box: Sandbox | None = None

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one of the module's functions; see `Sandbox.call`."""
        with self._lock:
            if self._box is None:
                self._box = Sandbox(self._source, self._name)
            box = self._box
        return box.call(function, *arguments)

    def close(self) -> None:
        """End its process; a further call starts another."""
        with self._lock:
            if self._box is not None:
                self._box.close()
                self._box = None


class Functions(Protocol):
    """Whoever calls a module's functions."""

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one, and return its answer, which is JSON."""


DIFFICULTIES = range(1, 6)
"""What a module's `scenario` is asked for."""


class GeneratedGenerator:
    """A generator whose scenarios and grades come from a sandboxed module; see `Generator`.

    Args:
        capability: The capability.
        source: The module's source.
        difficulty: Handed to the module's `scenario`.
        content: What is trained on, or what only measures: they are asked for with even and with odd seeds,
            since a module has no held-out words.
        world: The target; fills in what its tools answer in a history.
        replies: How the customer says what every customer says.
        box: Calls the module's functions.

    Raises:
        GeneratorError: there is no such difficulty.
    """

    def __init__(
        self,
        capability: str,
        source: str,
        difficulty: int,
        content: Content,
        world: World,
        replies: Replies,
        box: Functions,
    ) -> None:
        if difficulty not in DIFFICULTIES:
            raise GeneratorError(
                f"environment {capability!r}: difficulty {difficulty}: must be from {DIFFICULTIES[0]} to "
                f"{DIFFICULTIES[-1]}"
            )
        self.capability = capability
        self.difficulty = difficulty
        self.content = content
        self.digest = digest(["generated", capability, difficulty, content.value, source])
        self._world = world
        self._replies = replies
        self._box = box
        self._goals: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._tasks: OrderedDict[int, Task] = OrderedDict()

    def scenario(self, seed: int) -> Task:
        """The scenario of a seed.

        Raises:
            GeneratorError: what the module returns is no scenario.
            SandboxError: the module failed or was stopped.
        """
        if seed in self._tasks:
            return self._tasks[seed]
        asked = 2 * seed + (self.content is Content.HELDOUT)
        raw = self._box.call("scenario", asked, self.difficulty)
        _bounded(raw, f"environment {self.capability!r}: scenario({asked}, {self.difficulty})")
        try:
            found = GeneratedScenario.model_validate(raw)
        except ValidationError as error:
            raise GeneratorError(
                f"environment {self.capability!r}: scenario({asked}, {self.difficulty}) is none: "
                f"{complaint(error, 'scenario')}"
            ) from None
        task = self._task(found, seed)
        self._goals[task.id], self._tasks[seed] = found.goal, task
        for kept in (self._goals, self._tasks):
            if len(kept) > KEPT:
                kept.popitem(last=False)
        return task

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        """How far the capability was exercised.

        Raises:
            GeneratorError: the module's grade is none of `GRADES`.
            SandboxError: the module failed or was stopped.
        """
        grade = self._box.call("grade", self._goal(task), told(trace), solved)
        if isinstance(grade, bool) or grade not in GRADES:
            raise GeneratorError(
                f"environment {self.capability!r}: a reward of {grade!r}; "
                f"one of {', '.join(map(str, GRADES))} is wanted"
            )
        return float(grade)

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        """Never: asking after every step would cost more than to play on until the top or the end."""
        return False

    def shortcut(self, task: Task) -> Sequence[Message]:
        """What an agent says that takes the nearest wrong way.

        Raises:
            GeneratorError: what the module returns is no list of steps of the agent.
            SandboxError: the module failed or was stopped.
        """
        raw = self._box.call("shortcut", self._goal(task))
        try:
            steps = [Step.model_validate(one) for one in (raw if isinstance(raw, list) else [raw])]
        except ValidationError as error:
            raise GeneratorError(
                f"environment {self.capability!r}: shortcut is no list of steps: {complaint(error, 'step')}"
            ) from None
        if any(one.customer is not None for one in steps):
            raise GeneratorError(f"environment {self.capability!r}: in shortcut the customer speaks")
        return [_message(one, place) for place, one in enumerate(steps[:STEPS_MOST])]

    def _goal(self, task: Task) -> Mapping[str, Any]:
        """What the module said of a scenario for itself."""
        if task.id not in self._goals:
            # Forgotten meanwhile: its seed is what the id ends with.
            seed = int(task.id.rpartition(SEED)[2])
            self._tasks.pop(seed, None)
            self.scenario(seed)
        return self._goals[task.id]

    def _task(self, found: GeneratedScenario, seed: int) -> Task:
        script = Script(
            family=self.capability,
            content=self.content,
            identity=found.identity,
            turns=tuple(_turn(one) for one in found.turns),
            replies=self._replies,
        )
        calls = [call for turn in found.turns for call in turn.calls]
        state: dict[str, Any] = {
            "initialization_data": {"agent_data": found.tables, "user_data": None},
            "initialization_actions": None,
            "message_history": None,
        }
        record: dict[str, Any] = {
            "id": f"{self.capability}-generated-{self.content.value}-{self.difficulty}{SEED}{seed}",
            "description": {"purpose": self.capability.replace("_", " "), "relevant_policies": None},
            "user_scenario": {
                "persona": None,
                "instructions": {
                    "domain": self._world.domain,
                    "reason_for_call": found.turns[0].says,
                    "known_info": " ".join(found.identity.values()),
                    "unknown_info": "Anything that is not written here.",
                    "task_instructions": "\n".join(one.says for one in found.turns[1:]),
                },
                SCRIPT: script.model_dump(mode="json"),
            },
            "initial_state": state,
            "evaluation_criteria": {
                "actions": [
                    {"action_id": str(place), "name": one.name, "arguments": one.arguments}
                    for place, one in enumerate(calls)
                ],
                "env_assertions": None,
                "communicate_info": [one.answer for one in found.turns if one.answer],
                "nl_assertions": None,
                "reward_basis": ["DB", "COMMUNICATE"],
            },
        }
        if found.history:
            opened = Task.model_validate(record)
            state["message_history"] = [
                one.model_dump(mode="json", exclude_none=True) for one in self._played(opened, found.history)
            ]
        return Task.model_validate(record)

    def _played(self, task: Task, history: Sequence[Step]) -> list[Message]:
        """A history with what the target's tools answer."""
        session = self._world.open()
        session.initialise(task.initial_state)
        messages: list[Message] = []
        for place, step in enumerate(history):
            message = _message(step, place)
            messages.append(message)
            for call in message.tool_calls or ():
                result = session.call(call.name, call.arguments, "assistant")
                messages.append(result.answering(call))
        return messages


def told(trace: Sequence[Message]) -> list[dict[str, Any]]:
    """A trace as a module gets it: role, text, calls, and whether a tool raised.

    What tools answered is left out: a module knows its records, and reading them anew is most of what a call
    of it costs.
    """
    return [
        {
            "role": one.role,
            "content": "" if one.role == "tool" else one.content or "",
            "calls": [{"name": call.name, "arguments": call.arguments} for call in one.tool_calls or ()],
            "error": bool(one.error),
        }
        for one in trace
    ]


def _turn(one: GeneratedTurn) -> Turn:
    request = Request(about=one.about, details=one.details, answer=one.answer, refused=one.refused)
    return Turn(says=one.says, requests=(request,), actions=len(one.calls))


def _message(step: Step, place: int) -> Message:
    if step.customer is not None:
        return Message(role="user", content=step.customer)
    if step.agent is not None:
        return Message(role="assistant", content=step.agent)
    assert step.call is not None
    call = ToolCall(id=f"call_{place}", name=step.call.name, arguments=step.call.arguments)
    return Message(role="assistant", tool_calls=[call])


def _bounded(raw: Any, what: str) -> None:
    """See that a scenario is no heavier than one can be.

    Raises:
        GeneratorError: it is too long or too deep.
    """
    level, depth = [raw], 0
    while level:
        if depth > DEPTH_MOST:
            raise GeneratorError(f"{what} is nested more than {DEPTH_MOST} deep; make it flat")
        inside: list[Any] = []
        for one in level:
            inside += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        level, depth = inside, depth + 1
    if (letters := len(json.dumps(raw))) > LETTERS_MOST:
        raise GeneratorError(f"{what} has {letters:,} letters of JSON, {LETTERS_MOST:,} are allowed")
