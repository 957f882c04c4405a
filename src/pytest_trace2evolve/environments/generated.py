"""Environments that a model wrote: modules of a project that run only in the sandbox.

A module describes scenarios and grades trajectories, but does not play them. The tools, their results and
the end state are the target world's own, so no module can fake them. A project stores an admitted module
as `environments/generated/<capability>.py.txt`, a file name that neither pytest nor Python imports, with a
record of its origin. A module that was changed after its admission is rejected.
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
from pytest_trace2evolve.environments.environment import check_difficulty, invalid_grade_error
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.sandbox.box import Sandbox
from pytest_trace2evolve.errors import GeneratorError, duplicate_name_error
from pytest_trace2evolve.project.extensions import registered_environments
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.capability import CapabilityName
from pytest_trace2evolve.records.environment import GRADES
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import Generator, Offer, World
from pytest_trace2evolve.records.task import (
    Action,
    Content,
    Replies,
    Request,
    Script,
    Slot,
    SpokenText,
    Task,
    Turn,
)
from pytest_trace2evolve.utils.canonical import digest, digest_text, is_deeper
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.utils.reading import (
    MAX_SETTINGS_BYTES,
    convert_failures,
    first_problem,
    read_bytes,
    read_record,
)
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

MAX_STEPS = 40  # limit of the steps of a history or a shortcut, and of the expert's calls in a turn
MAX_CHARACTERS, MAX_DEPTH = 200_000, 40  # limits of a scenario's JSON, which is parsed outside the sandbox
CACHED_SCENARIOS = 256  # a group of rollouts requests the same scenario many times
SEED_SEPARATOR = "-seed-"  # precedes the seed in the id of a scenario


class PlannedCall(Record):
    """A tool call in a module's scenario or shortcut."""

    name: str
    arguments: dict[str, Any]


class Step(Record):
    """One message, either of the agent (`agent` or `call`) or of the customer."""

    agent: SpokenText | None = None
    customer: SpokenText | None = None
    call: PlannedCall | None = None

    @model_validator(mode="after")
    def _is_one_message(self) -> "Step":
        if sum(part is not None for part in (self.agent, self.customer, self.call)) != 1:
            raise ValueError("a step must have exactly one of agent, customer and call")
        return self

    def to_message(self, index: int) -> Message:
        """The step as a message; the id of its call contains `index`."""
        if self.customer is not None:
            return Message(role="user", content=self.customer)
        if self.call is None:
            return Message(role="assistant", content=self.agent)
        call = ToolCall(id=f"call_{index}", name=self.call.name, arguments=self.call.arguments)
        return Message(role="assistant", tool_calls=[call])


class GeneratedTurn(Record):
    """One request of the customer, and the expert's calls for it.

    Attributes:
        says: The customer's words.
        calls: The expert's tool calls, in order, including those of the history.
        about: Ids of records that an agent may name when it asks for confirmation.
        details: The customer's answers to questions.
        answer: Text that the agent must say; empty if the request is not a question.
        refused: Whether the policy forbids the request.
    """

    says: SpokenText
    calls: Annotated[tuple[PlannedCall, ...], Field(max_length=MAX_STEPS)] = ()
    about: tuple[str, ...] = ()
    details: dict[Slot, SpokenText] = Field(default_factory=dict)
    answer: str = ""
    refused: bool = False

    def to_turn(self) -> Turn:
        """The request as a turn of the customer's script."""
        request = Request(about=self.about, details=self.details, answer=self.answer, refused=self.refused)
        return Turn(says=self.says, requests=(request,), actions=len(self.calls))


class GeneratedScenario(Record):
    """The value that a module's `scenario` function returns.

    Attributes:
        tables: The part of the database that the scenario needs, in the schema of the target world.
        identity: The sentences that identify the customer, by slot.
        turns: The customer's requests.
        history: The messages before the agent's turn, without tool results, which are filled in later.
        goal: Data for the module's `grade` and `shortcut`.
    """

    tables: dict[str, Any]
    identity: dict[Slot, SpokenText] = Field(default_factory=dict)
    turns: Annotated[tuple[GeneratedTurn, ...], Field(min_length=1, max_length=6)]
    history: Annotated[tuple[Step, ...], Field(max_length=MAX_STEPS)] = ()
    goal: dict[str, Any] = Field(default_factory=dict)


class LazySandbox:
    """A module's sandbox, which the first call starts."""

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
        """End the sandbox's process; a further call starts a new process."""
        with self._lock:
            if self._sandbox is not None:
                self._sandbox.close()
                self._sandbox = None


class GeneratedGenerator:
    """A generator whose scenarios and grades come from a sandboxed module; see `Generator`.

    The module gets even seeds for training content, and odd seeds for held-out content, with which models are
    measured. Every method that calls the module raises a `GeneratorError` if the module returns an invalid
    value, and a `SandboxError` if the module fails.
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
        self._label = f"environment {capability!r}"
        self._world = world
        self._sandbox = sandbox
        self._cached_scenario = lru_cache(maxsize=CACHED_SCENARIOS)(self._make_scenario)

    def scenario(self, seed: int) -> Task:
        """The scenario of a seed."""
        task, _ = self._cached_scenario(seed)
        return task

    def _make_scenario(self, seed: int) -> tuple[Task, Mapping[str, Any]]:
        """The scenario of a seed, and its goal."""
        module_seed = 2 * seed + (self.content is Content.HELDOUT)
        call_text = f"{self._label}: scenario({module_seed}, {self.difficulty})"
        raw_scenario = self._sandbox.call("scenario", module_seed, self.difficulty)
        if is_deeper(raw_scenario, MAX_DEPTH):
            raise GeneratorError(f"{call_text} is nested more than {MAX_DEPTH} levels deep; flatten it")
        if (length := len(json.dumps(raw_scenario))) > MAX_CHARACTERS:
            raise GeneratorError(
                f"{call_text} has {length:,} characters of JSON, but the limit is {MAX_CHARACTERS:,}"
            )
        try:
            scenario = GeneratedScenario.model_validate(raw_scenario)
        except ValidationError as error:
            raise GeneratorError(f"{call_text} is invalid: {first_problem(error, 'scenario')}") from None
        return self._build_task(scenario, seed), scenario.goal

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        """The grade of a trajectory, one of `GRADES`: how well the agent exercised the capability."""
        grade = self._sandbox.call("grade", self._goal(task), plain_trace(trace), solved)
        if isinstance(grade, bool) or grade not in GRADES:
            raise invalid_grade_error(self.capability, grade)
        return float(grade)

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        """Return False, because a call of the module after every step would cost more than playing on."""
        return False

    def shortcut(self, task: Task) -> Sequence[Message]:
        """The messages of an agent that lacks the capability and makes the most likely mistake."""
        raw_steps = self._sandbox.call("shortcut", self._goal(task))
        try:
            steps = [
                Step.model_validate(step)
                for step in (raw_steps if isinstance(raw_steps, list) else [raw_steps])
            ]
        except ValidationError as error:
            raise GeneratorError(
                f"{self._label}: shortcut must return a list of steps: {first_problem(error, 'step')}"
            ) from None
        if any(step.customer is not None for step in steps):
            raise GeneratorError(f"{self._label}: shortcut must not contain a step of the customer")
        return [step.to_message(index) for index, step in enumerate(steps[:MAX_STEPS])]

    def _goal(self, task: Task) -> Mapping[str, Any]:
        _, goal = self._cached_scenario(int(task.id.rpartition(SEED_SEPARATOR)[2]))
        return goal

    def _build_task(self, scenario: GeneratedScenario, seed: int) -> Task:
        script = Script(
            family=self.capability,
            content=self.content,
            identity=scenario.identity,
            turns=tuple(turn.to_turn() for turn in scenario.turns),
            replies=_stock_replies(),
        )
        actions = [
            Action(name=call.name, arguments=call.arguments) for turn in scenario.turns for call in turn.calls
        ]
        instructions = {
            "domain": self._world.domain,
            "reason_for_call": scenario.turns[0].says,
            "known_info": " ".join(scenario.identity.values()),
            "unknown_info": "Anything that is not written here.",
            "task_instructions": "\n".join(turn.says for turn in scenario.turns[1:]),
        }
        answers = [turn.answer for turn in scenario.turns if turn.answer]
        task_id = f"{self.capability}-generated-{self.content.value}-{self.difficulty}{SEED_SEPARATOR}{seed}"
        task_json = {"id": task_id, **task_record(script, instructions, scenario.tables, actions, answers)}
        if scenario.history:
            messages = self._complete_history(Task.model_validate(task_json), scenario.history)
            task_json["initial_state"]["message_history"] = [
                message.model_dump(mode="json", exclude_none=True) for message in messages
            ]
        return Task.model_validate(task_json)

    def _complete_history(self, task: Task, history: Sequence[Step]) -> list[Message]:
        """A history completed with the results of the target world's tools."""
        session = self._world.open()
        session.initialise(task.initial_state)
        messages: list[Message] = []
        for index, step in enumerate(history):
            messages.append(step.to_message(index))
            for call in messages[-1].tool_calls or ():
                result = session.call(call.name, call.arguments, "assistant")
                messages.append(result.to_message(call))
        return messages


def plain_trace(trace: Sequence[Message]) -> list[dict[str, Any]]:
    """A trace in the form that modules get: role, text, calls, and whether a tool raised an error.

    The results of tools are left out, because a module knows its own records and decoding the results would
    be most of the cost of a call.
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
def _stock_replies() -> Replies:
    """The stock replies of the customers of generated scenarios, in the words of training content."""
    phrases = vocabulary(Content.TRAIN).phrases
    return Replies.model_validate({name: phrases[name] for name in Replies.model_fields})


# Modules of a project

MODULES_FOLDER = Path("environments") / "generated"
"""The folder of a project that holds only modules and their records."""

MODULE_SUFFIX = ".py.txt"
"""The suffix of a module's file. With `.py`, pytest would run the module of a capability named `conftest`."""


class ModuleRecord(Record):
    """The origin of a module.

    Attributes:
        source: Digest of the module's source.
        judge: The model that wrote the module.
        prompt: The version of the judge's prompt.
        provider, domain: The target world.
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
    """All environments of a project: built-in, installed, registered by its hooks, and written by a model."""
    worlds = project.open_worlds()
    module_offers = load_module_offers(project.root, worlds)
    hook_offers = project.extensions.environments
    owners = {**registered_environments(), **dict.fromkeys(hook_offers, "the hook pytest_t2e_environments")}
    for name in module_offers.keys() & owners.keys():
        raise duplicate_name_error("environment", name, owners[name], f"{MODULES_FOLDER / name}.json")
    return Environments({**hook_offers, **module_offers}, worlds, project)


def load_module_offers(root: Path, worlds: Worlds) -> dict[str, Offer]:
    """The offers of a project's modules, by capability."""
    offers = {}
    for path in sorted((root / MODULES_FOLDER).glob("*.json")):
        record, source = _read_module(path)
        if record.capability != path.stem:
            raise GeneratorError(f"{path}: describes {record.capability!r}; name the file after it")
        target = record.provider, record.domain
        offers[record.capability] = make_offer(record.capability, source, record.description, target, worlds)
    return offers


def _read_module(path: Path) -> tuple[ModuleRecord, str]:
    module_path = path.with_suffix(MODULE_SUFFIX)
    remedy = "synthesize it again"
    record = read_record(path, ModuleRecord, GeneratorError, remedy)
    with convert_failures(module_path, GeneratorError, remedy):
        source = bytes(read_bytes(module_path, GeneratorError, max_bytes=MAX_SETTINGS_BYTES)).decode("utf-8")
    if digest_text(source) != record.source:
        raise GeneratorError(
            f"{module_path}: has changed since it was admitted; restore it, or run "
            f"'trace2evolve environment synthesize {record.capability}' again"
        )
    return record, source


def make_offer(capability: str, source: str, pays: str, target: WorldName, worlds: Worlds) -> Offer:
    """Return the offer of a module. One process serves all difficulties; a second one serves `elsewhere`."""
    main_sandbox = LazySandbox(source, f"environment {capability!r}")
    second_sandbox = LazySandbox(source, f"environment {capability!r}, again")

    def make(sandbox: LazySandbox, difficulty: int, content: Content) -> Generator:
        world = worlds.open(*target)
        return GeneratedGenerator(capability, source, difficulty, content, world, sandbox)

    def close() -> None:
        main_sandbox.close()
        second_sandbox.close()

    return Offer(
        make=partial(make, main_sandbox),
        pays=pays,
        provider=target[0],
        domain=target[1],
        elsewhere=partial(make, second_sandbox),
        close=close,
    )


def save_module(root: Path, record: ModuleRecord, source: str) -> Path:
    """Write an admitted module and its record together or not at all, and return the module's path."""
    folder = root / MODULES_FOLDER
    module_path = folder / f"{record.capability}{MODULE_SUFFIX}"
    text = f"{record.model_dump_json(indent=1)}\n"
    write_together({module_path: source, folder / f"{record.capability}.json": text})
    return module_path
