"""A disk that fails at any write of the end of a run: what is shown is stored, and the rest never was."""

from pathlib import Path

import pytest

from tests.attack.sessions import Sessions
from tests.session.test_second_tosses import Fates

CONFTEST = """
import os
from pathlib import Path

from pytest_trace2evolve.session.session import Session
from tests.failing_disk import failing_disk

place = Path(os.environ["T2E_TEST_PIDS"])
store = Session._store_results


def failing(self, *arguments, **further):
    with failing_disk(int((place / "step").read_text())) as calls:
        try:
            return store(self, *arguments, **further)
        finally:
            (place / "calls").write_text(str(calls()))


Session._store_results = failing
"""


@pytest.fixture
def failing(tmp_path: Path, sessions: Sessions) -> Fates:
    """A project whose candidate is promoted, at the write of a step that a file says."""
    fates = Fates(tmp_path / "project", sessions)
    fates.project.write("pids/step", "0")
    fates.project.write("conftest.py", CONFTEST)
    return fates


STEPS = 24
"""More than the writes of the end of a run that judges a candidate and saves it as a baseline."""


def test_what_is_shown_is_stored_and_the_rest_is_not(failing: Fates) -> None:
    project, failed = failing.project, 0
    failing.baseline()
    for step in range(1, STEPS):
        name = f"v{step + 1}"
        project.candidate(name, "parent: v0", text=f"Be quick: {step}.")
        given = (name, "--t2e-gate=few", f"--t2e-save-baseline={name}", "-ot2e_max_reruns=0")
        project.write("pids/step", str(step))
        first = failing.run(*given, fates={}, every="pass")
        calls = int((project.pids / "calls").read_text())
        project.write("pids/step", "0")
        own = [one for one in failing.evaluations if one.candidate.id == name]
        runs = sorted((project.root / ".trace2evolve/runs").glob(f"*-{name}-*"))
        assert "INTERNALERROR" not in first.text, first.text
        if first.status == 3:
            assert "NO VERDICT on" in first.text, first.text
            assert "No space left on device" in first.text
            assert own == [], "a verdict that was not shown is not stored"
            assert not (runs[-1] / "verdict.json").exists()
            failed += 1
        else:
            assert first.status in (0, 10), first.text
            assert len(own) == 1, "a verdict that was shown is stored"
            assert (runs[-1] / "verdict.json").exists()
        again = failing.run(*given[:2], *given[3:], fates={}, every="pass")
        assert again.status in (0, 10), again.text
        assert "recorded: " not in again.text or first.status != 3, again.text
        evaluation = next(one for one in failing.evaluations if one.candidate.id == name)
        assert (evaluation.look, evaluation.analysis, evaluation.repeats) == (step, 1, None)
        ledger = project.sessions.run(project.root, "trace2evolve", "ledger")
        assert ledger.status == 0, ledger.text
        if step > calls:
            break
    assert step > calls
    assert failed >= calls - 2
