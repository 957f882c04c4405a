"""Environments that a model wrote: modules of a project that run in the sandbox alone.

A module describes scenarios and grades trajectories. It plays nothing itself: the tools, their results and
the end state are the target's own, so no module can imitate it. A project stores an admitted module as
`environments/generated/<capability>.py.txt`, a file name that neither pytest nor Python imports, with a
record of its origin; a module that was changed since is rejected.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from pytest_trace2evolve.cases.content import vocabulary
from pytest_trace2evolve.cases.scene import task_record
from pytest_trace2evolve.environments.environment import check_difficulty, invalid_grade
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.sandbox.box import Sandbox
from pytest_trace2evolve.errors import GeneratorError, name_taken
from pytest_trace2evolve.project.extensions import registered_environments
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.capability import CapabilityName
from pytest_trace2evolve.records.environment import GRADES
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import Generator, Offer, World
from pytest_trace2evolve.records.task import Action, Content, Replies, Request, Said, Script, Slot, Task, Turn
from pytest_trace2evolve.utils.canonical import digest, digest_text, is_deeper
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.utils.reading import SETTINGS, problem_in, read_bytes, read_record, reported
from pytest_trace2evolve.worlds.registry import Worlds

MAX_STEPS = 40  # of a history or of a shortcut, and calls of the expert in a turn
MAX_CHARACTERS, MAX_DEPTH = 200_000, 40  # of a scenario as JSON: we read it outside of the sandbox
CACHED_SCENARIOS = 256  # a group of rollouts asks for the same one many times
SEED_MARK = "-seed-"  # precedes the seed in the id of a scenario


class PlannedCall(Record):
    """A tool call."""

    name: str
    arguments: dict[str, Any]


class Step(Record):
    """One message: of the agent (`agent` or `call`) or of the customer."""

    agent: Said | None = None
    customer: Said | None = None
    call: PlannedCall | None = None

    @model_validator(mode="after")
    def _is_one_message(self) -> "Step":
        if sum(part is not None for part in (self.agent, self.customer, self.call)) != 1:
            raise ValueError("a step is one of agent, customer and call")
        return self

    def message(self, place: int) -> Message:
        """The step as a message; `place` makes the id of its call."""
        if self.customer is not None:
            return Message(role="user", content=self.customer)
        if self.call is None:
            return Message(role="assistant", content=self.agent)
        call = ToolCall(id=f"call_{place}", name=self.call.name, arguments=self.call.arguments)
        return Message(role="assistant", tool_calls=[call])


class GeneratedTurn(Record):
    """One request of the customer, and the expert's calls for it.

    Attributes:
        says: The customer's words.
        calls: The expert's tool calls, in order, those of the history included.
        about: Ids of records that an agent may name when it asks for a yes.
        details: The customer's answers to questions.
        answer: Text that the agent must say; empty if something is to be done.
        refused: Whether the policy forbids the request.
    """

    says: Said
    calls: Annotated[tuple[PlannedCall, ...], Field(max_length=MAX_STEPS)] = ()
    about: tuple[str, ...] = ()
    details: dict[Slot, Said] = Field(default_factory=dict)
    answer: str = ""
    refused: bool = False

    def turn(self) -> Turn:
        """The turn of the customer's script."""
        request = Request(about=self.about, details=self.details, answer=self.answer, refused=self.refused)
        return Turn(says=self.says, requests=(request,), actions=len(self.calls))


class GeneratedScenario(Record):
    """The value of a module's `scenario`.

    Attributes:
        tables: The part of the database that the scenario needs, in the target's own shape.
        identity: How the customer identifies themselves.
        turns: The customer's requests.
        history: The messages before the agent's turn; results of tools are filled in.
        goal: Passed to the module's `grade` and `shortcut`.
    """

    tables: dict[str, dict[str, Any]]
    identity: dict[Slot, Said]
    turns: Annotated[tuple[GeneratedTurn, ...], Field(min_length=1, max_length=6)]
    history: Annotated[tuple[Step, ...], Field(max_length=MAX_STEPS)] = ()
    goal: dict[str, Any] = Field(default_factory=dict)


class LazySandbox:
    """A module's sandbox, started by the first call."""

    def __init__(self, source: str, name: str) -> None:
        self._source, self._name = source, name
        self._lock = threading.Lock()
        self._sandbox: Sandbox | None = None

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one of the module's functions; see `Sandbox.call`."""
        with self._lock:
            if self._sandbox is None:
                self._sandbox = Sandbox(self._source, self._name)
            sandbox = self._sandbox
        return sandbox.call(function, *arguments)

    def close(self) -> None:
        """End the process; a further call starts another."""
        with self._lock:
            if self._sandbox is not None:
                self._sandbox.close()
                self._sandbox = None


class GeneratedGenerator:
    """A generator whose scenarios and grades come from a sandboxed module; see `Generator`.

    Training asks the module with even seeds, and measuring (held-out content) with odd ones. Every method
    raises a `GeneratorError` if the module returns something else, and a `SandboxError` if it fails.
    """

    def __init__(
        self,
        capability: str,
        source: str,
        difficulty: int,
        content: Content,
        world: World,
        sandbox: LazySandbox,
    ) -> None:
        check_difficulty(capability, difficulty)
        self.capability = capability
        self.difficulty = difficulty
        self.content = content
        self.digest = digest(["generated", capability, difficulty, content.value, source])
        self._what = f"environment {capability!r}"
        self._world = world
        self._sandbox = sandbox
        self._scenario = lru_cache(maxsize=CACHED_SCENARIOS)(self._make_scenario)

    def scenario(self, seed: int) -> Task:
        """The scenario of a seed."""
        task, _ = self._scenario(seed)
        return task

    def _make_scenario(self, seed: int) -> tuple[Task, Mapping[str, Any]]:
        """The scenario of a seed, and its goal."""
        module_seed = 2 * seed + (self.content is Content.HELDOUT)
        call = f"{self._what}: scenario({module_seed}, {self.difficulty})"
        raw = self._sandbox.call("scenario", module_seed, self.difficulty)
        if is_deeper(raw, MAX_DEPTH):
            raise GeneratorError(f"{call} is nested more than {MAX_DEPTH} deep; make it flat")
        if (length := len(json.dumps(raw))) > MAX_CHARACTERS:
            raise GeneratorError(f"{call} has {length:,} characters of JSON; {MAX_CHARACTERS:,} are allowed")
        try:
            found = GeneratedScenario.model_validate(raw)
        except ValidationError as error:
            raise GeneratorError(f"{call} is invalid: {problem_in(error, 'scenario')}") from None
        return self._task(found, seed), found.goal

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        """How far the capability was exercised: one of `GRADES`."""
        grade = self._sandbox.call("grade", self._goal(task), plain_trace(trace), solved)
        if isinstance(grade, bool) or grade not in GRADES:
            raise invalid_grade(self.capability, grade)
        return float(grade)

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        """Never: asking after every step would cost more than to play on until the top or the end."""
        return False

    def shortcut(self, task: Task) -> Sequence[Message]:
        """An agent without the capability that takes the nearest wrong way."""
        raw = self._sandbox.call("shortcut", self._goal(task))
        try:
            steps = [Step.model_validate(step) for step in (raw if isinstance(raw, list) else [raw])]
        except ValidationError as error:
            raise GeneratorError(
                f"{self._what}: shortcut is no list of steps: {problem_in(error, 'step')}"
            ) from None
        if any(step.customer is not None for step in steps):
            raise GeneratorError(f"{self._what}: in shortcut the customer speaks")
        return [step.message(place) for place, step in enumerate(steps[:MAX_STEPS])]

    def _goal(self, task: Task) -> Mapping[str, Any]:
        _, goal = self._scenario(int(task.id.rpartition(SEED_MARK)[2]))
        return goal

    def _task(self, found: GeneratedScenario, seed: int) -> Task:
        script = Script(
            family=self.capability,
            content=self.content,
            identity=found.identity,
            turns=tuple(turn.turn() for turn in found.turns),
            replies=_replies(),
        )
        actions = [
            Action(name=call.name, arguments=call.arguments) for turn in found.turns for call in turn.calls
        ]
        instructions = {
            "domain": self._world.domain,
            "reason_for_call": found.turns[0].says,
            "known_info": " ".join(found.identity.values()),
            "unknown_info": "Anything that is not written here.",
            "task_instructions": "\n".join(turn.says for turn in found.turns[1:]),
        }
        answers = [turn.answer for turn in found.turns if turn.answer]
        task_id = f"{self.capability}-generated-{self.content.value}-{self.difficulty}{SEED_MARK}{seed}"
        record = {"id": task_id, **task_record(script, instructions, found.tables, actions, answers)}
        if found.history:
            messages = self._answered(Task.model_validate(record), found.history)
            record["initial_state"]["message_history"] = [
                message.model_dump(mode="json", exclude_none=True) for message in messages
            ]
        return Task.model_validate(record)

    def _answered(self, task: Task, history: Sequence[Step]) -> list[Message]:
        """A history with the answers of the target's tools."""
        session = self._world.open()
        session.initialise(task.initial_state)
        messages: list[Message] = []
        for place, step in enumerate(history):
            messages.append(step.message(place))
            for call in messages[-1].tool_calls or ():
                result = session.call(call.name, call.arguments, "assistant")
                messages.append(result.answering(call))
        return messages


def plain_trace(trace: Sequence[Message]) -> list[dict[str, Any]]:
    """A trace as a module gets it: role, text, calls, and whether a tool raised.

    The tools' answers are left out: a module knows its records, and decoding them again would be most of the
    cost of a call.
    """
    return [
        {
            "role": message.role,
            "content": "" if message.role == "tool" else message.content or "",
            "calls": [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls or ()],
            "error": bool(message.error),
        }
        for message in trace
    ]


@cache
def _replies() -> Replies:
    """How the customers of generated scenarios say what every customer says: in words of training."""
    phrases = vocabulary(Content.TRAIN).phrases
    return Replies.model_validate({name: phrases[name] for name in Replies.model_fields})


# Modules of a project

FOLDER = Path("environments") / "generated"
"""The folder of a project that holds modules and their records, and nothing else."""

MODULE = ".py.txt"
"""The end of a module's file name. As `.py`, plain pytest would run one of a capability called `conftest`."""


class Synthesized(Record):
    """The origin of a module.

    Attributes:
        source: Digest of the module.
        judge: The model that wrote it; `prompt` is the version of its prompt.
        provider, domain: The target.
    """

    schema_version: Literal[1] = 1
    capability: CapabilityName
    description: str
    source: str
    judge: str
    prompt: str
    rounds: Annotated[int, Field(ge=1)]
    provider: str
    domain: str
    created_at: str


def project_environments(project: Project) -> Environments:
    """All environments of a project: built-in, installed, of its hooks, and those that a model wrote."""
    worlds = project.open_worlds()
    generated = generated_offers(project.root, worlds)
    hooked = project.extensions.environments
    owners = {**registered_environments(), **dict.fromkeys(hooked, "the hook pytest_t2e_environments")}
    for name in generated.keys() & owners.keys():
        raise name_taken("environment", name, owners[name], f"{FOLDER / name}.json")
    return Environments({**hooked, **generated}, worlds, project)


def generated_offers(root: Path, worlds: Worlds) -> dict[str, Offer]:
    """The offers of a project's modules, by capability."""
    offers = {}
    for path in sorted((root / FOLDER).glob("*.json")):
        record, source = _read_module(path)
        if record.capability != path.stem:
            raise GeneratorError(f"{path}: is of {record.capability!r}; name the file after it")
        world = worlds.open(record.provider, record.domain)
        offers[record.capability] = offer_of(record.capability, source, record.description, world)
    return offers


def _read_module(path: Path) -> tuple[Synthesized, str]:
    module = path.with_suffix(MODULE)
    remedy = "synthesize it again"
    record = read_record(path, Synthesized, GeneratorError, remedy)
    with reported(module, GeneratorError, remedy):
        source = bytes(read_bytes(module, GeneratorError, limit=SETTINGS)).decode("utf-8")
    if digest_text(source) != record.source:
        raise GeneratorError(
            f"{module}: has changed since it was admitted; restore it, or run "
            f"'trace2evolve environment synthesize {record.capability}' again"
        )
    return record, source


def offer_of(capability: str, source: str, pays: str, world: World) -> Offer:
    """The offer of a module; its process starts with the first call, and serves all difficulties."""
    here = LazySandbox(source, f"environment {capability!r}")
    elsewhere = LazySandbox(source, f"environment {capability!r}, again")

    def make(sandbox: LazySandbox, difficulty: int, content: Content) -> Generator:
        return GeneratedGenerator(capability, source, difficulty, content, world, sandbox)

    def close() -> None:
        here.close()
        elsewhere.close()

    return Offer(
        make=partial(make, here),
        pays=pays,
        provider=world.provider,
        domain=world.domain,
        elsewhere=partial(make, elsewhere),
        close=close,
    )


def save_module(root: Path, record: Synthesized, source: str) -> Path:
    """Write an admitted module and its record, both or none; returns the module's path."""
    folder = root / FOLDER
    module = folder / f"{record.capability}{MODULE}"
    text = f"{record.model_dump_json(indent=1)}\n"
    write_together({module: source, folder / f"{record.capability}.json": text})
    return module
