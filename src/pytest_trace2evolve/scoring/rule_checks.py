"""Detection of world rules that can never match. Such rules find nothing, and no figure reveals them.

Some checks need only the schemas of the tools. Others need results, such as those of the tasks' gold actions.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.errors import nearest
from pytest_trace2evolve.records.message import ToolCall
from pytest_trace2evolve.records.protocols import ToolSchema, World
from pytest_trace2evolve.records.rules import Rules, id_at
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.invariants import (
    Call,
    Outcome,
    outcome_of,
    owner_of,
    record_shown,
    target_of,
)

MAX_TASKS = 200
"""Maximum number of tasks whose gold actions are carried out."""

_NAMES_NO_RECORD = frozenset({"array", "boolean", "null", "object"})
"""JSON Schema types whose values cannot be ids."""

_MAX_LISTED = 6
"""Maximum number of names that a message lists."""


@dataclass(frozen=True)
class Problem:
    """A rule that cannot match, with the cause and the remedy in one line.

    Attributes:
        certain: Whether the problem is certain for all tasks; otherwise the given calls only suggest it.
    """

    text: str
    certain: bool = True


def gold_calls(world: World, tasks: Iterable[Task]) -> list[Call]:
    """The successful calls of the agent among the gold actions of the first tasks, with their results."""
    found = []
    for _, task in zip(range(MAX_TASKS), tasks, strict=False):
        session = world.open()
        session.initialise(task.initial_state)
        for number, action in enumerate(task.actions):
            if action.requestor != "assistant":
                session.perform(action)
                continue
            result = session.call(action.name, action.arguments, "assistant")
            call = ToolCall(id=str(number), name=action.name, arguments=dict(action.arguments))
            made = outcome_of(call, result.answering(call))
            if made.outcome is Outcome.DONE:
                found.append(made)
    return found


def rule_problems(rules: Rules, tools: Sequence[ToolSchema], calls: Sequence[Call] = ()) -> Iterator[Problem]:
    """Yield the problems of a world's rules that can never match.

    Args:
        rules: The world's rules.
        tools: The agent's tools.
        calls: Successful calls of these tools, from `gold_calls`. The results of tools without calls are
            not checked.
    """
    schemas = {tool.name: tool for tool in tools}
    certain = (
        *_unknown_tools(rules, schemas),
        *_arguments(rules, schemas),
        *_tables(rules),
        *_words(rules),
        *_promises(rules),
        *_paths(rules),
        *_patterns(rules, calls),
        *_results(rules, calls),
        *_fields(rules, calls),
    )
    yield from map(Problem, certain)
    for text in _statuses(rules, calls):
        yield Problem(text, certain=False)


def _unknown_tools(rules: Rules, schemas: Mapping[str, ToolSchema]) -> Iterator[str]:
    named: dict[str, Iterable[str]] = {
        "identify": rules.identify,
        "reads": rules.reads,
        "writes": rules.writes,
    }
    for place, promise in enumerate(rules.promises):
        named[f"promises[{place}].tools"] = sorted(promise.tools)
    for rule, tools in named.items():
        for tool in tools:
            if tool not in schemas:
                hint = nearest(tool, schemas)
                yield f"{rule}: the agent has no tool {tool!r}, so the rule never applies; {hint}"


def _with_arguments(rules: Rules) -> Iterator[tuple[str, str, str]]:
    """Yield each rule that identifies a record by an argument, with its tool and the argument."""
    for rule, tools in (("reads", rules.reads), ("writes", rules.writes)):
        for tool, declared in tools.items():
            if declared.argument:
                yield f"{rule}[{tool!r}]", tool, declared.argument


def _arguments(rules: Rules, schemas: Mapping[str, ToolSchema]) -> Iterator[str]:
    for rule, tool, argument in _with_arguments(rules):
        schema = schemas[tool].parameters if tool in schemas else {}
        if tool not in schemas or schema.get("additionalProperties"):
            continue
        known = schema.get("properties") or {}
        if argument not in known:
            yield (
                f"{rule}: the tool has no argument {argument!r}, so the rule never applies; "
                f"{nearest(argument, known)}"
            )
            continue
        parameter = known[argument]
        kind = parameter.get("type") if isinstance(parameter, dict) else None
        if isinstance(kind, str) and kind in _NAMES_NO_RECORD:
            yield (
                f"{rule}: argument {argument!r} is of type {kind}, which names no record, so the rule never "
                "applies; name an argument of type string or integer"
            )


def _tables(rules: Rules) -> Iterator[str]:
    """Yield the problems of rules that name a table unknown to all other rules."""
    read = {reading.table for reading in rules.reads.values()}
    read |= {writing.table for writing in rules.writes.values() if writing.creates}
    read |= {rules.customers} if any(rules.identify.values()) else set()
    for tool, writing in rules.writes.items():
        if writing.table not in read and not writing.creates:
            yield (
                f"writes[{tool!r}]: no tool reads or creates a record of table {writing.table!r}, so every "
                f"call breaks read_before_write; {nearest(writing.table, read)}"
            )
    known = read | {writing.table for writing in rules.writes.values()}
    for table in rules.ids.keys() - known:
        yield f"ids[{table!r}]: no tool reads or writes a record of this table; {nearest(table, known)}"
    if rules.customers not in known and (hint := nearest(rules.customers, known)).startswith("did you mean"):
        yield f"customers: no tool reads or writes a record of table {rules.customers!r}; {hint}"


def _words(rules: Rules) -> Iterator[str]:
    """Yield the problems of words that are empty or not in lower case."""
    lists = [(f"writes[{tool!r}].named", writing.named) for tool, writing in rules.writes.items()]
    for place, promise in enumerate(rules.promises):
        for name in ("verbs", "nouns", "about", "unless", "phrases"):
            lists.append((f"promises[{place}].{name}", getattr(promise, name)))
    for rule, words in lists:
        for word in words:
            if not word.strip():
                yield f"{rule}: {word!r} is an empty word, which says nothing; remove it or write the word"
            elif word != word.lower():
                yield (
                    f"{rule}: {word!r} has capital letters and is compared with lower-case text, so it never "
                    f"matches; write {word.lower()!r}"
                )


def _promises(rules: Rules) -> Iterator[str]:
    """Yield the problems of promises without tools or words, and of statuses without a field."""
    for place, promise in enumerate(rules.promises):
        if not promise.tools:
            yield f"promises[{place}]: tools is empty; name the tools that make the claim true"
        if not (promise.verbs or promise.nouns or promise.phrases):
            yield f"promises[{place}]: it has no verbs, nouns or phrases, so no text claims it; add some"
    for rule, statuses, _ in _declared_statuses(rules):
        if statuses and not rules.status:
            yield f"{rule}.statuses: no record has a status, since status is ''; name the field that holds it"


def _declared_statuses(rules: Rules) -> Iterator[tuple[str, frozenset[str], set[str]]]:
    """Yield each rule with the statuses that it names and the tables whose records may have them."""
    for tool, writing in rules.writes.items():
        yield f"writes[{tool!r}]", writing.statuses, {writing.table}
    for place, promise in enumerate(rules.promises):
        tables = {rules.writes[tool].table for tool in promise.tools if tool in rules.writes}
        yield f"promises[{place}]", promise.statuses, tables


def _paths(rules: Rules) -> Iterator[str]:
    named = [
        *((f"identify[{tool!r}]", path) for tool, path in rules.identify.items()),
        *((f"writes[{tool!r}].id_path", writing.id_path) for tool, writing in rules.writes.items()),
    ]
    for rule, path in named:
        if path and not all(path.split(".")):
            yield f"{rule}: {path!r} has an empty part, so no id is there; write one dot between two keys"


def _patterns(rules: Rules, calls: Sequence[Call]) -> Iterator[str]:
    """Yield the problems of patterns that are invalid, match the empty text, or match no id in the calls."""
    ids = defaultdict(set)
    for call in calls:
        if target := target_of(call, rules):
            ids[target[0]].add(target[1])
    for table, text in rules.ids.items():
        rule = f"ids[{table!r}]"
        try:
            pattern = re.compile(text)
        except re.error as error:
            yield f"{rule}: {text!r} is no regular expression ({error}); correct it"
            continue
        if pattern.fullmatch(""):
            yield f"{rule}: {text!r} matches the empty text, so it finds no ids; require a character"
        elif ids[table] and not any(pattern.search(key) for key in ids[table]):
            yield (
                f"{rule}: {text!r} matches none of the ids that the tasks name, such as "
                f"{min(ids[table])!r}; correct it"
            )


def _results(rules: Rules, calls: Sequence[Call]) -> Iterator[str]:
    """Yield the problems of tools whose results never have the declared form."""
    made = defaultdict(list)
    for call in calls:
        made[call.call.name].append(call)
    paths = [(f"identify[{tool!r}]", tool, path) for tool, path in rules.identify.items()]
    paths += [
        (f"writes[{tool!r}].id_path", tool, writing.id_path)
        for tool, writing in rules.writes.items()
        if not writing.argument
    ]
    for rule, tool, path in paths:
        if made[tool] and all(id_at(call.text, path) is None for call in made[tool]):
            lacks = f"holds an id at {path!r}" if path else "is an id as plain text"
            yield (
                f"{rule}: none of {_results_of(made[tool], tool)} {lacks}, so the rule never applies; "
                f"{'correct the path' if path else 'give the path of the id'}"
            )
    for rule, tool, _ in _with_arguments(rules):
        if made[tool] and all(call.record is None for call in made[tool]):
            yield (
                f"{rule}: none of {_results_of(made[tool], tool)} is a JSON object, so the rule never "
                "applies; let the tool answer with the record"
            )


def _results_of(calls: Sequence[Call], tool: str) -> str:
    """The number of a tool's results, and the keys of the first if it is an object."""
    keys = sorted(map(str, calls[0].record or ()))
    with_keys = f" (the first has the keys {_listed(keys)})" if keys else ""
    return f"{len(calls)} results of {tool!r}{with_keys}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")


def _fields(rules: Rules, calls: Sequence[Call]) -> Iterator[str]:
    """Yield the problems of owner and status fields that no record has."""
    owners: list[str | None] = []
    owned: set[str] = set()
    fields: set[str] = set()
    for call in calls:
        target, record = target_of(call, rules), record_shown(call, rules)
        if target is None or not record:
            continue
        fields |= record.keys()
        if target[0] != rules.customers:
            owned |= record.keys()
            owners.append(owner_of(call, target, record, rules))
    if rules.owner and owned and not any(owners):
        yield (
            f"owner: no record that the tasks read has an id in field {rules.owner!r}; the fields are "
            f"{_listed(sorted(owned))}; correct it"
        )
    declared = any(statuses for _, statuses, _ in _declared_statuses(rules))
    if rules.status and declared and fields and rules.status not in fields:
        yield (
            f"status: no record that the tasks read has a field {rules.status!r}; the fields are "
            f"{_listed(sorted(fields))}; correct it"
        )


def _statuses(rules: Rules, calls: Sequence[Call]) -> Iterator[str]:
    """Yield the problems of statuses that no record had; the cause may also be an incomplete set of tasks."""
    seen: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        target, record = target_of(call, rules), record_shown(call, rules)
        status = record.get(rules.status) if record else None
        if target is not None and isinstance(status, str):
            seen[target[0]].add(status)
    for rule, statuses, tables in _declared_statuses(rules):
        had = set().union(*(seen[table] for table in tables))
        if statuses and had and not statuses & had:
            yield (
                f"{rule}.statuses: no record that the tasks read has the status "
                f"{' or '.join(map(repr, sorted(statuses)))}; they have {_listed(sorted(had))}; correct a "
                "misspelt status"
            )
