"""The commands that import tasks: from a log with a review of the drafts, or from ToolSandbox."""

import argparse
import functools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.cli.common import nearest_project, progress_bar, worlds_of
from pytest_trace2evolve.errors import CaseError, ConfigError, LogError
from pytest_trace2evolve.utils.files import find_root, real_path
from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.importing.conversation import Conversation
    from pytest_trace2evolve.importing.patterns import Patterns
    from pytest_trace2evolve.importing.review import DraftsFile
    from pytest_trace2evolve.records.protocols import World


def import_log(options: argparse.Namespace) -> int:
    """Draft tasks from the conversations of a log, with personal data replaced; or import ToolSandbox."""
    if options.format == "toolsandbox":
        return _import_toolsandbox(options)
    from pytest_trace2evolve.importing.drafts import drafts_of
    from pytest_trace2evolve.importing.redact import Redactor
    from pytest_trace2evolve.importing.review import DraftsFile, draft_problem, find_world, write_drafts

    patterns = _load_patterns(options)
    log_format, conversations, n_damaged, n_repeated = _read_log(options)
    redactor = Redactor(patterns)
    world = find_world(find_root(options.root or Path.cwd()))
    drafts = drafts_of(conversations, redactor, options.file.name, log_format, options.until, world)
    n_problems = 0
    for draft in drafts:
        if problem := draft_problem(draft, "not accepted yet", world):
            n_problems += 1
            draft["draft"]["notes"].append(problem)
    out_path = options.out or _default_out_path(options, drafts[0]["draft"]["source"])
    is_printed = str(out_path) == "-"
    if is_printed:
        print(DraftsFile(out_path, tuple(drafts)).text, end="")
    else:
        write_drafts(out_path, drafts)
    report = functools.partial(print, file=sys.stderr if is_printed else sys.stdout)
    plurals = {"address": "addresses", "birth date": "birth dates"}
    counts = [
        f"{count} {kind if count == 1 else plurals.get(kind, f'{kind}s')}"
        for kind, count in redactor.counts.items()
    ]
    place = "standard output" if is_printed else out_path
    report(
        f"{place}: {len(drafts)} drafts of format {log_format}; replaced: {', '.join(counts) or 'nothing'}"
    )
    if n_problems:
        report(f"cannot be accepted yet: {n_problems} of {len(drafts)} drafts, whose notes say why")
    if n_damaged:
        report(f"left out: {n_damaged} damaged conversations")
    if n_repeated:
        report(f"left out: {n_repeated} conversations that repeat another")
    if not is_printed:
        report(f"next: read the drafts, then trace2evolve cases review {out_path} --into tasks.yaml")
    return 0


def _import_toolsandbox(options: argparse.Namespace) -> int:
    """Export ToolSandbox's scenarios from a clone, and add its suites to the project, if there is one."""
    from pytest_trace2evolve.worlds.toolsandbox.dump import export_folder, read_dump
    from pytest_trace2evolve.worlds.toolsandbox.export import SUITES, suite_text
    from pytest_trace2evolve.worlds.toolsandbox.export import export as export_clone

    folder = export_folder()
    with progress_bar("ToolSandbox", None) as update:
        manifest = export_clone(options.file, folder, update)
    dump = read_dump(folder, manifest.scenarios)
    print(f"exported: {len(dump.scenarios)} scenarios of {len(dump.bases)} bases to {folder}")
    project = nearest_project(options)
    if project is None:
        print("no project here: run the command in a project to add its suites")
        return 0
    for name, domain in SUITES.items():
        path = project.suites_folder / f"{name}.toml"
        if not path.exists():
            path.write_text(suite_text(domain), encoding="utf-8")
    project.renew_lock(worlds_of(project), list(SUITES))
    print(f"suites: {', '.join(SUITES)}; written: {project.lock_path}")
    return 0


def _read_log(options: argparse.Namespace) -> "tuple[str, list[Conversation], int, int]":
    """Return the format, the conversations, and the numbers of damaged and repeated ones."""
    from pytest_trace2evolve.importing.conversation import Conversation
    from pytest_trace2evolve.importing.readers import read_conversations

    log_format, items = read_conversations(options.file, options.format)
    conversations: list[Conversation] = []
    seen: set[str] = set()
    n_damaged = n_repeated = 0
    for item in items:
        if isinstance(item, Conversation):
            identity = repr([turn.content for turn in item.turns])
            if identity in seen:
                n_repeated += 1
                continue
            seen.add(identity)
            conversations.append(item)
            continue
        n_damaged += 1
        problem = f"{options.file}: {item.place or 'file'}: {item.cause}"
        if not options.skip_damaged:
            raise LogError(f"{problem}; fix it, or leave such conversations out with --skip-damaged")
        print(sanitize_line(f"trace2evolve: {problem}", 2000), file=sys.stderr)
    if not conversations:
        raise LogError(f"{options.file}: holds no conversation of format {log_format}; is it the right file?")
    return log_format, conversations, n_damaged, n_repeated


def _load_patterns(options: argparse.Namespace) -> "Patterns":
    from pytest_trace2evolve.importing.patterns import patterns_of_project

    return patterns_of_project(real_path(options.root) if options.root else Path.cwd())


def _default_out_path(options: argparse.Namespace, source: str) -> Path:
    """Return `drafts/NAME.yaml` in the project; NAME comes from the redacted name of the log."""
    root = options.root or find_root(Path.cwd()) or Path.cwd()
    name = re.sub(r"[^\w.-]+", "-", re.sub(r"(?:\.(?:gz|jsonl?|eval|zip|txt|log))+$", "", source)).strip("-.")
    out_path: Path = root / "drafts" / f"{name or 'log'}.yaml"
    return out_path.relative_to(Path.cwd()) if out_path.is_relative_to(Path.cwd()) else out_path


def review_drafts(options: argparse.Namespace) -> int:
    """Accept drafts into a file of tasks, or reject them.

    If no draft is named, ask about each draft, or list the drafts if there is no terminal.
    """
    from pytest_trace2evolve.importing.review import find_world, read_drafts, review

    world = find_world(find_root(options.root or Path.cwd()), options.into)
    accepted_ids, rejected_ids = options.accept or [], options.reject or []
    if accepted_ids or rejected_ids:
        n_accepted, n_rejected = review(options.drafts, options.into, accepted_ids, rejected_ids, world)
        n_left = len(read_drafts(options.drafts).drafts)
        accepted_text = f"{n_accepted} accepted into {options.into}" if n_accepted else "0 accepted"
        print(f"{options.drafts}: {accepted_text}, {n_rejected} rejected, {n_left} left")
        return 0
    file = read_drafts(options.drafts)
    if not file.drafts:
        print(f"{options.drafts}: no drafts left")
        return 0
    if not sys.stdin.isatty():
        _print_drafts(file)
        return 0
    if options.into is None:
        raise ConfigError("name the file of tasks with --into FILE, as in --into tasks.yaml")
    return _ask_about_drafts(file, options.into, world)


def _print_drafts(file: "DraftsFile") -> None:
    width = max(map(len, file.ids))
    for draft in file.drafts:
        user = draft.get("user")
        goal = str(user.get("goal", "")) if isinstance(user, dict) else ""
        print(sanitize_line(f"{draft['id']:<{width}}  {goal}", 110))
    print(f"{len(file.drafts)} drafts; accept or reject with --accept ID… --into FILE, --reject ID…")


def _ask_about_drafts(file: "DraftsFile", into: Path, world: "World | None") -> int:
    """Show each draft, and ask whether to accept or reject it. Every answer is saved immediately.

    A draft that cannot be accepted stays, and the reason is printed.
    """
    from pytest_trace2evolve.importing.review import review
    from pytest_trace2evolve.utils.yaml_text import dump_yaml

    counts = {"a": 0, "r": 0, "s": 0}
    for number, draft in enumerate(file.drafts, 1):
        task_id = draft["id"]
        print(sanitize(dump_yaml([draft])))
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
        if answer == "a":
            try:
                review(file.path, into, accept=[task_id], world=world)
            except CaseError as error:
                print(sanitize_line(f"trace2evolve: {error}", 2000))
                answer = "s"
        counts[answer] += 1
        if answer == "r":
            review(file.path, into, reject=[task_id])
    n_left = len(file.drafts) - counts["a"] - counts["r"]
    print(f"{file.path}: {counts['a']} accepted into {into}, {counts['r']} rejected, {n_left} left")
    return 0
