"""Rejects proposals that cannot be candidates, or that hold content of sealed splits."""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from pytest_trace2evolve.environments.held_out import collect_held_out_identifiers
from pytest_trace2evolve.errors import ProposalError
from pytest_trace2evolve.improve.proposers import Draft, Request
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.session.traces import SEALED_ROLES
from pytest_trace2evolve.utils.canonical import texts_in
from pytest_trace2evolve.worlds.registry import Worlds

MAX_INSTRUCTION_LENGTH = 20_000
"""Characters of a proposed instruction."""

MAX_HYPOTHESIS_LENGTH = 1_000

WORDS_PER_RUN = 6
"""The length of the word sequences that a proposal must not share with a sealed split."""

_WORD = re.compile(r"[\w'’-]+")
_IDENTIFIER = re.compile(r"[\w#@.+-]*[A-Za-z#@_][\w#@.+-]*\d[\w#@.+-]*|\d{5,}|[\w.+-]+@[\w-]+\.\w+")


class SealedContent:
    """The content of a suite's splits that decide or guard, without what its other tasks and texts show.

    Args:
        project: The project.
        suite: The name of the suite.
        worlds: Opens the suite's world.
    """

    def __init__(self, project: Project, suite: str, worlds: Worlds) -> None:
        self._project = project
        self._suite = project.suite(suite)
        self._world = project.world(self._suite, worlds)
        lock = project.suite_lock(self._suite, worlds)
        self._sealed_tasks = {
            task
            for split, tasks in lock.splits.items()
            if project.splits[split].role in SEALED_ROLES
            for task in tasks
        }
        self._public_tasks = {task for tasks in lock.splits.values() for task in tasks} - self._sealed_tasks

    def find_leak(self, text: str) -> str:
        """Return the first content of a sealed split in a text; empty if there is none."""
        runs, identifiers, names = self._content
        for run in _word_runs(text):
            if run in runs:
                return " ".join(run)
        for match in _IDENTIFIER.finditer(text):
            if (identifier := match.group().strip(".,").lower()) in identifiers:
                return identifier
        folded = f" {' '.join(_WORD.findall(text.lower()))} "
        return next((name for name in names if f" {' '.join(_WORD.findall(name.lower()))} " in folded), "")

    @cached_property
    def _content(self) -> tuple[set[tuple[str, ...]], set[str], list[str]]:
        tasks = self._world.tasks()
        sealed = list(_texts(tasks[task] for task in self._sealed_tasks))
        public = [self._world.policy(solo=self._suite.solo)]
        public += _texts(tasks[task] for task in self._public_tasks)
        public += [tool.description or "" for tool in self._world.tools("assistant")]
        public_identifiers = {identifier for text in public for identifier in _identifiers(text)}
        public_text = "\n".join(public)
        runs = {run for text in sealed for run in _word_runs(text)}
        names = [name for name in collect_held_out_identifiers(self._project) if name not in public_text]
        return (
            runs - {run for text in public for run in _word_runs(text)},
            {identifier for text in sealed for identifier in _identifiers(text)} - public_identifiers,
            names,
        )


def check_draft(draft: Draft, request: Request, sealed: SealedContent) -> None:
    """Reject a proposal that cannot be a candidate, or that holds content of a sealed split.

    Raises:
        ProposalError: the proposal is rejected.
    """
    for field, text, limit in (
        ("instruction", draft.instruction, MAX_INSTRUCTION_LENGTH),
        ("hypothesis", draft.hypothesis, MAX_HYPOTHESIS_LENGTH),
    ):
        if len(text) > limit:
            raise ProposalError(f"rejected: its {field} has {len(text):,} characters, more than {limit:,}")
        if any(ord(character) < 32 and character not in "\n\t" for character in text):
            raise ProposalError(f"rejected: its {field} holds control characters")
    if not draft.hypothesis.strip():
        raise ProposalError("rejected: it has no hypothesis")
    if not request.is_new(draft):
        raise ProposalError("rejected: it repeats an earlier candidate")
    old_lines = set(request.parent.instruction.splitlines())
    added = [line for line in draft.instruction.splitlines() if line not in old_lines]
    if leak := sealed.find_leak("\n".join([draft.hypothesis, *added])):
        raise ProposalError(f"rejected: it holds {leak!r}, which is content of a sealed split")


def _texts(tasks: Iterable[Task]) -> Iterator[str]:
    for task in tasks:
        yield task.id
        yield from texts_in(task.model_dump(mode="json"))


def _identifiers(text: str) -> Iterator[str]:
    for match in _IDENTIFIER.finditer(text):
        yield match.group().strip(".,").lower()


def _word_runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    for start in range(len(words) - WORDS_PER_RUN + 1):
        yield tuple(words[start : start + WORDS_PER_RUN])
