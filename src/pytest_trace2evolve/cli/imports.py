"""From production logs to tasks: import, and the review of drafts."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import ConfigError, LogError
from pytest_trace2evolve.utils.files import find_root
from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.importing.conversation import Conversation
    from pytest_trace2evolve.importing.redact import Patterns
    from pytest_trace2evolve.importing.review import DraftsFile


def import_log(options: argparse.Namespace) -> int:
    """Draft tasks from the conversations of a log, with personal data replaced."""
    from pytest_trace2evolve.importing.drafts import DraftSettings, drafts_of
    from pytest_trace2evolve.importing.redact import Redactor
    from pytest_trace2evolve.importing.review import write_drafts

    patterns = _patterns(options)
    format, conversations, damaged = _read(options)
    redactor = Redactor(patterns)
    settings = DraftSettings(options.file.name, format, options.until, options.all_calls)
    drafts = drafts_of(conversations, redactor, settings)
    out = options.out or _default_out(options, drafts[0]["draft"]["source"])
    write_drafts(out, drafts)
    names = {"address": "addresses", "birth date": "birth dates"}
    counts = [
        f"{count} {kind if count == 1 else names.get(kind, f'{kind}s')}"
        for kind, count in redactor.counts.items()
    ]
    print(f"{out}: {len(drafts)} drafts of format {format}; replaced: {', '.join(counts) or 'nothing'}")
    if damaged:
        print(f"left out: {damaged} damaged conversations")
    print(f"next: read the drafts, then trace2evolve cases review {out} --into tasks.yaml")
    return 0


def _read(options: argparse.Namespace) -> "tuple[str, list[Conversation], int]":
    """The format, the conversations up to the limit, and the number of damaged ones that were left out."""
    from pytest_trace2evolve.importing.conversation import Conversation, Damage
    from pytest_trace2evolve.importing.readers import read_conversations

    format, found = read_conversations(options.file, options.format)
    conversations: list[Conversation] = []
    damaged: list[Damage] = []
    for item in found:
        if isinstance(item, Conversation):
            conversations.append(item)
            if options.limit is not None and len(conversations) >= options.limit:
                break
            continue
        damaged.append(item)
        text = f"{options.file}: {item.place or 'file'}: {item.cause}"
        if not options.skip_damaged:
            raise LogError(f"{text}; fix it, or leave such conversations out with --skip-damaged")
        print(sanitize_line(f"trace2evolve: {text}", 2000), file=sys.stderr)
    if not conversations:
        raise LogError(f"{options.file}: holds no conversation of format {format}; is it the right file?")
    return format, conversations, len(damaged)


def _patterns(options: argparse.Namespace) -> "Patterns":
    from pytest_trace2evolve.importing.patterns import patterns_of_project, read_patterns

    if options.patterns is not None:
        return read_patterns(options.patterns)
    return patterns_of_project(options.root.resolve() if options.root else Path.cwd())


def _default_out(options: argparse.Namespace, source: str) -> Path:
    """`drafts/NAME.yaml` in the project, named after the log, whose name is free of personal data by now."""
    root = options.root or find_root(Path.cwd()) or Path.cwd()
    name = re.sub(r"[^\w.-]+", "-", re.sub(r"(?:\.(?:gz|jsonl?|eval|zip|txt|log))+$", "", source)).strip("-.")
    out: Path = root / "drafts" / f"{name or 'log'}.yaml"
    return out.relative_to(Path.cwd()) if out.is_relative_to(Path.cwd()) else out


def review_drafts(options: argparse.Namespace) -> int:
    """Accept drafts into a file of tasks, or reject them; ask for each one if none is named."""
    from pytest_trace2evolve.importing.review import read_drafts, review

    accept, reject = options.accept or [], options.reject or []
    if accept or reject:
        accepted, rejected = review(options.drafts, options.into, accept, reject)
        left = len(read_drafts(options.drafts).drafts)
        moved = f"{accepted} accepted into {options.into}" if accepted else "0 accepted"
        print(f"{options.drafts}: {moved}, {rejected} rejected, {left} left")
        return 0
    file = read_drafts(options.drafts)
    if not file.drafts:
        print(f"{options.drafts}: no drafts left")
        return 0
    if not sys.stdin.isatty():
        _list(file)
        return 0
    if options.into is None:
        raise ConfigError("name the file of tasks with --into FILE, as in --into tasks.yaml")
    return _ask(file, options.into)


def _list(file: "DraftsFile") -> None:
    width = max(map(len, file.ids))
    for draft in file.drafts:
        user = draft.get("user")
        goal = str(user.get("goal", "")) if isinstance(user, dict) else ""
        print(sanitize_line(f"{draft['id']:<{width}}  {goal}", 110))
    print(f"{len(file.drafts)} drafts; accept or reject with --accept ID… --into FILE, --reject ID…")


def _ask(file: "DraftsFile", into: Path) -> int:
    """Show each draft and ask what to do with it; every answer is saved at once."""
    from pytest_trace2evolve.importing.review import review

    counts = {"a": 0, "r": 0, "s": 0}
    for number, (task_id, text) in enumerate(zip(file.ids, file.texts, strict=True), 1):
        print(sanitize(text))
        answer = ""
        while answer not in ("a", "r", "s", "q"):
            try:
                answer = (
                    input(f"{number} of {len(file.drafts)}: [a]ccept, [r]eject, [s]kip or [q]uit? ")
                    .strip()
                    .lower()[:1]
                )
            except EOFError:
                answer = "q"
        if answer == "q":
            break
        counts[answer] += 1
        if answer == "a":
            review(file.path, into, accept=[task_id])
        elif answer == "r":
            review(file.path, into, reject=[task_id])
    left = len(file.drafts) - counts["a"] - counts["r"]
    print(f"{file.path}: {counts['a']} accepted into {into}, {counts['r']} rejected, {left} left")
    return 0
