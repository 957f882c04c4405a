"""Held-out content, which no training scenario may contain because it is used to decide or to measure."""

import re
from collections.abc import Iterator, Sequence
from functools import cache

from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.cases.content import find_foreign_mark, training_words, vocabulary
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import CasesOf, Role
from pytest_trace2evolve.records.task import Content, Task
from pytest_trace2evolve.utils.canonical import texts_in

WORDS_IN_A_ROW = 4
"""The length of a run of words that training must not share with a held-out phrasing.

The embedded model's training words follow the same rule.
"""


def held_out_of(project: Project | None) -> list[str]:
    """Identifiers of the tasks in a project's splits that are not only reported; none without a project.

    For tasks of a benchmark, these are the task ids that are not numbers. For cases from files, they also
    include the ids, mailboxes and names of the customers.
    """
    if project is None:
        return []
    found: dict[str, None] = {}
    for name in project.suite_names:
        suite = project.suite(name)
        locked = project.lock.suites.get(name)
        for split, tasks in (locked.splits if locked else {}).items():
            if split in project.splits and project.splits[split].role is not Role.REPORT:
                found |= dict.fromkeys(task for task in tasks if not task.isdigit())
        for split, spec in suite.case_splits.items():
            if project.splits[split].role is not Role.REPORT and isinstance(spec, CasesOf):
                for case in read_cases(project.inside(spec.cases)):
                    found |= dict.fromkeys(_identifiers(case.task))
    return list(found)


def _identifiers(task: Task) -> Iterator[str]:
    """The task's id, and the ids, mailboxes and full names of its customers.

    Orders are left out, because in a few thousand scenarios, some order has the same seven digits by chance.
    """
    yield task.id
    for user_id, user in task.tables.get("users", {}).items():
        yield from (user_id, user["email"], f"{user['name']['first_name']} {user['name']['last_name']}")


def found_held_out(task: Task, held_out: Sequence[str]) -> str:
    """Describe the held-out content in a scenario; return an empty text if there is none.

    `held_out` lists ids, names and mailboxes of held-out tasks; see `held_out_of`.
    """
    record = task.model_dump(mode="json")
    # The results of tools only repeat the records.
    history = record["initial_state"]["message_history"] or []
    record["initial_state"]["message_history"] = [entry for entry in history if entry["role"] != "tool"]
    texts = list(dict.fromkeys(texts_in(record)))
    whole = "\n".join(texts)
    if mark := find_foreign_mark(whole, Content.HELDOUT):
        return f"held-out content: {mark!r}"
    words = set(re.findall(r"[\w#@.+-]+", whole))
    for identifier in held_out:
        if words.issuperset(identifier.split()) and identifier in whole:
            return f"of a held-out task: {identifier!r}"
    for text in texts:
        if text.count(" ") >= WORDS_IN_A_ROW - 1 and (shared := _runs(text) & _held_out_runs()):
            return f"a held-out phrasing: {' '.join(min(shared))!r}"
    return ""


def _runs(text: str) -> set[tuple[str, ...]]:
    """All runs of `WORDS_IN_A_ROW` words in a text, none across a slot or the end of a sentence."""
    found: set[tuple[str, ...]] = set()
    for part in re.split(r"\{\w+\}|(?<=[.!?])\s", text.lower()):
        words = re.findall(r"[\w'-]+", part)
        found |= {tuple(words[at : at + WORDS_IN_A_ROW]) for at in range(len(words) - WORDS_IN_A_ROW + 1)}
    return found


@cache
def _held_out_runs() -> set[tuple[str, ...]]:
    """The runs of words in held-out phrasings that no training phrasing contains."""
    held_out, training = (
        {run for texts in phrases.values() for text in texts for run in _runs(text)}
        for phrases in (vocabulary(Content.HELDOUT).phrases, training_words().phrases)
    )
    return held_out - training
