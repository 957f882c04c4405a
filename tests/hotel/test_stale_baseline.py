"""Baselines that today's environment cannot reproduce, although no file of the agent's identity changed."""

import pytest

from tests.hotel import HotelProject

SKILLS = "- book\n- cancel\n- move\n- price"
UNSEEN = """\
        import os
        down = os.environ.get("HOTEL_DOWN")
        if down and any(down in (heard.content or "") for heard in history):
            return Message(role="assistant", content=self._phrases["refer"])
        plan = Planner("""


@pytest.fixture
def stale(hotel: HotelProject) -> HotelProject:
    """A hotel with a baseline v6. Its agent refers each guest whose text has the text of `HOTEL_DOWN`."""
    hotel.replace("hotel/agent.py", "        plan = Planner(", UNSEEN)
    hotel.baseline("v6")
    hotel.candidate("v7", f"{SKILLS}\nBe brief.", parent="v6")
    return hotel


def report(result: pytest.RunResult) -> str:
    return " ".join(result.stdout.str().split())


@pytest.mark.parametrize(
    ("down", "counts", "decision", "goal"),
    [
        ("@", ("32 of 32", "0 of 64"), "discard", "improve"),
        ("carla@", ("8 of 8", "0 of 16"), "inconclusive", "no-regression"),
    ],
)
def test_reruns_that_contradict_the_baseline_clear_nothing(
    stale: HotelProject,
    monkeypatch: pytest.MonkeyPatch,
    down: str,
    counts: tuple[str, str],
    decision: str,
    goal: str,
) -> None:
    monkeypatch.setenv("HOTEL_DOWN", down)
    text = report(stale.run("suites", "--candidate=v7", f"--t2e-goal={goal}"))
    assert (
        f"? baseline rerun {counts[0]} recorded trials of the baseline passed, but {counts[1]} fresh ones; "
        "the baseline may run other code than when it was saved (unseen code, a changed dependency), so "
        "nothing is cleared: save it again with --t2e-baseline-mode update" in text
    )
    assert "none confirmed" in text
    assert "cleared," not in text
    assert stale.verdict["verdict"] == decision
    if decision == "inconclusive":
        assert "why: reruns of the baseline contradict its recorded trials" in text
        assert "todo: save the baseline again, and rerun" in text


def test_the_run_decides_once_the_baseline_is_saved_again(
    stale: HotelProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contradicted run leaves no verdict that would be repeated."""
    monkeypatch.setenv("HOTEL_DOWN", "carla@")
    stale.run("suites", "--candidate=v7", "--t2e-goal=no-regression")
    update = ("--t2e-save-baseline=v6", "--t2e-baseline-mode=update", "--t2e-gate=off")
    assert stale.run("suites", "--candidate=v6", *update).ret == 0
    text = report(stale.run("suites", "--candidate=v7", "--t2e-goal=no-regression"))
    assert stale.verdict["verdict"] == "promote", text
    assert "baseline rerun" not in text


def test_a_fall_of_the_candidate_alone_is_confirmed(stale: HotelProject) -> None:
    stale.candidate("v8", "- book\n- move\n- price", parent="v6")
    text = report(stale.run("suites", "--candidate=v8", "--t2e-goal=no-regression"))
    assert "baseline rerun" not in text
    assert stale.verdict["suites"]["hotel"]["verdicts"][0]["tasks"]["regressions"]


def test_a_guard_names_the_contradiction(hotel: HotelProject, monkeypatch: pytest.MonkeyPatch) -> None:
    hotel.guard()
    hotel.replace("hotel/agent.py", "        plan = Planner(", UNSEEN)
    hotel.baseline("v6")
    hotel.candidate("v7", f"{SKILLS}\nBe brief.", parent="v6")
    monkeypatch.setenv("HOTEL_DOWN", "carla@")
    text = report(hotel.run("suites", "--candidate=v7", "--t2e-goal=no-regression"))
    assert "? harm suspected: 8 of 8 recorded trials of the baseline passed, but 0 of 16 fresh ones" in text
    splits = {item["split"]: item["verdict"] for item in hotel.verdict["suites"]["guarded"]["verdicts"]}
    assert splits == {"heldout": "inconclusive", "transfer": "inconclusive"}
