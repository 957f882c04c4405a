"""Compiles tasks that a person writes in YAML or JSONL to τ² tasks.

A task in YAML:

- id: cancel-paid
  user:
    goal: Cancel booking B17.
    knows: {name: Ann Lee, booking: B17}
  expect:
    data: {bookings: {B17: {status: cancelled}}}
    says: [cancelled]
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import (
    DATABASE_EQUALS,
    SCRIPT_KEY,
    Action,
    Assertion,
    EvaluationCriteria,
    ForbiddenCall,
    InitializationData,
    InitialState,
    RewardBasis,
    SlotScript,
    Task,
)
from pytest_trace2evolve.scoring.matchers import check_matchers, contains_matcher
from pytest_trace2evolve.utils.reading import (
    MAX_RECORD_BYTES,
    convert_failures,
    first_problem,
    parse_json,
    read_text,
)
from pytest_trace2evolve.utils.yaml_text import WrittenFloat, parse_yaml
from pytest_trace2evolve.worlds.plain_data import json_key

DRAFT = "draft"
"""The key that marks a draft of `trace2evolve import` that is not accepted yet."""

T = TypeVar("T")

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _to_text(value: object) -> object:
    """Convert a value of `knows` to the text that the file holds; a boolean becomes yes or no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, WrittenFloat):
        return value.text
    return str(value) if isinstance(value, int | float) else value


def _to_call(value: object) -> object:
    """Convert the name of a tool to a call of the tool."""
    return {"name": value} if isinstance(value, str) else value


def _check_matchers(value: T) -> T:
    check_matchers(value)
    return value


Fact = Annotated[Text, BeforeValidator(_to_text, json_schema_input_type=str | float | bool)]
ExpectedData = Annotated[dict[str, Any], AfterValidator(_check_matchers)]
"""Data or arguments, in which matchers may stand for values; see `scoring.matchers`."""

FactName = Annotated[str, StringConstraints(pattern=r"[^\W_]")]
SaidText = Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"[^\s,]")]
"""A text that is not empty without its commas, which scoring leaves out."""


class ExpectedCall(Record):
    """A call that the agent must or must not make; without arguments, it stands for any call of the tool."""

    name: Text
    arguments: ExpectedData | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the arguments are given, each with one value."""
        return self.arguments is not None and not contains_matcher(self.arguments)


WrittenCall = Annotated[ExpectedCall, BeforeValidator(_to_call, json_schema_input_type=ExpectedCall | str)]
"""A call, or the name of a tool."""


class WrittenUser(Record):
    """The user of a task.

    Attributes:
        goal: The result that the user wants.
        opening: The user's first message; by default the goal.
        knows: The facts that the user tells if the agent asks for them, by name.
        style: How the user writes, for a model that plays the user.
        agrees_to: Words of proposals that the user agrees to, and no others; none if the list is empty. By
            default the words of the goal.
    """

    goal: Text
    opening: Text | None = None
    knows: dict[FactName, Fact] = Field(default_factory=dict)
    style: str = ""
    agrees_to: tuple[Text, ...] | None = None


class Expectation(Record):
    """The conditions that must hold at the end of a simulation.

    Attributes:
        data: The expected changes of the database; an empty mapping means that nothing may change. Without
            `data`, the database must equal the one after `calls` if every call has arguments without
            matchers, as in τ².
        calls: Calls that the agent must make.
        says: Texts that the agent must say; case does not matter.
        not_calls: Calls that the agent must not make.
        judged: Statements that a judge must find true (`--t2e-judge`).
    """

    data: ExpectedData | None = None
    calls: tuple[WrittenCall, ...] | None = None
    says: tuple[SaidText, ...] = ()
    not_calls: tuple[WrittenCall, ...] = ()
    judged: tuple[Text, ...] = ()

    @field_validator("data", "calls", "says", "not_calls", "judged", mode="before")
    @classmethod
    def _reject_empty(cls, value: object, info: ValidationInfo) -> object:
        """Reject a key without a value, which would weaken the task."""
        if value is None or (value == [] and info.field_name != "calls"):
            remedies = {"data": "write {} if nothing may change", "calls": "write [] if data may not change"}
            raise PydanticCustomError(
                "empty",
                "has no value; {remedy}, or remove the key",
                {"remedy": remedies.get(info.field_name or "", "add one")},
            )
        return value

    @property
    def is_empty(self) -> bool:
        """Whether nothing is expected, so that every simulation would pass."""
        return self.data is None and self.calls is None and not (self.says or self.not_calls or self.judged)

    @property
    def wants_nothing(self) -> bool:
        """Whether an agent that does nothing meets the expectation."""
        return not (self.data or self.calls or self.says or self.judged)


class WrittenTask(Record):
    """A task as a person writes it.

    Attributes:
        split: The split to which the task belongs, if the suite does not name the split.
        tags: Words by which tasks are grouped.
        data: Changes of the initial database for this task.
        history: Messages before the first turn, in OpenAI's format.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
    split: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")] | None = None
    tags: tuple[Text, ...] = ()
    user: WrittenUser
    expect: Expectation
    data: dict[str, Any] = Field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()

    def to_task(self) -> Task:
        """Compile the task to a τ² task."""
        script = SlotScript(
            goal=self.user.goal,
            opening=self.user.opening or self.user.goal,
            knows=self.user.knows,
            agrees_only=self.user.agrees_to,
        )
        scenario = {
            "instructions": {
                "task_instructions": self.user.goal,
                "known_info": "\n".join(f"{name}: {value}" for name, value in self.user.knows.items()),
            },
            "persona": self.user.style or None,
            SCRIPT_KEY: script.model_dump(mode="json", exclude_defaults=True) | {"kind": "slots"},
        }
        state = InitialState(
            initialization_data=InitializationData(agent_data=_plain(self.data)) if self.data else None,
            message_history=_messages(self.history) or None,
        )
        fields: dict[str, Any] = {
            "id": self.id,
            "user_scenario": scenario,
            "initial_state": state if self.data or self.history else None,
            "evaluation_criteria": self._criteria(),
        }
        if self.tags:
            fields["tags"] = list(self.tags)
        return Task.model_validate({key: value for key, value in fields.items() if value is not None})

    def _criteria(self) -> EvaluationCriteria:
        expect = self.expect
        calls = expect.calls or ()
        basis = []
        # The database after the calls is known only if every call has its arguments, each with one value.
        if expect.data is None and expect.calls is not None and all(call.is_exact for call in calls):
            basis.append(RewardBasis.DB)
        if expect.data is not None:
            basis.append(RewardBasis.ENV_ASSERTION)
        if calls or expect.not_calls:
            basis.append(RewardBasis.ACTION)
        if expect.says or not basis:
            basis.append(RewardBasis.COMMUNICATE)
        if expect.judged:
            basis.append(RewardBasis.NL_ASSERTION)
        forbidden = [
            ForbiddenCall(
                name=call.name, arguments=None if call.arguments is None else _plain(call.arguments)
            )
            for call in expect.not_calls
        ]
        return EvaluationCriteria.model_validate(
            {
                "actions": [_action(number, call) for number, call in enumerate(calls)],
                "env_assertions": [] if expect.data is None else [_assertion(expect.data)],
                # τ² searches the agent's texts without their commas.
                "communicate_info": [text.replace(",", "") for text in expect.says],
                "nl_assertions": list(expect.judged) or None,
                "reward_basis": basis,
                **({"forbidden_calls": forbidden} if forbidden else {}),
            }
        )


def _action(number: int, call: ExpectedCall) -> Action:
    return Action(
        name=call.name,
        arguments=_plain(call.arguments or {}),
        action_id=f"call_{number}",
        compare_args=[] if call.arguments is None else sorted(call.arguments),
    )


def _assertion(data: Mapping[str, Any]) -> Assertion:
    return Assertion(env_type="assistant", func_name=DATABASE_EQUALS, arguments={"data": _plain(data)})


def _plain(value: Any) -> Any:
    """Convert a value to JSON types: keys become text, and written numbers become plain numbers."""
    if isinstance(value, Mapping):
        return {json_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, WrittenFloat) else value


def _messages(history: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Convert a history in OpenAI's format to messages of a trace.

    Raises:
        ValueError: a message is invalid, a call has no result, or the last message has no text.
    """
    messages: list[Message] = []
    pending_ids: list[str | None] = []
    for number, message in enumerate(history, start=1):
        try:
            messages.append(_message(message))
        except ValidationError as error:
            raise ValueError(f"history, message {number}: {first_problem(error, 'message')}") from None
        except ValueError as error:
            raise ValueError(f"history, message {number}: {error}") from None
        last = messages[-1]
        if last.role == "tool":
            if not pending_ids or pending_ids.pop(0) != last.id:
                raise ValueError(
                    f"history, message {number}: answers no call before it; correct tool_call_id"
                )
        elif pending_ids:
            raise ValueError(
                f"history, message {number}: call {pending_ids[0]!r} before it has no result; add it"
            )
        pending_ids += [call.id for call in last.tool_calls or ()]
    if pending_ids:
        raise ValueError(f"history ends with call {pending_ids[0]!r}, which has no result; add it")
    if messages and (messages[-1].role == "tool" or messages[-1].text is None):
        raise ValueError("history ends with a tool's result; end it with a message of the user or the agent")
    return messages


def _message(message: Mapping[str, Any]) -> Message:
    """Convert a message in OpenAI's format to a message of a trace. Raises `ValueError` if it is invalid."""
    role, content = message.get("role"), message.get("content")
    if role in ("system", "developer"):
        raise ValueError(f"has role {role!r}; remove it, because the agent has instructions of its own")
    if role not in ("user", "assistant", "tool"):
        raise ValueError(f"role {role!r} is not user, assistant or tool")
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and "text" in part]
        if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
            raise ValueError("has a part that is not text; only texts can be continued")
        content = "\n".join(texts)
    if role == "tool":
        fields = {"role": "tool", "id": message.get("tool_call_id"), "requestor": "assistant"}
        return Message.model_validate({**fields, "content": content, "error": False})
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise ValueError("its tool_calls are not a list")
    if calls and role == "user":
        raise ValueError("is the user's, but has tool_calls")
    message_fields = {"role": role, "content": content, "tool_calls": [*map(_call, calls)] or None}
    if not calls and not content:
        raise ValueError("has neither content nor tool_calls")
    return Message.model_validate(message_fields)


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("has a call without function.name")
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {function['name']!r} are not a JSON object")
    return {
        "id": call.get("id"),
        "name": function["name"],
        "arguments": _plain(arguments),
        "requestor": "assistant",
    }


def read_written_tasks(path: Path) -> list[WrittenTask]:
    """Read a file of written tasks: a YAML list, or JSONL with one task per line.

    Raises:
        CaseError: the file cannot be read or holds no task, a task is invalid or a draft, or two tasks share
            an id. The message names the file or the task.
    """
    tasks: dict[str, WrittenTask] = {}
    for location, raw_task in read_raw_tasks(path, read_text(path, CaseError, max_bytes=MAX_RECORD_BYTES)):
        task = parse_written_task(raw_task, location)
        if task.id in tasks:
            raise CaseError(f"{location}: task {task.id!r} occurs twice; rename one")
        tasks[task.id] = task
    if not tasks:
        raise CaseError(f"{path}: holds no task; write one, or leave the file out of the suite")
    return list(tasks.values())


def parse_written_task(raw_task: Any, location: str) -> WrittenTask:
    """Validate one written task.

    Raises:
        CaseError: the task is invalid or a draft; the message starts with `location`.
    """
    if isinstance(raw_task, dict) and DRAFT in raw_task:
        raise CaseError(
            f"{location}: is a draft that nobody accepted; review it with 'trace2evolve cases review'"
        )
    try:
        task = WrittenTask.model_validate(raw_task)
        if task.expect.is_empty:
            raise ValueError(
                "expects nothing, so every agent passes; write data, calls, says, not_calls or judged "
                "(data: {} if nothing may change)"
            )
        task.to_task()
    except ValidationError as error:
        raise CaseError(f"{location}: {first_problem(error, 'the task')}; correct it") from None
    except ValueError as error:
        raise CaseError(f"{location}: {error}") from None
    return task


def read_raw_tasks(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the location and raw value of each task in a file's text; raise `CaseError` if it is no list."""
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                location = f"{path}, line {number}"
                with convert_failures(location, CaseError, "expected one JSON object a line"):
                    raw_task = parse_json(line, require_unique=True, allow_nul=False)
                yield location, raw_task
        return
    raw_tasks = parse_yaml(text, path, CaseError)
    if not isinstance(raw_tasks, list):
        kind = "nothing" if raw_tasks is None else f"a {type(raw_tasks).__name__}"
        raise CaseError(f"{path}: expected a list of tasks, got {kind}")
    for number, raw_task in enumerate(raw_tasks, start=1):
        name = raw_task.get("id") if isinstance(raw_task, dict) else None
        yield f"{path}, task {name if isinstance(name, str) else number}", raw_task
