"""Candidates: everything about an agent that a change may touch, with a parent and a hypothesis.

A candidate is one Markdown file: front matter between two lines of `---`, then the instruction text. The
front matter is YAML with texts, lists of texts, and the mappings `tools` and `parameters`.

A candidate such as `v6+precondition_verification` has no file of its own. It is candidate `v6` with one of
the project's adapters.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from pytest_trace2evolve.errors import AdapterError, CandidateError, name_suggestion, shorten, similar_names
from pytest_trace2evolve.models.settings import ModelParameters
from pytest_trace2evolve.project.adapters import Adapter, Adapters
from pytest_trace2evolve.project.tool_settings import AgentName
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.evidence import CandidateRef
from pytest_trace2evolve.records.protocols import Agent, SupportsTaskTools, ToolSchema, User, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.files import is_inside
from pytest_trace2evolve.utils.reading import first_problem, read_text
from pytest_trace2evolve.utils.yaml_text import parse_yaml

DEFAULT_CANDIDATE = "v0"
"""The candidate of a run that does not name one."""

ADAPTER_SEPARATOR = "+"
"""Separates a candidate's id from the name of its adapter, as in `v6+precondition_verification`."""

ROUTED = "routed"
"""Stands for an adapter's name if the base model chooses a promoted adapter, or none, for each task."""

CandidateId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\+[a-z][a-z0-9]*(_[a-z0-9]+)*)?$")
]

Change = Literal["agent", "model", "parameters"]
"""The parts of the agent that a candidate may change besides its instruction."""


def _check_iso_day(value: object) -> object:
    """Check that a date is written as YYYY-MM-DD; pydantic reads a string of digits as seconds since 1970."""
    if isinstance(value, str) and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
        raise ValueError("a day must be written as YYYY-MM-DD")
    return value


class ToolText(Record):
    """The descriptions of a tool and of its parameters that a model reads."""

    description: str | None = None
    parameters: dict[str, str] = Field(default_factory=dict)


class TargetedClaim(Record):
    """The claim of a gain on the tasks with one of some tags, without harm elsewhere."""

    tags: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]


class Candidate(Record):
    """One candidate.

    Attributes:
        id: The candidate's name; its file is `<id>.md`.
        parent: The id of the candidate from which this one was made; None for a root.
        hypothesis: The expected change, and why it should help.
        claim: The goal with which a pull request is gated that adds the candidate; None for no-regression. A
            targeted claim has goal `improve`, and every run with this goal tests it.
        frozen_at: The day after which its text may not change.
        informed_by: Evidence that the candidate's author had seen, as `suite::split` or `suite::split::task`.
        changes: Declared changes besides the instruction: `agent` (the implementation), `model`,
            `parameters`. A run in which one of these differs from the baseline is rejected unless the change
            is named here.
        instruction: The text added after the policy in the agent's prompt; may be empty.
        prompt: The text that replaces the world's policy; empty for the policy. The front matter names its
            file, relative to the project's root.
        tools: Descriptions of tools that replace those of the world, by the tools' names.
        model: The name of the model that the agent uses; None for that of the run.
        parameters: Parameters of the model that replace those of the run.
        agent: The import path of the function that makes the agent, or the agent's URL; None for that of the
            run.
        ref: The git commit whose code makes the agent; None for the code of the working tree.
        weights: Digest of the candidate's adapters; empty without an adapter, and for every candidate that is
            read from a file.
    """

    id: CandidateId
    parent: CandidateId | None = None
    hypothesis: str = ""
    claim: Goal | TargetedClaim | None = None
    frozen_at: Annotated[date | None, BeforeValidator(_check_iso_day)] = None
    informed_by: tuple[Annotated[str, Field(pattern=r"^[^:\s][^:]*::[^:].*$")], ...] = ()
    changes: tuple[Change, ...] = ()
    instruction: str = ""
    prompt: str = ""
    tools: dict[str, ToolText] = Field(default_factory=dict)
    model: Annotated[str, Field(min_length=1)] | None = None
    parameters: ModelParameters = ModelParameters()
    agent: AgentName | None = None
    ref: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")] | None = None
    weights: str = ""

    @model_validator(mode="after")
    def _check_parent_and_adapter(self) -> Self:
        if self.parent == self.id:
            raise ValueError("a candidate cannot be its own parent")
        if bool(self.adapter) != bool(self.weights):
            raise ValueError(
                f"{ADAPTER_SEPARATOR!r} in an id names an adapter, which a file cannot add; choose a "
                "different id"
            )
        return self

    @property
    def adapter(self) -> str:
        """The name of the candidate's adapter, or `ROUTED`; empty without an adapter."""
        return self.id.partition(ADAPTER_SEPARATOR)[2]

    @property
    def digest(self) -> str:
        """A digest of the candidate's texts, claimed tags, settings, declared changes and adapter weights."""
        text = digest_text(self.instruction)
        if self.claimed_tags:
            text = digest([text, {"claim": sorted(set(self.claimed_tags))}])
        if self.changes:
            text = digest([text, {"changes": sorted(set(self.changes))}])
        # Settings that are not given are left out, so that the digests of older candidates do not change.
        if settings := self.settings:
            text = digest([text, {"settings": settings}])
        return digest([text, self.weights]) if self.weights else text

    @property
    def claimed_tags(self) -> tuple[str, ...]:
        """The tags of the tasks on which the candidate claims a gain; empty for all tasks."""
        return self.claim.tags if isinstance(self.claim, TargetedClaim) else ()

    @property
    def settings(self) -> dict[str, object]:
        """The settings that the candidate sets besides its instruction, as JSON."""
        names = {"prompt", "tools", "model", "parameters", "agent", "ref"}
        return self.model_dump(mode="json", include=names, exclude_defaults=True)

    @property
    def declared_changes(self) -> frozenset[str]:
        """The declared changes; a setting or an adapter counts as a change without a declaration."""
        implied = {
            "model": bool(self.weights or self.model),
            "parameters": self.parameters != ModelParameters(),
            "agent": bool(self.agent or self.ref),
        }
        return frozenset(self.changes) | {name for name, is_changed in implied.items() if is_changed}

    def describe_tools(self, tools: Sequence[ToolSchema]) -> list[ToolSchema]:
        """Return tools with the candidate's descriptions.

        Raises:
            CandidateError: the candidate describes a tool or a parameter that does not exist.
        """
        if not self.tools:
            return list(tools)
        names = [tool.name for tool in tools]
        for name in self.tools:
            if name not in names:
                raise CandidateError(
                    f"candidate {self.id!r} describes tool {name!r}, which does not exist; "
                    f"{name_suggestion(name, names)}"
                )
        return [self._describe_tool(tool) if tool.name in self.tools else tool for tool in tools]

    def task_tools(self, world: World, task: Task) -> list[ToolSchema]:
        """Return the agent's tools in a task with the candidate's descriptions.

        A world may hide some of its tools in a task, or show them under other names; their descriptions are
        then without effect.

        Raises:
            CandidateError: the candidate describes a tool or a parameter that does not exist.
        """
        if not isinstance(world, SupportsTaskTools):
            return self.describe_tools(world.tools("assistant"))
        tools = world.task_tools(task)
        names = {tool.name for tool in tools}
        shown = {name: text for name, text in self.tools.items() if name in names}
        return self.model_copy(update={"tools": shown}).describe_tools(tools)

    def _describe_tool(self, tool: ToolSchema) -> ToolSchema:
        text = self.tools[tool.name]
        properties = dict(tool.parameters.get("properties") or {})
        for name, description in text.parameters.items():
            if name not in properties:
                raise CandidateError(
                    f"candidate {self.id!r} describes parameter {name!r} of tool {tool.name!r}, which does "
                    f"not exist; {name_suggestion(name, list(properties))}"
                )
            properties[name] = {**properties[name], "description": description}
        return ToolSchema(
            name=tool.name,
            description=tool.description if text.description is None else text.description,
            parameters={**tool.parameters, "properties": properties},
        )

    def with_adapters(self, name: str, adapters: Sequence[Adapter], router: str = "") -> "Candidate":
        """Return a child of this candidate that uses an adapter, or routes to several with a router's digest.

        The child's `frozen_at` is the latest of the days of this candidate and its adapters; None if any of
        these days is not known.
        """
        days = [self.frozen_at, *(adapter.training_date for adapter in adapters)]
        known_days = [day for day in days if day is not None]
        manifests = [adapter.manifest for adapter in adapters]
        sources = (*self.informed_by, *(source for manifest in manifests for source in manifest.informed_by))
        capabilities = ", ".join(manifest.capability for manifest in manifests)
        digests = {adapter.name: adapter.digest for adapter in adapters} | ({"": router} if router else {})
        return Candidate(
            id=f"{self.id}{ADAPTER_SEPARATOR}{name}",
            parent=self.id,
            hypothesis=f"{capabilities}: what was missing, trained",
            frozen_at=max(known_days) if len(known_days) == len(days) else None,
            informed_by=tuple(dict.fromkeys(sources)),
            changes=self.changes,
            instruction=self.instruction,
            prompt=self.prompt,
            tools=self.tools,
            model=self.model,
            parameters=self.parameters,
            agent=self.agent,
            ref=self.ref,
            weights=digest(digests),
        )

    def to_ref(self) -> CandidateRef:
        """The part of a candidate that evidence records."""
        return CandidateRef(id=self.id, digest=self.digest, parent=self.parent, informed_by=self.informed_by)

    def has_seen(self, suite: str, split: str) -> bool:
        """Whether the candidate's author had seen any part of a split when the candidate was frozen."""
        split_id = f"{suite}::{split}"
        return any(seen == split_id or seen.startswith(split_id + "::") for seen in self.informed_by)


class Candidates:
    """All candidates of a folder. Each file is read when it is first needed.

    Args:
        folder: The folder of their files.
        adapters: The adapters that candidates can use, as in `v6+NAME` and `v6+routed`. Such ids are valid,
            but iteration does not list them.
    """

    def __init__(self, folder: Path, adapters: Adapters | None = None) -> None:
        self._folder = folder
        self._adapters = adapters
        self._candidates: dict[str, Candidate] = {}

    def __getitem__(self, name: str) -> Candidate:
        text, _, adapter = name.partition(ADAPTER_SEPARATOR)
        if adapter:
            router = self._adapters.router_digest if adapter == ROUTED and self._adapters else ""
            return self[text].with_adapters(adapter, self._adapters_named(adapter), router)
        if name not in self._candidates:
            path = self._folder / f"{name}.md"
            if name not in self:
                raise CandidateError(self._unknown_name_text(name))
            self._candidates[name] = read_candidate(path)
        return self._candidates[name]

    def __contains__(self, name: object) -> bool:
        text, _, adapter = str(name).partition(ADAPTER_SEPARATOR)
        if not adapter or self._adapters is None:
            return name in list(self)
        return text in list(self) and (adapter == ROUTED or adapter in list(self._adapters))

    def files(self, name: str) -> list[Path]:
        """The paths of a candidate's own files: its text, its prompt and the folder of its adapter.

        Raises:
            CandidateError: the candidate's file is missing or invalid.
        """
        text, _, adapter = name.partition(ADAPTER_SEPARATOR)
        path = self._folder / f"{text}.md"
        prompts: list[str] = []

        def note_prompt(prompt: str) -> str:
            prompts.append(prompt)
            return prompt

        parse_candidate(read_text(path, CandidateError), path, note_prompt)
        paths = [path, *(self._folder.parent / prompt for prompt in prompts)]
        if adapter not in ("", ROUTED) and self._adapters is not None:
            paths.append(self._adapters.folder / adapter)
        return paths

    def _adapters_named(self, adapter: str) -> Sequence[Adapter]:
        if self._adapters is None:
            raise CandidateError(
                f"{ADAPTER_SEPARATOR}{adapter}: the candidates of {self._folder} have no adapters"
            )
        if adapter != ROUTED:
            return [self._adapters[adapter]]
        if routed := self._adapters.routed_adapters():
            return routed
        raise AdapterError(
            f"{ADAPTER_SEPARATOR}{ROUTED}: no adapter in {self._adapters.folder} is promoted, but "
            "only promoted ones are routed to; train and gate one with pytest --t2e-evolve"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.stem for path in self._folder.glob("*.md")))

    def lineage(self, name: str) -> list[Candidate]:
        """A candidate and its ancestors, nearest first.

        Raises:
            CandidateError: an ancestor is unknown, or the lineage has a cycle.
        """
        chain = [self[name]]
        while (parent := chain[-1].parent) is not None:
            if parent in {candidate.id for candidate in chain}:
                names = " → ".join([*(candidate.id for candidate in chain), parent])
                raise CandidateError(
                    f"{self._folder}: the parents form a cycle: {names}; correct one of them"
                )
            if parent not in self:
                text = self._unknown_name_text(parent, "parent", child=chain[-1].id)
                raise CandidateError(f"{self._folder / chain[-1].id}.md: {text}")
            chain.append(self[parent])
        return chain

    def children(self, name: str) -> list[str]:
        """The candidates whose parent a candidate is, by name. Invalid files are left out."""
        children = []
        for child in self:
            with contextlib.suppress(CandidateError):
                if self[child].parent == name:
                    children.append(child)
        return children

    def _unknown_name_text(self, name: str, role: str = "candidate", child: str = "") -> str:
        known_names = [known_name for known_name in self if known_name != child]
        if not known_names:
            kind = "other candidates" if child else "candidates"
            return f"unknown {role} {name!r}; {self._folder} contains no {kind}"
        suggestions = similar_names(name, known_names, max_names=3) or known_names[:8]
        return f"unknown {role} {name!r}; nearest are {', '.join(suggestions)} in {self._folder}"


_OWN_FIELDS = ("id", "parent", "hypothesis", "claim", "frozen_at", "informed_by")
"""Fields of a candidate that its children do not inherit."""


def render_child(parent: str, child: Candidate) -> str:
    """Return the text of the file of a child that differs from its parent in its instruction or parameters.

    Args:
        parent: The text of the parent's file, from which the child keeps all other fields.
        child: The child, with a hypothesis on one line.
    """
    lines, _ = _split_front_matter(Path(f"{child.parent}.md"), parent)
    dropped_fields = {*_OWN_FIELDS, "changes", "parameters"}
    fields = [
        f"id: {child.id}",
        f"parent: {child.parent}",
        f'hypothesis: "{child.hypothesis}"',
        *([] if child.frozen_at is None else [f"frozen_at: {child.frozen_at.isoformat()}"]),
        *([f"informed_by: [{', '.join(child.informed_by)}]"] if child.informed_by else []),
        *([f"changes: [{', '.join(child.changes)}]"] if child.changes else []),
        *(["parameters:"] if child.parameters.given else []),
        *(f"  {name}: {json.dumps(value)}" for name, value in child.parameters.given.items()),
    ]
    is_kept = False
    for line in lines:
        if match := re.match(r"([A-Za-z_]+)[ \t]*:", line):
            is_kept = match[1] not in dropped_fields
        if is_kept:
            fields.append(line)
    return "\n".join(["---", *fields, "---", child.instruction, ""])


def describe_source(name: str) -> str:
    """Return the paths of a candidate's file and its adapter, for messages."""
    text, _, adapter = name.partition(ADAPTER_SEPARATOR)
    return f"candidates/{text}.md" + (f" or adapters/{adapter}" if adapter else "")


def read_candidate(path: Path) -> Candidate:
    return parse_candidate(read_text(path, CandidateError), path)


def parse_candidate(text: str, path: Path, read_prompt: Callable[[str], str] | None = None) -> Candidate:
    """Parse a candidate from the text of a current or earlier version of its file.

    Args:
        text: The text of the file.
        path: The path of the file, which gives the id.
        read_prompt: Reads the file that the front matter names as `prompt`; None reads the current one.

    Raises:
        CandidateError: the front matter is invalid; the message names the file, the place and the remedy.
    """
    lines, instruction = _split_front_matter(path, text)
    lines, blocks = _split_blocks(path, lines)
    fields = {**_parse_front_matter(path, lines), **blocks}
    for name, reason in _FORBIDDEN_FIELDS.items():
        if name in fields:
            raise CandidateError(f"{path}: {name}: {reason}")
    if isinstance(prompt := fields.get("prompt"), str):
        fields["prompt"] = _read_prompt(path, prompt) if read_prompt is None else read_prompt(prompt)
    try:
        candidate = Candidate.model_validate({**fields, "instruction": instruction})
    except ValidationError as error:
        raise CandidateError(f"{path}: {first_problem(error, 'front matter')}") from None
    if candidate.id != path.stem:
        raise CandidateError(
            f"{path}: its id is {candidate.id!r}; name the file {candidate.id}.md or correct the id"
        )
    return candidate


_FORBIDDEN_FIELDS = {
    "instruction": "is the text below the front matter, not a part of it",
    "weights": "follow from the adapter that a candidate's id names, as in v6+NAME",
}
"""Fields of a candidate that its front matter may not set."""

_MAX_FRONT_MATTER_LINES = 2_000
"""The maximum number of lines of front matter."""


def _split_front_matter(path: Path, text: str) -> tuple[list[str], str]:
    """Return the lines of the front matter, and the text below it."""
    # Not `splitlines`, which also splits at form feeds and other characters that Markdown keeps.
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != "---":
        raise CandidateError(f"{path}: line 1 must be '---', the start of the front matter")
    end = next((number for number, line in enumerate(lines) if number and line.strip() == "---"), None)
    if end is None:
        raise CandidateError(
            f"{path}: the front matter is not closed; put '---' on a line of its own after it"
        )
    if end > _MAX_FRONT_MATTER_LINES:
        raise CandidateError(
            f"{path}: the front matter has more than {_MAX_FRONT_MATTER_LINES} lines; shorten it"
        )
    return lines[1:end], "\n".join(lines[end + 1 :]).strip()


_BLOCK_START = re.compile(r"^(tools|parameters|claim)[ \t]*:(?=[ \t]|$)")
"""The first line of a field of front matter that holds nested YAML."""


def _split_blocks(path: Path, lines: list[str]) -> tuple[list[str], dict[str, object]]:
    """Replace the fields that hold nested YAML by empty lines; return the lines and the parsed fields."""
    remaining, blocks = list(lines), dict[str, object]()
    start = 0
    while start < len(lines):
        end = start + 1
        if match := _BLOCK_START.match(lines[start]):
            while end < len(lines) and (not lines[end].strip() or lines[end][0] in " \t#"):
                end += 1
            if match[1] in blocks:
                raise CandidateError(f"{path}: line {start + 2} repeats {match[1]!r}; remove one of them")
            # The front matter starts on line 2 of the file, after the opening '---'.
            block = parse_yaml("\n".join(lines[start:end]), path, CandidateError, first_line=start + 2)
            blocks |= {key: value for key, value in block.items() if value is not None}
            remaining[start:end] = [""] * (end - start)
        start = end
    return remaining, blocks


def _read_prompt(path: Path, name: str) -> str:
    """Read the prompt of a candidate's file; its path is relative to the project's root.

    Raises:
        CandidateError: the file is missing, empty or outside the project.
    """
    root = path.parent.parent
    prompt_path = root / name
    if Path(name).is_absolute() or not is_inside(prompt_path, root):
        raise CandidateError(f"{path}: prompt {name!r} lies outside the project; name a file inside it")
    text = read_text(prompt_path, CandidateError).strip()
    if not text:
        raise CandidateError(f"{path}: prompt {name!r} is empty; write the agent's prompt into it")
    return text


def _parse_front_matter(path: Path, lines: list[str]) -> dict[str, object]:
    """Parse the fields of front matter: texts and lists of texts, but no anchors, aliases or tags."""
    import yaml

    def syntax_error(line: int) -> CandidateError:
        text = shorten(repr(lines[line].strip()), 200) if line < len(lines) else "the end"
        return CandidateError(f"{path}: line {line + 2} is not 'key: value': {text}")

    fields: dict[str, object] = {}
    key: str | None = None
    items: list[str] | None = None
    is_mapping_open = False
    try:
        for event in yaml.parse(_quote_texts("\n".join(lines)), Loader=yaml.SafeLoader):
            line = event.start_mark.line
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                raise syntax_error(line)
            if isinstance(event, yaml.ScalarEvent) and is_mapping_open:
                text = " ".join(part.strip() for part in event.value.split("\n")).strip()
                if items is not None:
                    items.append(text)
                elif key is None:
                    key = text
                    if key in fields:
                        raise CandidateError(f"{path}: line {line + 2} repeats {key!r}; remove one of them")
                else:
                    is_null = event.style != '"' and text in ("", "null", "~")
                    fields[key], key = None if is_null else text, None
            elif isinstance(event, yaml.SequenceStartEvent) and key is not None and items is None:
                items = []
            elif isinstance(event, yaml.SequenceEndEvent) and key is not None:
                fields[key], key, items = items, None, None
            elif isinstance(event, yaml.MappingStartEvent) and not is_mapping_open:
                is_mapping_open = True
            elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
                raise syntax_error(line)
    except yaml.MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark
        raise syntax_error(mark.line if mark else 0) from None
    except yaml.YAMLError as error:
        cause = shorten(" ".join(str(error).split()), 200)
        raise CandidateError(f"{path}: the front matter is not YAML: {cause}") from None
    return fields


_LIST_FIELD = re.compile(r"^([A-Za-z_]+[ \t]*:[ \t]+)\[(.*)\][ \t]*$", re.MULTILINE)
_TEXT_FIELD = re.compile(
    r"^([A-Za-z_]+[ \t]*:(?:[ \t]+|[ \t]*\n[ \t]+(?!- )))(?!(?:[>|]-?|null|~|\[.*\])[ \t]*$)"
    r"(\S.*(?:\n+[ \t]+\S.*)*)",
    re.MULTILINE,
)
_LIST_ITEM = re.compile(r"^([ \t]*- +)(\S.*)$", re.MULTILINE)


def _quote_texts(front_matter: str) -> str:
    """Quote the texts of front matter, so that `: ` and ` #` have no special meaning in them."""

    def quote(text: str) -> str:
        joined = " ".join(line.strip() for line in text.split("\n") if line.strip())
        if re.fullmatch(r"'.*'|\".*\"", joined):
            joined = joined[1:-1]
        return '"' + joined.encode("unicode_escape").decode().replace('"', '\\"') + '"'

    def quote_items(match: re.Match[str]) -> str:
        return f"{match[1]}[{', '.join(quote(item) for item in match[2].split(',') if item.strip())}]"

    text = re.sub(r"^[ \t]*#.*$", "", front_matter, flags=re.MULTILINE)
    text = re.sub(r"^\t+", "  ", text, flags=re.MULTILINE)
    text = _LIST_FIELD.sub(quote_items, text)
    text = _TEXT_FIELD.sub(lambda match: f"{match[1]}{quote(match[2])}" + "\n" * match[2].count("\n"), text)
    return _LIST_ITEM.sub(lambda match: match[1] + quote(match[2]), text)


class AgentFactory(Protocol):
    """Creates a candidate's agent, and the user that it talks to, for one trial of a task.

    Only solo suites pass `solo=True`; all others omit the argument. A factory without the argument therefore
    works for every suite that is not solo.
    """

    def __call__(
        self, task: Task, world: World, candidate: Candidate, trial: int, /, *, solo: bool = False
    ) -> tuple[Agent, User]:
        """Return the agent and the user. In solo mode the user is never asked."""
