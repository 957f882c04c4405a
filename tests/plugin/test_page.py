"""The report page of a session: where it is written, and that nothing loads its code without it."""

import base64
import json
import re
import sys
import zlib
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from tests.plugin.conftest import SUITE, DeskProject
from tests.plugin.test_failures import PLANTED, accesses, vault


def page_of(desk: DeskProject) -> Path:
    return (
        next(path for path in (desk.root / ".trace2evolve" / "runs").iterdir() if "v1" in path.name)
        / "report.html"
    )


def test_a_gated_run_writes_its_page_and_names_it(project: DeskProject) -> None:
    project.baseline()
    result = project.run("--candidate=v1")
    page = page_of(project)
    result.stdout.fnmatch_lines([f" page: .trace2evolve/runs/{page.parent.name}/report.html"])
    assert "is better than v0" in page.read_text(encoding="utf-8")


def test_the_page_goes_to_a_file_or_nowhere(project: DeskProject) -> None:
    project.baseline()
    result = project.run("--candidate=v1", "-ot2e_report=out.html")
    result.stdout.fnmatch_lines([" page: out.html"])
    assert (project.root / "out.html").exists()
    assert not page_of(project).exists()
    result = project.run("--candidate=v2", "-ot2e_report=none")
    result.stdout.no_fnmatch_line(" page:*")
    assert not list(project.root.rglob("report.html"))


def test_a_page_that_cannot_be_written_changes_nothing(project: DeskProject) -> None:
    project.baseline()
    result = project.run("--candidate=v1", "-ot2e_report=suites")
    result.stdout.fnmatch_lines(
        [
            "trace2evolve: the report page could not be written: */suites: the page cannot be written: *",
            "PROMOTE*",
        ]
    )
    assert result.ret == 0


def test_show_writes_the_same_page_again(project: DeskProject, capsys: pytest.CaptureFixture[str]) -> None:
    project.baseline()
    project.after("--candidate=v1")
    page = page_of(project)
    capsys.readouterr()
    assert main(["show", page.parent.name, "--report", "again.html"]) == 0
    assert capsys.readouterr().out == "written: again.html\n"
    assert (project.root / "again.html").read_bytes() == page.read_bytes()


def test_the_page_shows_the_difference_of_the_candidates_and_their_lineage(project: DeskProject) -> None:
    project.baseline()
    project.after("--candidate=v1")
    text = page_of(project).read_text(encoding="utf-8")
    assert '<span class="added">+close note restart</span>' in text
    assert "<li><b>v1</b></li><li><b>v0</b></li>" in text
    assert "v1 against v0: PROMOTE" in text


def test_a_run_without_a_page_loads_none_of_its_code(pytester: pytest.Pytester, project: DeskProject) -> None:
    project.baseline()
    probe = pytester.path / "probe.py"
    probe.write_text(
        "import sys, pytest\n"
        'pytest.main(["-q", "--t2e-agent=listed", "--candidate=v1", *sys.argv[1:]])\n'
        'print("loaded:", sorted({"jinja2", "pytest_trace2evolve.report.page"} & set(sys.modules)))\n'
    )
    pytester.run(sys.executable, probe, "-ot2e_report=none").stdout.fnmatch_lines(["loaded: [[]]"])


def traces_in(page: Path) -> str:
    """The unpacked traces of a page, as JSON."""
    packed = re.findall(
        r'<script type="text/plain" id="trace-\d+">([\w+/=]+)</script>', page.read_text("utf-8")
    )
    return "\n".join(zlib.decompress(base64.b64decode(text)).decode() for text in packed)


def test_a_page_holds_the_traces_that_may_be_read(
    project: DeskProject, capsys: pytest.CaptureFixture[str]
) -> None:
    vault(project, "discovery", capsys)
    project.after("--candidate=v0", "--t2e-save-baseline=v0", "--t2e-gate=off")
    project.after("--candidate=v1")
    traces = traces_in(page_of(project))
    assert all(word in traces for word in ("agentword", "callword", "userword"))
    old, new = next(
        sides for text in traces.split("\n") if "agentword" in text for sides in [json.loads(text)]
    )
    assert [trace["reward"] for trace in (*old, *new)] == [0.0, 0.0]
    assert [message["role"] for message in new[0]["messages"]][:2] == ["assistant", "user"]
    assert new[0]["messages"][2]["calls"] == [["think", '{"thought": "thoughtword"}']]
    assert [False, "the database is not in the required end state"] in new[0]["checks"]
    assert "E   tickets.T9.note: 'goldnote' != 'callword'" in new[0]["why"]


def test_a_page_holds_nothing_of_a_sealed_trace(
    project: DeskProject, capsys: pytest.CaptureFixture[str]
) -> None:
    vault(project, "heldout", capsys)
    project.after("--candidate=v0", "--t2e-save-baseline=v0", "--t2e-gate=off")
    project.after("--candidate=v1")
    page = page_of(project)
    text = page.read_text(encoding="utf-8") + traces_in(page)
    assert "vault" in text
    assert [word for word in PLANTED if word in text] == []


def test_the_access_to_each_trace_of_a_page_is_recorded_once(project: DeskProject) -> None:
    project.write("suites/desk.toml", SUITE.replace("discovery", "development"))
    project.lock()
    project.baseline()
    for _ in range(2):
        project.run("--candidate=v1")
    tasks = set(re.findall(r'data-trace="trace-\d+"><bdi>(\w+)<', page_of(project).read_text("utf-8")))
    assert sorted(accesses(project)) == sorted(("development", task) for task in tasks)
    assert tasks == {"opened"}
