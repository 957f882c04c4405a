"""Detects world rules that can never match. Such rules find nothing, and no figure reveals them.

Some checks need only the schemas of the tools. Others need results, such as those of the tasks' gold actions.
"""

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.errors import name_suggestion
from pytest_trace2evolve.records.message import ToolCall
from pytest_trace2evolve.records.protocols import ToolSchema, World
from pytest_trace2evolve.records.rules import Rules, id_at
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.invariants import (
    AnsweredCall,
    Outcome,
    answered_call,
    owner_of,
    record_in_result,
    target_of,
)
from pytest_trace2evolve.scoring.reward import open_session

MAX_TASKS = 200
"""Maximum number of tasks whose gold actions are carried out."""

_NON_ID_TYPES = frozenset({"array", "boolean", "null", "object"})
"""JSON Schema types whose values cannot be ids."""

_MAX_LISTED = 6
"""Maximum number of names that a message lists."""


@dataclass(frozen=True)
class Problem:
    """A rule that cannot match, with the cause and the remedy in one line.

    Attributes:
        is_certain: Whether the problem is certain for all tasks; otherwise only the given calls show it.
    """

    text: str
    is_certain: bool = True


def gold_calls(world: World, tasks: Iterable[Task]) -> list[AnsweredCall]:
    """The successful calls of the agent among the gold actions of the first tasks, with their results."""
    calls = []
    for _, task in zip(range(MAX_TASKS), tasks, strict=False):
        with contextlib.ExitStack() as stack:
            session = open_session(world, stack)
            session.initialise(task.initial_state)
            for index, action in enumerate(task.actions):
                if action.requestor != "assistant":
                    session.perform(action)
                    continue
                tool_result = session.call(action.name, action.arguments, "assistant")
                call = ToolCall(id=str(index), name=action.name, arguments=dict(action.arguments))
                answered = answered_call(call, tool_result.to_message(call))
                if answered.outcome is Outcome.DONE:
                    calls.append(answered)
    return calls


def rule_problems(
    rules: Rules, tools: Sequence[ToolSchema], calls: Sequence[AnsweredCall] = ()
) -> Iterator[Problem]:
    """Yield the problems of a world's rules that can never match.

    Args:
        rules: The world's rules.
        tools: The agent's tools.
        calls: Successful calls of these tools, from `gold_calls`. The results of tools without calls are
            not checked.
    """
    schemas = {tool.name: tool for tool in tools}
    certain_problems = (
        *_check_tools(rules, schemas),
        *_check_arguments(rules, schemas),
        *_check_tables(rules),
        *_check_words(rules),
        *_check_promises(rules),
        *_check_paths(rules),
        *_check_patterns(rules, calls),
        *_check_results(rules, calls),
        *_check_fields(rules, calls),
    )
    yield from map(Problem, certain_problems)
    for text in _check_statuses(rules, calls):
        yield Problem(text, is_certain=False)


def _check_tools(rules: Rules, schemas: Mapping[str, ToolSchema]) -> Iterator[str]:
    tools_of_rule: dict[str, Iterable[str]] = {
        "identify": rules.identify,
        "reads": rules.reads,
        "writes": rules.writes,
    }
    for index, promise in enumerate(rules.promises):
        tools_of_rule[f"promises[{index}].tools"] = sorted(promise.tools)
    for rule, tools in tools_of_rule.items():
        for tool in tools:
            if tool not in schemas:
                hint = name_suggestion(tool, schemas)
                yield f"{rule}: the agent has no tool {tool!r}, so the rule never applies; {hint}"


def _rules_with_argument(rules: Rules) -> Iterator[tuple[str, str, str]]:
    """Yield each rule that identifies a record by an argument, with its tool and the argument."""
    for rule, tools in (("reads", rules.reads), ("writes", rules.writes)):
        for tool, declaration in tools.items():
            if declaration.argument:
                yield f"{rule}[{tool!r}]", tool, declaration.argument


def _check_arguments(rules: Rules, schemas: Mapping[str, ToolSchema]) -> Iterator[str]:
    for rule, tool, argument in _rules_with_argument(rules):
        schema = schemas[tool].parameters if tool in schemas else {}
        if tool not in schemas or schema.get("additionalProperties"):
            continue
        known_arguments = schema.get("properties") or {}
        if argument not in known_arguments:
            yield (
                f"{rule}: the tool has no argument {argument!r}, so the rule never applies; "
                f"{name_suggestion(argument, known_arguments)}"
            )
            continue
        parameter = known_arguments[argument]
        json_type = parameter.get("type") if isinstance(parameter, dict) else None
        if isinstance(json_type, str) and json_type in _NON_ID_TYPES:
            yield (
                f"{rule}: argument {argument!r} is of type {json_type}, which cannot hold an id, so the rule "
                "never applies; name an argument of type string or integer"
            )


def _check_tables(rules: Rules) -> Iterator[str]:
    """Yield the problems of rules that name a table unknown to all other rules."""
    read_tables = {reading.table for reading in rules.reads.values()}
    read_tables |= {writing.table for writing in rules.writes.values() if writing.creates}
    read_tables |= {rules.customers} if any(rules.identify.values()) else set()
    for tool, writing in rules.writes.items():
        if writing.table not in read_tables and not writing.creates:
            yield (
                f"writes[{tool!r}]: no tool reads or creates a record of table {writing.table!r}, so every "
                f"call breaks read_before_write; {name_suggestion(writing.table, read_tables)}"
            )
    known_tables = read_tables | {writing.table for writing in rules.writes.values()}
    for table in rules.ids.keys() - known_tables:
        suggestion = name_suggestion(table, known_tables)
        yield f"ids[{table!r}]: no tool reads or writes a record of this table; {suggestion}"
    if rules.customers not in known_tables and (
        hint := name_suggestion(rules.customers, known_tables)
    ).startswith("did you mean"):
        yield f"customers: no tool reads or writes a record of table {rules.customers!r}; {hint}"


def _check_words(rules: Rules) -> Iterator[str]:
    """Yield the problems of words that are empty or not in lower case."""
    words_of_rule = [(f"writes[{tool!r}].named", writing.named) for tool, writing in rules.writes.items()]
    for index, promise in enumerate(rules.promises):
        for name in ("verbs", "nouns", "about", "unless", "phrases"):
            words_of_rule.append((f"promises[{index}].{name}", getattr(promise, name)))
    for rule, words in words_of_rule:
        for word in words:
            if not word.strip():
                yield f"{rule}: {word!r} is an empty word; remove it or write the word"
            elif word != word.lower():
                yield (
                    f"{rule}: {word!r} has capital letters, but is compared with lower-case text, so it "
                    f"never matches; write {word.lower()!r}"
                )


def _check_promises(rules: Rules) -> Iterator[str]:
    """Yield the problems of promises without tools or words, and of statuses without a field."""
    for index, promise in enumerate(rules.promises):
        if not promise.tools:
            yield f"promises[{index}]: tools is empty; name the tools that make the claim true"
        if not (promise.verbs or promise.nouns or promise.phrases):
            yield f"promises[{index}]: it has no verbs, nouns or phrases, so it matches no text; add some"
    for rule, statuses, _ in _declared_statuses(rules):
        if statuses and not rules.status:
            yield f"{rule}.statuses: the rules name no field of the status (status is ''); name it"


def _declared_statuses(rules: Rules) -> Iterator[tuple[str, frozenset[str], set[str]]]:
    """Yield each rule with the statuses that it names and the tables whose records may have them."""
    for tool, writing in rules.writes.items():
        yield f"writes[{tool!r}]", writing.statuses, {writing.table}
    for index, promise in enumerate(rules.promises):
        tables = {rules.writes[tool].table for tool in promise.tools if tool in rules.writes}
        yield f"promises[{index}]", promise.statuses, tables


def _check_paths(rules: Rules) -> Iterator[str]:
    path_of_rule = [
        *((f"identify[{tool!r}]", path) for tool, path in rules.identify.items()),
        *((f"writes[{tool!r}].id_path", writing.id_path) for tool, writing in rules.writes.items()),
    ]
    for rule, path in path_of_rule:
        if path and not all(path.split(".")):
            yield f"{rule}: {path!r} has an empty part, so it finds no id; separate keys with one dot"


def _check_patterns(rules: Rules, calls: Sequence[AnsweredCall]) -> Iterator[str]:
    """Yield the problems of patterns that are invalid, match the empty text, or match no id in the calls."""
    ids_of_table = defaultdict(set)
    for call in calls:
        if target := target_of(call, rules):
            ids_of_table[target[0]].add(target[1])
    for table, text in rules.ids.items():
        rule = f"ids[{table!r}]"
        try:
            pattern = re.compile(text)
        except re.error as error:
            yield f"{rule}: {text!r} is not a regular expression ({error}); correct it"
            continue
        if pattern.fullmatch(""):
            yield f"{rule}: {text!r} matches the empty text, so it finds no ids; require some character"
        elif ids_of_table[table] and not any(pattern.search(key) for key in ids_of_table[table]):
            yield (
                f"{rule}: {text!r} matches none of the ids that the tasks name, such as "
                f"{min(ids_of_table[table])!r}; correct it"
            )


def _check_results(rules: Rules, calls: Sequence[AnsweredCall]) -> Iterator[str]:
    """Yield the problems of tools whose results never have the declared form."""
    calls_of_tool = defaultdict(list)
    for call in calls:
        calls_of_tool[call.tool_call.name].append(call)
    paths = [(f"identify[{tool!r}]", tool, path) for tool, path in rules.identify.items()]
    paths += [
        (f"writes[{tool!r}].id_path", tool, writing.id_path)
        for tool, writing in rules.writes.items()
        if not writing.argument
    ]
    for rule, tool, path in paths:
        if calls_of_tool[tool] and all(id_at(call.text, path) is None for call in calls_of_tool[tool]):
            results_text = _describe_results(calls_of_tool[tool], tool)
            expected = f"has an id at {path!r}" if path else "is an id as plain text"
            yield (
                f"{rule}: none of {results_text} {expected}, so the rule never applies; "
                f"{'correct the path' if path else 'give the path of the id'}"
            )
    for rule, tool, _ in _rules_with_argument(rules):
        if calls_of_tool[tool] and all(call.record is None for call in calls_of_tool[tool]):
            results_text = _describe_results(calls_of_tool[tool], tool)
            yield (
                f"{rule}: none of {results_text} is a JSON object, so the rule never applies; "
                "let the tool return the record"
            )


def _describe_results(calls: Sequence[AnsweredCall], tool: str) -> str:
    """Describe a tool's results: their number, and the keys of the first if it is an object."""
    keys = sorted(map(str, calls[0].record or ()))
    with_keys = f" (the first has the keys {_format_list(keys)})" if keys else ""
    return f"{len(calls)} results of {tool!r}{with_keys}"


def _format_list(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")


def _check_fields(rules: Rules, calls: Sequence[AnsweredCall]) -> Iterator[str]:
    """Yield the problems of owner and status fields that no record has."""
    owners: list[str | None] = []
    owned_fields: set[str] = set()
    fields: set[str] = set()
    for call in calls:
        target, record = target_of(call, rules), record_in_result(call, rules)
        if target is None or not record:
            continue
        fields |= record.keys()
        if target[0] != rules.customers:
            owned_fields |= record.keys()
            owners.append(owner_of(call, target, record, rules))
    if rules.owner and owned_fields and not any(owners):
        yield (
            f"owner: no record that the tasks read has an id in field {rules.owner!r}; the fields are "
            f"{_format_list(sorted(owned_fields))}; correct it"
        )
    has_statuses = any(statuses for _, statuses, _ in _declared_statuses(rules))
    if rules.status and has_statuses and fields and rules.status not in fields:
        yield (
            f"status: no record that the tasks read has a field {rules.status!r}; the fields are "
            f"{_format_list(sorted(fields))}; correct it"
        )


def _check_statuses(rules: Rules, calls: Sequence[AnsweredCall]) -> Iterator[str]:
    """Yield the problems of statuses that no record had; the cause may also be an incomplete set of tasks."""
    statuses_of_table: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        target, record = target_of(call, rules), record_in_result(call, rules)
        status = record.get(rules.status) if record else None
        if target is not None and isinstance(status, str):
            statuses_of_table[target[0]].add(status)
    for rule, statuses, tables in _declared_statuses(rules):
        seen_statuses = set().union(*(statuses_of_table[table] for table in tables))
        if statuses and seen_statuses and not statuses & seen_statuses:
            seen_text = _format_list(sorted(seen_statuses))
            yield (
                f"{rule}.statuses: no record that the tasks read has the status "
                f"{' or '.join(map(repr, sorted(statuses)))}; they have {seen_text}; "
                "correct a misspelt status"
            )
