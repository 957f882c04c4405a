"""Scores published τ² runs and writes their compact evidence to baselines/published/.

python -m research.published FOLDER

FOLDER holds the results files that baselines/PUBLISHED.md names. The evidence has scores, reward components,
counts of actions and usage, and no messages. The command also renews the table in PUBLISHED.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.evidence.baselines import read_evidence, write_evidence
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.session.evidence_sources import load_evidence
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.worlds.registry import Worlds
from research.common import REPOSITORY, run

FOLDER = REPOSITORY / "baselines" / "published"
PAGE = REPOSITORY / "baselines" / "PUBLISHED.md"
START, END = "<!-- runs -->\n", "<!-- /runs -->\n"


class Source(NamedTuple):
    """Where a results file was published."""

    repository: str
    commit: str
    licence: str


AUTHORS = Source("sierra-research/tau2-bench", "29510b1d0d", "MIT")
AUTHORS_LATER = Source("sierra-research/tau2-bench", "bfe508e486", "MIT")
POLICIES = Source("codesque16/tau2-bench", "c9e1346e5a", "MIT")

SOURCES = {
    "retail-gpt-4.1-mini-base": POLICIES,
    "retail-gpt-4.1-mini-policy-v1": POLICIES,
    "retail-gpt-4.1-mini-policy-v2": POLICIES,
    "retail-gpt-4.1": AUTHORS,
    "retail-gpt-4.1-sft": AUTHORS,
    "telecom-gpt-4.1": AUTHORS,
    "telecom-gpt-4.1-sft": AUTHORS,
    "telecom-solo-gpt-4.1": AUTHORS,
    "telecom-solo-gpt-4.1-sft": AUTHORS,
    "airline-gpt-4.1": AUTHORS,
    "airline-gpt-4.1-sft": AUTHORS,
    "airline-claude-sonnet-4.5": AUTHORS_LATER,
}
"""The published runs by name: NAME.json.gz is the results file, NAME.json its evidence."""


def published_path(name: str) -> Path:
    return FOLDER / f"{name}.json"


def score_run(folder: Path, name: str, worlds: Worlds) -> Evidence:
    """The evidence of one results file, as this version scores it."""
    (evidence,) = load_evidence([folder / f"{name}.json.gz"], worlds).sides
    return evidence


def render_page(page: str) -> str:
    """The page with the table of what baselines/published/ holds."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ConfigError(f"{PAGE}: lacks {START.strip()} or {END.strip()}; restore the file")
    return before + start + "\n" + render_table() + "\n" + end + after


def render_table() -> str:
    lines = [
        "| run | domain | simulations | reward | recorded | source | licence |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, source in SOURCES.items():
        evidence = read_evidence(published_path(name))
        simulations = evidence.simulations
        rewards = [one.reward for one in simulations if one.reward is not None]
        recorded = [one.recorded_reward for one in simulations if one.recorded_reward is not None]
        lines.append(
            f"| {name} | {evidence.provenance.mode.short_text} | {len(simulations)} "
            f"| {fmean(rewards):.3f} | {fmean(recorded):.3f} "
            f"| {source.repository}@{source.commit} | {source.licence} |"
        )
    return "\n".join(lines) + "\n"


def publish(options: argparse.Namespace) -> int:
    worlds = Worlds()
    for name in SOURCES:
        write_evidence(published_path(name), score_run(options.folder, name, worlds))
        print(f"{published_path(name).relative_to(REPOSITORY)}: {published_path(name).stat().st_size} bytes")
    write_atomic(PAGE, render_page(PAGE.read_text(encoding="utf-8")))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m research.published", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the results files")
    parser.set_defaults(command=publish)
    return run(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
