"""A run that promotes nothing explains each task that broke: in the terminal, in JUnit and in its folder."""

import xml.etree.ElementTree as ElementTree

import pytest

from tests.hotel import HotelProject

DIVERGED = [
    "    first difference from a passed trial of the baseline:",
    "    E   baseline: find_guest(email=*)",
    "    E   candidate: (no further call)",
]


def broken(hotel: HotelProject, split: str, *arguments: str) -> pytest.RunResult:
    """The run of a candidate that can only tell prices, against a saved baseline that can do more."""
    hotel.replace("suites/hotel.toml", "heldout = [", f"{split} = [")
    hotel.lock()
    hotel.baseline("v6")
    hotel.candidate("v7", "- price", parent="v6")
    given = ("--candidate=v7", "--t2e-goal=no-regression", "-ot2e_max_reruns=0", "--junitxml=report.xml")
    return hotel.run("suites", *given, *arguments)


def test_fallen_tasks_explain_themselves(hotel: HotelProject) -> None:
    result = broken(hotel, "development")
    assert hotel.verdict["verdict"] == "discard"
    names = hotel.verdict["suites"]["hotel"]["verdicts"][0]["tasks"]["broken"]
    result.stdout.fnmatch_lines(
        ["=* what broke *=", f"hotel · {names[0]}: regressed, *", "    regressed: 4 of 4 passed *"]
    )
    result.stdout.fnmatch_lines([*DIVERGED, "    open the trace: trace2evolve show * *"])
    text = (hotel.runs[-1] / "what-broke.txt").read_text(encoding="utf-8")
    assert [name for name in names if f"hotel · {name}: regressed" in text] == names
    (suite,) = ElementTree.parse(hotel.root / "report.xml").getroot()
    failures = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    entries = {name: failures[name] for name in names}
    assert all(
        entry is not None and "first difference from" in (entry.text or "") for entry in entries.values()
    )
    assert not [entry for entry in suite.iter("skipped") if "suspected" in entry.get("message", "")]
    assert int(suite.get("failures", "0")) == sum(entry is not None for entry in failures.values())
    result.stdout.fnmatch_lines([f"open: trace2evolve show {hotel.runs[-1].name}"])


def test_a_sealed_task_shows_kinds_and_figures_only(hotel: HotelProject) -> None:
    broken(hotel, "heldout", "--tb=no")
    text = (hotel.runs[-1] / "what-broke.txt").read_text(encoding="utf-8")
    assert "regressed: 4 of 4 passed (user_stop 4) in baseline v6, now 0 of 4 passed (user_stop 4)" in text
    names = hotel.verdict["suites"]["hotel"]["verdicts"][0]["tasks"]["broken"]
    sealed = text.partition("fails newly")[0]  # the tasks of discovery come last
    assert sealed.count("heldout is sealed, so no trace is shown") == len(names) == 7
    assert "find_guest" not in sealed
    assert "find_guest" in text
