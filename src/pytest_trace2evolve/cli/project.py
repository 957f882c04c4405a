"""The commands for a project's files and model server: init, cases and serve."""

import argparse
import json
import os
import secrets
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import CaseError, ConfigError, nearest

if TYPE_CHECKING:
    from pytest_trace2evolve.project.scaffold import Scaffold

SOME_FAILED = 1
"""Exit status if a case is not admitted."""


def init(options: argparse.Namespace) -> int:
    """Add suites, candidates, cases, prices and a workflow to a project."""
    from pytest_trace2evolve.project.scaffold import plan_scaffold, write_scaffold
    from pytest_trace2evolve.report.cases import layout_text

    if options.folder and options.root:
        raise ConfigError(f"DIR {options.folder} and --root {options.root} both name a folder; give one")
    suites = [name.strip() for name in options.suites.split(",")]
    if not all(suites):
        raise ConfigError(
            f"--suites {options.suites!r} leaves a name empty; give suites like support,tau2-retail, or all"
        )
    layout = plan_scaffold(
        Path.cwd() / (options.folder or options.root or ""), suites, workflow=options.workflow
    )
    if not options.dry_run:
        write_scaffold(layout)
    command = _next_command(layout)
    if options.json:
        print(json.dumps({**layout.to_json(), "dry_run": options.dry_run, "next": command}, indent=2))
    else:
        print(layout_text(layout, command, dry_run=options.dry_run))
    return 0


def _next_command(layout: "Scaffold") -> str:
    """The command that evaluates a candidate with the embedded model, or else with the oracle."""
    from pytest_trace2evolve.utils.resources import embedded_model

    words = ["pytest", "--candidate", "v6"]
    try:
        embedded_model()
    except ConfigError:
        words += ["--t2e-agent", "oracle"]
    words += ["--t2e-suite", layout.suites[0]] if len(layout.suites) > 1 else []
    here = layout.root == Path.cwd()
    change = "" if here else f"cd {shlex.quote(os.path.relpath(layout.root))} && "
    return change + shlex.join([*words, "-n", "2"])


def generate_cases(options: argparse.Namespace) -> int:
    """Write cases from a seed."""
    from pytest_trace2evolve.cases.case import FAMILIES, PRESSURE, case_line, generate
    from pytest_trace2evolve.records.task import Content
    from pytest_trace2evolve.utils.files import write_atomic

    families: list[str] = []
    for name in options.family or ():
        if name != "pressure" and name not in FAMILIES:
            raise ConfigError(f"--family {name!r} is unknown; {nearest(name, [*FAMILIES, 'pressure'])}")
        families += [*PRESSURE] if name == "pressure" else [name]
    lines = map(case_line, generate(options.seed, options.count, Content(options.content), families))
    out: Path = options.out
    if str(out) == "-":
        sys.stdout.writelines(lines)
        return 0
    try:
        _check_new(out)
        write_atomic(out, lines, exclusive=True)
    except OSError as error:
        _check_new(out)
        raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from None
    print(f"{out}: {options.count} cases; next: trace2evolve cases check {out}")
    return 0


def _check_new(out: Path) -> None:
    """Check that a path does not exist and that its nearest existing parent is a folder."""
    if os.path.lexists(out):
        if out.is_dir():
            raise ConfigError(f"--out {out} is a folder: name a file in it")
        raise ConfigError(f"--out {out} exists: delete it, or choose another name")
    above = next((parent for parent in out.parents if os.path.lexists(parent)), out.parent)
    if not above.is_dir():
        raise ConfigError(f"--out {out}: {above} is no folder; choose another name")


def check_cases(options: argparse.Namespace) -> int:
    """Run all admission checks on every case of some files."""
    from pytest_trace2evolve.cases.case import iter_cases
    from pytest_trace2evolve.session.case_admission import admit
    from pytest_trace2evolve.utils.sanitize import sanitize_line
    from pytest_trace2evolve.worlds.registry import Worlds

    world = Worlds().open("trace2evolve", "support")
    status = 0
    for path in options.files:
        passed = total = 0
        for found in admit(iter_cases(path), world):
            total += 1
            passed += not found.problems
            for problem in found.problems:
                print(sanitize_line(f"{path}: {found.case.id}: {problem}"), flush=True)
        print(f"{path}: {passed} of {total} cases admitted", flush=True)
        status = status if passed == total else SOME_FAILED
    return status


def show_cases(options: argparse.Namespace) -> int:
    """List a file's cases, or show one."""
    from pytest_trace2evolve.cases.case import read_cases
    from pytest_trace2evolve.report.cases import case_text, cases_text

    cases = read_cases(options.file)
    if options.id is None:
        print(cases_text(str(options.file), cases))
        return 0
    exact = [case for case in cases if case.id == options.id]
    found = exact or [case for case in cases if case.id.startswith(options.id)]
    if len(found) > 1:
        ids = ", ".join(case.id for case in found[:3])
        raise CaseError(f"{options.file}: {len(found)} cases begin with {options.id!r}: {ids}; say which")
    if not found:
        remedy = nearest(options.id, [case.id for case in cases])
        raise CaseError(f"{options.file}: no case {options.id!r}; {remedy}")
    print(case_text(found[0]))
    return 0


def serve(options: argparse.Namespace) -> int:
    """Serve a model folder as an OpenAI-compatible endpoint."""
    from pytest_trace2evolve.serving.folder import read_adapter, read_model, require_name
    from pytest_trace2evolve.serving.server import ServerSettings, serve

    folder = read_model(options.model)
    adapters = [read_adapter(name, path, folder) for name, path in _adapter_paths(options.adapter)]
    name = options.served_model_name or folder.name
    require_name("model", name)
    if name in [adapter.name for adapter in adapters]:
        raise ConfigError(f"--served-model-name {name}: an adapter has that name too")
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port}: must be from 0 to 65535")
    return serve(
        ServerSettings(
            folder=folder,
            adapters=adapters,
            name=name,
            host=options.host,
            port=options.port,
            token=_token(options),
            device=options.device,
            dtype=options.dtype,
            threads=options.threads,
            rows=options.batch_size,
            waiting=options.queue_size,
            prefix_bytes=options.prefix_cache << 20,
            parent_pipe=options.parent_pipe,
        )
    )


def _adapter_paths(given: list[str] | None) -> list[tuple[str, Path]]:
    """Parse and validate values of the form NAME=PATH."""
    pairs: dict[str, Path] = {}
    for text in given or ():
        name, sign, path = text.partition("=")
        if not (name.strip() and sign and path):
            raise ConfigError(f"--adapter {text}: must be NAME=PATH")
        if name in pairs:
            raise ConfigError(f"--adapter {text}: the name {name!r} is given twice")
        pairs[name] = Path(path)
    return list(pairs.items())


def _token(options: argparse.Namespace) -> str | None:
    """The token that requests must carry; None with `--no-token`, which requires a loopback address."""
    from pytest_trace2evolve.serving.process import LOOPBACK, TOKEN_VAR

    if options.no_token:
        if options.host not in LOOPBACK:
            raise ConfigError(f"--no-token --host {options.host}: only loopback is served without a token")
        return None
    token = os.environ.get(TOKEN_VAR) if options.token is None else options.token
    if token is None:
        return secrets.token_urlsafe(24)
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"--token and {TOKEN_VAR} take printable ASCII without spaces")
    return token
