"""Commands for a project's files and for the model server: init, cases and serve."""

import argparse
import json
import os
import secrets
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import CaseError, ConfigError, name_suggestion

if TYPE_CHECKING:
    from pytest_trace2evolve.project.scaffold import Scaffold

EXIT_NOT_ADMITTED = 1
"""Exit status if a case is not admitted."""


_TAU2_SUITES = "tau2-retail,tau2-airline,tau2-telecom"

_QUESTION = """\
What do you want to evaluate?
  1  my own agent (a small template to edit)
  2  the support demo with its small model
  3  tau2-bench's tasks (needs the extra tau2)
"""

_PURPOSES = {"": "own", "1": "own", "2": "support", "3": "tau2"}


def init(options: argparse.Namespace) -> int:
    """Add suites, candidates, tasks and a workflow to a project."""
    from pytest_trace2evolve.project.own_scaffold import lock_own_suite, plan_own_scaffold
    from pytest_trace2evolve.project.scaffold import plan_scaffold, write_scaffold
    from pytest_trace2evolve.report.cases import scaffold_text

    if options.folder and options.root:
        raise ConfigError(
            f"DIR {options.folder} and --root {options.root} both name the project's folder; give one of them"
        )
    root = Path.cwd() / (options.folder or options.root or "")
    is_default = options.purpose is None
    purpose: str = options.purpose
    if is_default:
        purpose = _ask_purpose() if _can_ask(options) else "support"
    if purpose == "own":
        scaffold = plan_own_scaffold(root, workflow=options.workflow)
    else:
        scaffold = plan_scaffold(root, _suite_names(purpose), workflow=options.workflow)
        if is_default and purpose == "support":
            scaffold.notes.append("for your own agent: trace2evolve init --for own, in another folder")
    if not options.dry_run:
        write_scaffold(scaffold)
        if purpose == "own":
            lock_own_suite(scaffold)
    command = _next_own_command(scaffold) if purpose == "own" else _next_command(scaffold)
    if options.json:
        print(json.dumps({**scaffold.to_json(), "dry_run": options.dry_run, "next": command}, indent=2))
    else:
        print(scaffold_text(scaffold, command, dry_run=options.dry_run))
    return 0


def _can_ask(options: argparse.Namespace) -> bool:
    """Whether a person can answer a question: input and output are terminals, and no JSON is requested."""
    return not options.json and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _ask_purpose() -> str:
    """Ask for the purpose of a new project until the answer is valid.

    An empty answer, or the end of the input, means `own`.
    """
    print(_QUESTION, end="")
    while True:
        print("Number [1]: ", end="", flush=True)
        line = sys.stdin.readline()
        answer = line.strip().lower()
        if purpose := _PURPOSES.get(answer):
            return purpose
        if answer in _PURPOSES.values():
            return answer
        print("Answer 1, 2 or 3.")


def _suite_names(purpose: str) -> list[str]:
    """Return the suites of a purpose, which may name suites itself."""
    suites = [name.strip() for name in (_TAU2_SUITES if purpose == "tau2" else purpose).split(",")]
    if not all(suites):
        raise ConfigError(
            f"--for {purpose!r} contains an empty name; expected own, tau2, all, or names like support"
        )
    return suites


def _next_own_command(scaffold: "Scaffold") -> str:
    """Return the command that measures the template's first candidate."""
    from pytest_trace2evolve.project.own_scaffold import BASELINE, is_below_pytest_settings
    from pytest_trace2evolve.project.scaffold import FileState
    from pytest_trace2evolve.project.tool_settings import FILE_NAME

    rootdir = ["--rootdir", "."] if is_below_pytest_settings(scaffold.root) else []
    arguments = ["pytest", *rootdir, "--candidate", BASELINE, "--t2e-save-baseline", BASELINE]
    needs_lock = any(file.path == FILE_NAME and file.state is FileState.LEFT_ALONE for file in scaffold.files)
    lock = "trace2evolve lock && " if needs_lock else ""
    return _cd_command(scaffold) + lock + shlex.join(arguments)


def _cd_command(scaffold: "Scaffold") -> str:
    """Return the start of a command that changes to the project's folder; empty if it is the current one."""
    is_current_folder = scaffold.root == Path.cwd()
    return "" if is_current_folder else f"cd {shlex.quote(os.path.relpath(scaffold.root))} && "


def _next_command(scaffold: "Scaffold") -> str:
    """Return the command that evaluates a candidate, with the embedded model if possible, else the oracle."""
    from pytest_trace2evolve.utils.resources import embedded_model

    arguments = ["pytest", "--candidate", "v7"]
    try:
        embedded_model()
        has_model = "support" in scaffold.suites
    except ConfigError:
        has_model = False
    arguments += [] if has_model else ["--t2e-agent", "oracle"]
    arguments += ["--t2e-suite", scaffold.suites[0]] if len(scaffold.suites) > 1 else []
    return _cd_command(scaffold) + shlex.join([*arguments, "-n", "2"])


def generate_cases(options: argparse.Namespace) -> int:
    """Generate cases from a seed, and write them to a file."""
    from pytest_trace2evolve.cases.case import FAMILIES, PRESSURE, format_case_line, generate
    from pytest_trace2evolve.records.task import Content
    from pytest_trace2evolve.utils.files import write_atomic

    families: list[str] = []
    for name in options.family or ():
        if name != "pressure" and name not in FAMILIES:
            raise ConfigError(
                f"--family {name!r} is unknown; {name_suggestion(name, [*FAMILIES, 'pressure'])}"
            )
        families += [*PRESSURE] if name == "pressure" else [name]
    lines = map(format_case_line, generate(options.seed, options.count, Content(options.content), families))
    out: Path = options.out
    if str(out) == "-":
        sys.stdout.writelines(lines)
        return 0
    try:
        _check_out_path(out)
        write_atomic(out, lines, exclusive=True)
    except OSError as error:
        _check_out_path(out)
        raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from None
    print(f"{out}: {options.count} cases; next: trace2evolve cases check {out}")
    return 0


def vary_failure(options: argparse.Namespace) -> int:
    """Generate cases that demand what a failed task demands, with other records and wording."""
    from pytest_trace2evolve.cases.case import Case, format_case_line, to_case, variants
    from pytest_trace2evolve.cli.common import nearest_project
    from pytest_trace2evolve.records.task import Content
    from pytest_trace2evolve.session.admission import admit
    from pytest_trace2evolve.session.traces import open_trace
    from pytest_trace2evolve.utils.files import write_atomic
    from pytest_trace2evolve.worlds.registry import Worlds

    _check_out_path(options.out)
    opened = open_trace(
        options.run,
        options.task,
        project=nearest_project(options),
        base_folder=Path.cwd(),
        trial=options.trial,
        suite=options.suite or "",
    )
    if opened.simulation.recorded_reward == 1:
        trial = opened.simulation.trial or 0
        raise ConfigError(f"trial {trial} of task {options.task!r} passed; name a failed one with --trial")
    assert opened.task is not None
    case = to_case(opened.task)
    admitted: list[Case] = []
    world = Worlds().open("trace2evolve", "support")
    for variant, problems in admit(variants(case, case.id, Content(options.content)), world):
        admitted += [] if problems else [variant]
        if len(admitted) == options.count:
            break
    write_atomic(options.out, map(format_case_line, admitted), exclusive=True)
    print(f"{options.out}: {len(admitted)} cases of {case.script.family}")
    return 0


def _check_out_path(path: Path) -> None:
    """Check that a path does not exist and that its nearest existing parent is a folder."""
    if os.path.lexists(path):
        if path.is_dir():
            raise ConfigError(f"--out {path} is a folder; name a file in it")
        raise ConfigError(f"--out {path} already exists; delete it or choose a different name")
    existing_parent = next((parent for parent in path.parents if os.path.lexists(parent)), path.parent)
    if not existing_parent.is_dir():
        raise ConfigError(f"--out {path}: {existing_parent} is not a folder; choose a different path")


def check_cases(options: argparse.Namespace) -> int:
    """Run all admission checks on every case or written task in the given files.

    By default, the files are the task files of all suites.
    """
    from pytest_trace2evolve.cli.common import project_of
    from pytest_trace2evolve.session.admission import is_written, task_files

    files = options.files or task_files(project_of(options))
    if not files:
        raise CaseError("no suite has written tasks; name a file of cases or tasks")
    statuses = [
        _check_written_file(path, options) if is_written(path) else _check_case_file(path) for path in files
    ]
    return max(statuses)


def _check_case_file(path: Path) -> int:
    from pytest_trace2evolve.cases.case import iter_cases
    from pytest_trace2evolve.session.admission import admit
    from pytest_trace2evolve.worlds.registry import Worlds

    world = Worlds().open("trace2evolve", "support")
    results = ((case.id, problems) for case, problems in admit(iter_cases(path), world))
    return _print_admissions(path, "cases", results)


def _check_written_file(path: Path, options: argparse.Namespace) -> int:
    from pytest_trace2evolve.cases.written import read_written_tasks
    from pytest_trace2evolve.cli.common import project_of
    from pytest_trace2evolve.session.admission import check_written_tasks, world_of_file

    project = project_of(options)
    tasks = read_written_tasks(path)
    world = world_of_file(project, path, project.open_worlds())
    checks = ((task.id, problems) for task, problems in check_written_tasks(tasks, world))
    return _print_admissions(path, "tasks", checks)


def _print_admissions(path: Path, kind: str, results: Iterable[tuple[str, Sequence[str]]]) -> int:
    """Print the problems of each case or task, and return the exit status."""
    from pytest_trace2evolve.utils.sanitize import sanitize_line

    n_admitted = n_checked = 0
    for name, problems in results:
        n_checked += 1
        n_admitted += not problems
        for text in problems:
            print(sanitize_line(f"{path}: {name}: {text}"), flush=True)
    print(f"{path}: {n_admitted} of {n_checked} {kind} admitted", flush=True)
    return 0 if n_admitted == n_checked else EXIT_NOT_ADMITTED


def show_cases(options: argparse.Namespace) -> int:
    """List the cases in a file, or show one case."""
    from pytest_trace2evolve.cases.case import read_cases
    from pytest_trace2evolve.report.cases import case_text, cases_text

    cases = read_cases(options.file)
    if options.id is None:
        print(cases_text(str(options.file), cases))
        return 0
    exact_matches = [case for case in cases if case.id == options.id]
    matches = exact_matches or [case for case in cases if case.id.startswith(options.id)]
    if len(matches) > 1:
        ids = ", ".join(case.id for case in matches[:3])
        raise CaseError(
            f"{options.file}: {len(matches)} cases begin with {options.id!r}: {ids}; give more of the id"
        )
    if not matches:
        remedy = name_suggestion(options.id, [case.id for case in cases])
        raise CaseError(f"{options.file}: no case has the id {options.id!r}; {remedy}")
    print(case_text(matches[0]))
    return 0


def serve(options: argparse.Namespace) -> int:
    """Serve a model folder as an OpenAI-compatible endpoint."""
    from pytest_trace2evolve.agents.probe import read_probe
    from pytest_trace2evolve.serving.folder import check_name, folder_digest, read_adapter, read_model
    from pytest_trace2evolve.serving.server import ServerSettings, serve

    folder = read_model(options.model)
    paths = _parse_adapter_paths(options.adapter)
    routers = [(name, path) for name, path in paths if path.suffix == ".safetensors"]
    adapters = [read_adapter(name, path, folder) for name, path in paths if (name, path) not in routers]
    check_name("model", folder.name)
    if folder.name in dict(routers):
        raise ConfigError(f"--adapter {folder.name}=PATH: the model has that name too")
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port}: must be between 0 and 65535")
    return serve(
        ServerSettings(
            folder=folder,
            adapters=adapters,
            routers=[read_probe(*router, folder.path, folder_digest(folder.path)) for router in routers],
            name=folder.name,
            host=options.host,
            port=options.port,
            token=_resolve_token(options),
            device=options.device,
            threads=options.threads,
            max_rows=options.batch_size,
            max_waiting=options.queue_size,
            has_parent_pipe=options.parent_pipe,
        )
    )


def _parse_adapter_paths(values: list[str] | None) -> list[tuple[str, Path]]:
    """Parse values of the form NAME=PATH, and check that the names differ."""
    paths: dict[str, Path] = {}
    for text in values or ():
        name, separator, path = text.partition("=")
        if not (name.strip() and separator and path):
            raise ConfigError(f"--adapter {text}: expected NAME=PATH")
        if name in paths:
            raise ConfigError(f"--adapter {text}: the name {name!r} is given twice")
        paths[name] = Path(path)
    return list(paths.items())


def _resolve_token(options: argparse.Namespace) -> str | None:
    """Return the token that requests must carry; None with `--no-token`, which needs a loopback address."""
    from pytest_trace2evolve.serving.process import LOOPBACK_HOSTS, TOKEN_VAR

    if options.no_token:
        if options.host not in LOOPBACK_HOSTS:
            raise ConfigError(
                f"--no-token --host {options.host}: without a token, the host must be a loopback address"
            )
        return None
    token = os.environ.get(TOKEN_VAR)
    if token is None:
        return secrets.token_urlsafe(24)
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"the token of {TOKEN_VAR} must be printable ASCII without spaces")
    return token
