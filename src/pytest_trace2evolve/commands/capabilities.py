"""`trace2evolve capabilities`: which capabilities the failures of runs lack."""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.commands.common import (
    at_least,
    nearest_project,
    progress_bar,
    refuse_picture,
    worlds_of,
)
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.option_types import integer

if TYPE_CHECKING:
    from pytest_trace2evolve.workflow.capabilities.gather import Gathered
    from pytest_trace2evolve.workflow.capabilities.mine import Labelled
    from pytest_trace2evolve.workflow.project import Project


def add(commands: Any) -> None:
    """Declare the command."""
    mine = commands.add_parser(
        "capabilities", help="which capabilities the failures of runs lack, by contrast with what passed"
    )
    mine.add_argument(
        "runs",
        nargs="+",
        metavar="RUN|RESULTS",
        help="a run's id or how it begins, a run folder, a results file",
    )
    labeller = mine.add_mutually_exclusive_group()
    labeller.add_argument("--judge", metavar="MODEL", help="discover and label by this model")
    labeller.add_argument("--rules", action="store_true", help="label by rules, offline (default)")
    mine.add_argument(
        "--runs", dest="times", type=integer, metavar="N", help="runs of the judge (default: 10)"
    )
    mine.add_argument(
        "--judge-base-url", metavar="URL", help="the judge's endpoint (default: OPENAI_BASE_URL)"
    )
    mine.add_argument("--judge-key-var", metavar="NAME", help="holds its key (default: OPENAI_API_KEY)")
    mine.add_argument("--no-cache", action="store_true", help="ask the judge anew, and keep no answer")
    mine.add_argument("--dry-run", action="store_true", help="only say what the judge would take")
    mine.add_argument(
        "--split", action="append", metavar="NAME", help="learn from a sealed split too; the ledger says so"
    )
    mine.add_argument("--suite", default="", metavar="NAME", help="which suite of runs over several")
    mine.add_argument("--provider", help="the world's provider (default: inspect_evals)")
    mine.add_argument("--picture", type=Path, metavar="FILE", help="write a picture (.svg or .png)")
    mine.add_argument("--json", action="store_true", help="print JSON")
    mine.set_defaults(command=_capabilities)


def _capabilities(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.capabilities import capabilities_json, capabilities_text
    from pytest_trace2evolve.workflow.capabilities.gather import gather
    from pytest_trace2evolve.workflow.capabilities.mine import by_rules, report

    times = None if options.times is None else at_least("--runs", options.times, 1, 10000)
    _refuse_unheard(options)
    if options.picture is not None:
        refuse_picture(options.picture)
    project = nearest_project(options)
    gathered = gather(
        options.runs,
        worlds_of(project),
        project=project,
        here=Path.cwd(),
        splits=tuple(options.split or ()),
        suite=options.suite,
        provider=options.provider,
    )
    if options.judge is None:
        labelled: Labelled | None = by_rules(gathered, times or 1)
    else:
        labelled = _judged(options, gathered, project, times)
    if labelled is None:
        return 0
    found = report(gathered, labelled)
    if options.picture is not None:
        from pytest_trace2evolve.report.capability_picture import capability_picture

        file_format = options.picture.suffix[1:].lower()
        options.picture.write_bytes(capability_picture(found, file_format=file_format))
    print(json.dumps(capabilities_json(found), indent=2) if options.json else capabilities_text(found))
    return 0


_JUDGES_ONLY = ("judge_base_url", "judge_key_var", "no_cache", "dry_run")


def _refuse_unheard(options: argparse.Namespace) -> None:
    """Options that say something to a judge, where none is asked.

    Raises:
        ConfigError: there is one.
    """
    given = [name for name in _JUDGES_ONLY if getattr(options, name)]
    if options.judge is None and given:
        raise ConfigError(f"--{given[0].replace('_', '-')} is for a judge: name one with --judge")


def _judged(
    options: argparse.Namespace, gathered: "Gathered", project: "Project | None", times: int | None
) -> "Labelled | None":
    """Labels by the judge; None where only their cost was asked for."""
    from pytest_trace2evolve.models.prices import PRICES_NAME, read_prices
    from pytest_trace2evolve.models.settings import ModelSettings
    from pytest_trace2evolve.workflow.capabilities.judged import RUNS, Judged, JudgeSettings, estimate
    from pytest_trace2evolve.workflow.running.chat import open_cache

    prices = read_prices(project.root / PRICES_NAME) if project is not None else {}
    model = ModelSettings(
        model=options.judge,
        base_url=options.judge_base_url,
        url_option="--judge-base-url",
        key_var=options.judge_key_var or "OPENAI_API_KEY",
        temperature=1.0,
        seed=0,
        price=prices.get(options.judge),
    )
    settings = JudgeSettings(model, runs=times or RUNS)
    expected = estimate(gathered, settings)
    cost = f"about ${expected.cost:.2f}" if expected.cost is not None else "price not known (prices.toml)"
    print(
        f"{len(gathered.conducts)} traces × {settings.runs} runs: {expected.requests:,} requests, about "
        f"{expected.prompt_tokens:,} prompt and {expected.completion_tokens:,} completion tokens, {cost}",
        file=sys.stderr,
    )
    if options.dry_run:
        return None
    model.key()
    model.require_url()
    with contextlib.ExitStack() as stack:
        if project is not None and not options.no_cache:
            cache = open_cache(project.answers_cache)
            stack.callback(cache.close)
            settings = JudgeSettings(model, runs=settings.runs, cache=cache)
        show = stack.enter_context(progress_bar("labelling", None))
        judged = Judged(settings, _shown(show))
        labelled = judged.label(gathered)
    spent = f", ${judged.used.cost:.2f}" if judged.used.cost is not None and judged.used.calls else ""
    print(f"asked {judged.used.calls:,} times, {judged.used.tokens:,} tokens{spent}", file=sys.stderr)
    return labelled


def _shown(show: Callable[..., None]) -> Callable[[int, int], None]:
    return lambda done, total: show(done, "", total)
