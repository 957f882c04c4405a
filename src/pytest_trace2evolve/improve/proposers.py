"""Proposers without a model: they change a candidate by a table of sentences, or by one sentence less."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.improve.search import Rewards, Row
from pytest_trace2evolve.models.settings import ModelParameters
from pytest_trace2evolve.project.adapters import Adapter
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.reading import convert_failures, parse_toml, read_text

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
REASONING_EFFORTS = ("low", "medium", "high")


@dataclass(frozen=True)
class Draft:
    """A proposed change: the whole instruction, or parameters of the model, and what is expected of it.

    With an adapter, the candidate is the parent with this adapter, and has no file of its own.
    """

    hypothesis: str
    instruction: str
    parameters: ModelParameters = field(default_factory=ModelParameters)
    adapter: Adapter | None = None

    def apply(self, parent: Candidate, name: str, **fields: Any) -> Candidate:
        """Return the child of a candidate with this change, under an id."""
        if self.adapter is not None:
            return parent.with_adapters(self.adapter.name, [self.adapter])
        changes = {
            "id": name,
            "parent": parent.id,
            "hypothesis": " ".join(self.hypothesis.split()),
            "claim": None,
            "instruction": self.instruction.strip(),
            "parameters": self.parameters,
        }
        return parent.model_copy(update={**changes, **fields})


@dataclass(frozen=True)
class Request:
    """What a proposer may know. It holds nothing of a split that decides or guards.

    Attributes:
        parent: The candidate to change.
        tried: The digests of all candidates of the search.
        history: Each earlier proposal with its outcome, oldest first.
        failures: Returns the conversations of discovery that the parent failed, as texts.
        kinds: Returns the kinds of failure among them, most frequent first, a line each.
        rates: Returns the parent's mean reward on discovery by group of tasks.
        informed_by: The splits from which these come, as `suite::split`.
        runs: The names of the runs from which these come.
        policy: The policy of the world, which the agent's prompt holds anyway.
        number: How many proposals the search has made before.
        rewards: By candidate, the mean reward of each measured discovery task.
        conversations: Returns one conversation of each discovery task that a candidate was measured on.
    """

    parent: Candidate
    tried: Collection[str] = ()
    history: Sequence[tuple[Candidate, Row]] = ()
    failures: Callable[[], Sequence[str]] = tuple
    kinds: Callable[[], Sequence[str]] = tuple
    rates: Callable[[], Mapping[str, float]] = dict
    informed_by: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    policy: str = ""
    number: int = 0
    rewards: Mapping[str, Rewards] = field(default_factory=dict)
    conversations: Callable[[str], Mapping[str, str]] = lambda candidate: {}

    def is_new(self, draft: Draft) -> bool:
        """Whether no candidate of the search has this text and these parameters."""
        return draft.apply(self.parent, "new").digest not in self.tried


class Proposer(Protocol):
    """Proposes changes of a candidate."""

    @property
    def identity(self) -> str:
        """A digest of everything on which the proposals depend."""

    def propose(self, request: Request) -> Draft | None:
        """Return the next change; None if nothing is left.

        Raises:
            ProposalError: a proposal was made that cannot be used. The search counts it, and goes on.
            EndpointError: a model rejects the request, or cannot be reached.
        """


@dataclass(frozen=True)
class TableProposer:
    """Adds one sentence of a table at a time, in its order; after a promotion, the most promising ones first.

    Attributes:
        sentences: The sentences, each with its hypothesis. A list in Markdown is added as it is, any other
            text as a bullet of the instruction's list.
    """

    sentences: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "TableProposer":
        """Read a TOML file with `sentences = [...]`, or with a table `[[sentences]]` for each.

        Raises:
            ConfigError: the file is no such table.
        """
        text = read_text(path, ConfigError)
        with convert_failures(path, ConfigError, "correct it"):
            content = parse_toml(text)
        entries = content.get("sentences")
        shape = 'write sentences = ["…"], or [[sentences]] with text = "…" and hypothesis = "…"'
        if content.keys() - {"sentences"} or not isinstance(entries, list) or not entries:
            raise ConfigError(f"{path}: has no list of sentences; {shape}")
        sentences: dict[str, str] = {}
        for entry in entries:
            fields = {"text": entry} if isinstance(entry, str) else entry
            is_entry = isinstance(fields, dict) and not fields.keys() - {"text", "hypothesis"}
            texts = [fields.get("text"), fields.get("hypothesis", "")] if is_entry else [None]
            if not all(isinstance(text, str) for text in texts) or not str(texts[0]).strip():
                raise ConfigError(f"{path}: sentence {len(sentences) + 1} is no text; {shape}")
            text = inspect.cleandoc(str(texts[0]))
            if text in sentences:
                raise ConfigError(f"{path}: repeats {text!r}; remove one of them")
            sentences[text] = str(texts[1]) or f"Adds: {_on_one_line(text)}"
        return cls(sentences)

    @cached_property
    def identity(self) -> str:
        return digest(["table", dict(self.sentences)])

    def propose(self, request: Request) -> Draft | None:
        gains = {candidate.hypothesis: row.gain or 0.0 for candidate, row in request.history}
        ordered = sorted(self.sentences.items(), key=lambda item: -gains.get(_on_one_line(item[1]), 0.0))
        instruction = request.parent.instruction
        for sentence, hypothesis in ordered:
            if _on_one_line(sentence) in _on_one_line(instruction):
                continue
            is_rule = not _BULLET.search(sentence) and (not instruction or _BULLET.search(instruction))
            rule = "- " + sentence.replace("\n", "\n  ") if is_rule else sentence
            draft = Draft(hypothesis, f"{instruction}\n{rule}", request.parent.parameters)
            if request.is_new(draft):
                return draft
        return None


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


_BULLET = re.compile(r"^[-*] ", re.MULTILINE)
_RULE = re.compile(r"^[-*] .*(?:\n(?:[ \t]+\S.*|[ \t]*(?=\n[ \t]+\S)))*", re.MULTILINE)
_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s|$)|\n[ \t]*\n|$)", re.DOTALL)


def rules_of(instruction: str) -> list[tuple[int, int]]:
    """Return the place of each rule of an instruction: its bullets, or without bullets its sentences."""
    matches = list(_RULE.finditer(instruction)) or list(_SENTENCE.finditer(instruction))
    return [match.span() for match in matches if match.group().strip()]


@dataclass(frozen=True)
class AblateProposer:
    """Drops one rule of the instruction at a time."""

    identity: str = "ablate"

    def propose(self, request: Request) -> Draft | None:
        text = request.parent.instruction
        for start, end in rules_of(text):
            rule = _on_one_line(text[start:end])
            before, after = text[:start].rstrip(" "), text[end:].lstrip(" ")
            rest = before + (after[1:] if before.endswith("\n") and after.startswith("\n") else after)
            draft = Draft(f"Without: {rule}", rest, request.parent.parameters)
            if request.is_new(draft):
                return draft
        return None


@dataclass(frozen=True)
class ParametersProposer:
    """Changes one parameter of the model at a time, within fixed bounds."""

    identity: str = "parameters"
    values: Mapping[str, Sequence[object]] = field(
        default_factory=lambda: {"temperature": TEMPERATURES, "reasoning_effort": REASONING_EFFORTS}
    )

    def propose(self, request: Request) -> Draft | None:
        parent = request.parent
        for name, values in self.values.items():
            if name == "reasoning_effort" and parent.parameters.reasoning_effort is None:
                continue  # most models reject it
            for value in values:
                parameters = parent.parameters.model_copy(update={name: value})
                draft = Draft(f"{name}: {value}", parent.instruction, parameters)
                if request.is_new(draft):
                    return draft
        return None
