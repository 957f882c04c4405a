"""Finds held-out content, which decides or measures, so that no training scenario may contain it."""

import re
from collections.abc import Iterator, Sequence
from functools import cache

from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.cases.content import find_foreign_mark, training_words, vocabulary
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import CaseFile, Role
from pytest_trace2evolve.records.task import Content, Task
from pytest_trace2evolve.utils.canonical import texts_in

WORDS_PER_RUN = 4
"""The length of the word sequences that training must not share with a held-out phrasing.

The embedded model's training words follow the same rule.
"""


def collect_held_out_identifiers(project: Project | None) -> list[str]:
    """Collect the identifiers of the tasks in splits that decide or guard; without a project, there are none.

    For tasks of a benchmark, these are the task ids that are not numbers. For cases from files, they also
    include the ids, email addresses and names of the customers.
    """
    if project is None:
        return []
    identifiers: dict[str, None] = {}
    for name in project.suite_names:
        suite = project.suite(name)
        suite_lock = project.lock.suites.get(name)
        for split, tasks in (suite_lock.splits if suite_lock else {}).items():
            if split in project.splits and project.splits[split].role is not Role.REPORT:
                identifiers |= dict.fromkeys(task for task in tasks if not task.isdigit())
        for split, spec in suite.case_splits.items():
            if project.splits[split].role is not Role.REPORT and isinstance(spec, CaseFile):
                for case in read_cases(project.resolve_path(spec.cases)):
                    identifiers |= dict.fromkeys(_identifiers(case.task))
    return list(identifiers)


def _identifiers(task: Task) -> Iterator[str]:
    """The task's id, and the ids, email addresses and full names of its customers.

    Orders are left out, because in a few thousand scenarios, some order has the same seven digits by chance.
    """
    yield task.id
    for user_id, user in task.tables.get("users", {}).items():
        yield from (user_id, user["email"], f"{user['name']['first_name']} {user['name']['last_name']}")


def describe_held_out_content(task: Task, held_out_identifiers: Sequence[str]) -> str:
    """Describe the first held-out content found in a scenario; empty if there is none.

    `held_out_identifiers` comes from `collect_held_out_identifiers`.
    """
    task_json = task.model_dump(mode="json")
    # The results of tools only repeat the records.
    history = task_json["initial_state"]["message_history"] or []
    task_json["initial_state"]["message_history"] = [entry for entry in history if entry["role"] != "tool"]
    texts = list(dict.fromkeys(texts_in(task_json)))
    full_text = "\n".join(texts)
    if mark := find_foreign_mark(full_text, Content.HELDOUT):
        return f"held-out content: {mark!r}"
    words = set(re.findall(r"[\w#@.+-]+", full_text))
    for identifier in held_out_identifiers:
        if words.issuperset(identifier.split()) and identifier in full_text:
            return f"from a held-out task: {identifier!r}"
    for text in texts:
        if text.count(" ") >= WORDS_PER_RUN - 1 and (shared_runs := _word_runs(text) & _held_out_word_runs()):
            return f"a held-out phrasing: {' '.join(min(shared_runs))!r}"
    return ""


def _word_runs(text: str) -> set[tuple[str, ...]]:
    """All sequences of `WORDS_PER_RUN` words in a text; none spans a slot or the end of a sentence."""
    runs: set[tuple[str, ...]] = set()
    for sentence in re.split(r"\{\w+\}|(?<=[.!?])\s", text.lower()):
        words = re.findall(r"[\w'-]+", sentence)
        runs |= {
            tuple(words[start : start + WORDS_PER_RUN]) for start in range(len(words) - WORDS_PER_RUN + 1)
        }
    return runs


@cache
def _held_out_word_runs() -> set[tuple[str, ...]]:
    """The runs of words in held-out phrasings that no training phrasing contains."""
    held_out_runs, training_runs = (
        {run for texts in phrases.values() for text in texts for run in _word_runs(text)}
        for phrases in (vocabulary(Content.HELDOUT).phrases, training_words().phrases)
    )
    return held_out_runs - training_runs
