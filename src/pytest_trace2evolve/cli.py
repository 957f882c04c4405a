"""The `trace2evolve` command: what can be done without pytest."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_trace2evolve import __version__
from pytest_trace2evolve.errors import ConfigError, LockError, Trace2EvolveError

EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit status.

    0 and more are the subcommand's own; 2 is bad input, told in one line on standard error.
    """
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except BrokenPipeError:
        # The reader has gone (`… | head`); nothing more can be said to it, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Trace2EvolveError, OSError) as error:
        print(f"trace2evolve: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trace2evolve", description="Evaluate tool-using agents; gate changes."
    )
    parser.add_argument("--version", action="version", version=f"trace2evolve {__version__}")
    parser.add_argument("--root", type=Path, help="project folder (default: the nearest parent with suites/)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _score_parser(commands)
    _compare_parser(commands)
    _lock_parser(commands)
    return parser


def _score_parser(commands: Any) -> None:
    score = commands.add_parser("score", help="score recorded runs again by tau2's rules")
    score.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results files or folders")
    score.add_argument("--json", action="store_true", help="print JSON")
    score.add_argument("--provider", help="the world's provider (default: inspect_evals)")
    _judge_options(score)
    score.set_defaults(command=_score)


def _compare_parser(commands: Any) -> None:
    compare = commands.add_parser("compare", help="gate two sets of evidence")
    compare.add_argument("sides", nargs="*", type=Path, metavar="BASELINE CANDIDATE")
    compare.add_argument(
        "--baseline", action="append", type=Path, metavar="FILE", help="for several files a side"
    )
    compare.add_argument(
        "--candidate", action="append", type=Path, metavar="FILE", help="for several files a side"
    )
    compare.add_argument("--policy", help="gate policy (default: strict)")
    compare.add_argument("--goal", choices=("improve", "hold"), default="improve")
    compare.add_argument("--suite", metavar="NAME", help="compare only this suite's tasks, as locked")
    compare.add_argument("--split", metavar="SPLIT", help="compare only this split of the suite")
    compare.add_argument("--provider", help="the world's provider (default: inspect_evals, or the suite's)")
    compare.add_argument("--json", action="store_true", help="print JSON")
    _judge_options(compare)
    compare.set_defaults(command=_compare)


def _lock_parser(commands: Any) -> None:
    lock = commands.add_parser("lock", help="write suites.lock from the suites and their worlds as they are")
    lock.add_argument("suites", nargs="*", metavar="SUITE", help="renew these only")
    lock.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where a suite differs from its lock"
    )
    lock.set_defaults(command=_lock)


def _judge_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--judge", metavar="MODEL", help="judge of natural-language assertions")
    parser.add_argument(
        "--judge-base-url", metavar="URL", help="the judge's endpoint (default: OPENAI_BASE_URL)"
    )


def _score(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.score import score_json, score_tables
    from pytest_trace2evolve.workflow.rescore import rescore_files
    from pytest_trace2evolve.worlds.registry import Worlds

    scored = rescore_files(options.files, Worlds(), options.provider, _judge(options))
    print(json.dumps(score_json(scored), indent=2) if options.json else score_tables(scored))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.records.verdict import Goal
    from pytest_trace2evolve.report.compare import comparison_text
    from pytest_trace2evolve.workflow.compare import compare
    from pytest_trace2evolve.workflow.finish import EXIT_STATUS
    from pytest_trace2evolve.worlds.registry import Worlds

    baseline, candidate = _sides(options)
    if options.split and not options.suite:
        raise ConfigError("--split names a split of a suite: give --suite too")
    comparison = compare(
        baseline,
        candidate,
        Worlds(),
        policy=options.policy,
        goal=Goal(options.goal),
        provider=options.provider,
        project=_project(options) if options.suite else None,
        suite=options.suite,
        split=options.split,
        judge=_judge(options),
    )
    if options.json:
        print(json.dumps(comparison.to_json(), indent=2))
    else:
        print(comparison_text(comparison))
    assert comparison.verdict.decision is not None
    return EXIT_STATUS[comparison.verdict.decision]


def _lock(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.worlds.registry import Worlds

    project, worlds = _project(options), Worlds()
    if options.check:
        return _check_locks(project, worlds, options.suites)
    lock = project.renew_lock(worlds, options.suites)
    for name, suite_lock in lock.suites.items():
        splits = ", ".join(f"{split} {len(tasks)}" for split, tasks in suite_lock.splits.items())
        print(f"{name}: {splits}; {suite_lock.provider} {suite_lock.provider_version}; {suite_lock.digest}")
    print(f"written: {project.lock_path}")
    return 0


def _check_locks(project: Any, worlds: Any, names: Sequence[str]) -> int:
    differing = 0
    for name in names or project.suite_names:
        suite = project.suite(name)
        try:
            project.verify_world(suite, project.locked(suite, worlds), worlds)
        except LockError as error:
            print(f"trace2evolve: {error}", file=sys.stderr)
            differing += 1
    if not differing:
        print(f"{project.lock_path}: every suite is as locked")
    return 1 if differing else 0


def _sides(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """The paths of both sides: two positional ones, or as many as wanted by option."""
    positional = list(options.sides)
    baseline, candidate = list(options.baseline or ()), list(options.candidate or ())
    if not baseline and positional:
        baseline = [positional.pop(0)]
    if not candidate and positional:
        candidate = [positional.pop(0)]
    if not baseline or not candidate or positional:
        raise ConfigError("compare takes BASELINE and CANDIDATE, or --baseline FILE… and --candidate FILE…")
    return baseline, candidate


def _judge(options: argparse.Namespace) -> Any:
    if options.judge is None:
        return None
    from pytest_trace2evolve.judges.chat import ChatJudge

    return ChatJudge(options.judge, base_url=options.judge_base_url)


def _project(options: argparse.Namespace) -> Any:
    from pytest_trace2evolve.workflow.project import Project, find_root

    root = options.root.resolve() if options.root else find_root(Path.cwd())
    if root is None or not (root / "suites").is_dir():
        raise ConfigError(f"no suites/ in {options.root or 'this folder or above it'}; give --root")
    return Project(root=root, suites_folder=root / "suites")


if __name__ == "__main__":
    sys.exit(main())
