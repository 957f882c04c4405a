"""Files that commit 3f4d315 wrote are read, and say what they said.

`of_3f4d315` is a project of nine support cases. That commit locked it, measured v0 and v1 on a scripted
endpoint (v1 solves more), recorded a cassette, opened a sealed trace, and promoted v1 under policy `strict`.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.project.adapters import Adapters

WRITTEN = Path(__file__).parent / "of_3f4d315"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(WRITTEN, pytester.path, dirs_exist_ok=True)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("COLUMNS", "240")
    return pytester.path


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("check", []),
        (
            "baseline list",
            ["support v0 * m * 9 * 1 * 9 current –", "support v1 * v1 ← v0 * replaces v0 6a1279ce…, *"],
        ),
        (
            "ledger",
            [
                "*v1 against v0: INCONCLUSIVE · clean evidence, test 1 (1 trial), level 0.0304, *",
                "*v1 against v0: PROMOTE · clean evidence, test 2 (1 trial), policy strict, goal improve *",
                "* opened task indirect_address_change-ca2be020fe, trial 0, of *",
                "  the next new candidate is test 2: level 0.0057 at alpha 0.05, *",
            ],
        ),
        ("cases check synthetic/pressure.jsonl", ["synthetic/pressure.jsonl: 2 of 2 cases admitted"]),
        (
            "show runs/live vague_refund_request-1bd15be7c1",
            ["nothing was recorded: support::discovery may be read"],
        ),
        ("score runs/live/results.json", ["results.json * 9 * 1.000 * 1.000 * 100.0% *", "* support; *"]),
        (
            "baseline promote runs/strict",
            ["run * is already promoted: baselines/support/v1.json; nothing was changed"],
        ),
        ("show runs/live", ["* · candidate v1 · 0 of 9 tasks failed"]),
    ],
)
def test_commands_read_the_project(
    project: Path, command: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = sorted((project / "ledger").iterdir())
    assert main(["--root", str(project), *command.split()]) == 0
    found = capsys.readouterr()
    pytest.LineMatcher((found.out + found.err).splitlines()).fnmatch_lines(lines)
    assert sorted((project / "ledger").iterdir()) == ledger


@pytest.mark.parametrize("recorded", ["--t2e-results=runs/live", "--t2e-playback=tapes/v1.jsonl"])
def test_a_recorded_run_and_a_cassette_end_as_they_did(
    project: Path, pytester: pytest.Pytester, recorded: str
) -> None:
    result = pytester.runpytest_inprocess("--candidate=v1", recorded, "--t2e-baseline=v0")
    result.assert_outcomes(passed=4, xpassed=5)
    result.stdout.fnmatch_lines(
        [
            "heldout *4 *",
            "heldout decides on clean evidence (test 1, level 0.0304): INCONCLUSIVE",
            "*recorded: INCONCLUSIVE on *; now: INCONCLUSIVE; the worse of the two counts*",
            "INCONCLUSIVE: *",
        ]
    )
    assert result.ret == 10
    before, after = (
        heldout(folder) for folder in (WRITTEN / "runs/live", *project.glob(".trace2evolve/runs/*"))
    )
    assert [item["id"] for item in after] == [item["id"] for item in before]
    assert [(item["status"], item["estimate"], item["p"]) for item in after] == [
        (item["status"], item["estimate"], item["p"]) for item in before
    ]


def heldout(run: Path) -> list[dict[str, Any]]:
    """The checks of the split that decided."""
    verdicts = json.loads((run / "verdict.json").read_bytes())["suites"]["support"]["verdicts"]
    checks: list[dict[str, Any]] = next(item["checks"] for item in verdicts if item["split"] == "heldout")
    return checks


def test_the_manifest_of_an_adapter_is_read(project: Path) -> None:
    adapter = Adapters(project / "adapters")["address"]
    assert adapter.manifest.capability == "address"
    assert adapter.manifest.verdict is not None
    assert adapter.digest
