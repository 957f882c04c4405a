"""Scenarios, rewards and answers of a version never change; nothing else changes a digest."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pytest_trace2evolve
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.environments.registry import BUILT_IN
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Task
from tests.environments import golden

CAPABILITY = PreconditionVerification.capability
FIRST = "train, difficulty 1, seed 0"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made() -> golden.Golden:
    return golden.golden()


def test_golden_scenarios_are_those_of_their_versions(made: golden.Golden) -> None:
    problems = golden.problems(golden.read(), made)
    assert not problems, "\n".join(problems)


def test_the_file_holds_the_versions_of_the_generators() -> None:
    versions = {name: one["version"] for name, one in golden.read().items()}
    built_in = {kind.capability: kind.version for kind in BUILT_IN}
    assert versions == built_in


def test_a_changed_scenario_wants_another_version(made: golden.Golden) -> None:
    stored = copy.deepcopy(made)
    stored[CAPABILITY]["scenarios"][FIRST]["task"] = "other"
    count = len(made[CAPABILITY]["scenarios"])
    [expected] = golden.problems(stored, made)
    assert expected == (
        f"{CAPABILITY}: 1 of {count} golden scenarios changed, first '{FIRST}'; raise "
        "PreconditionVerification.version in pytest_trace2evolve.environments.generators.precondition "
        "and run 'python -m tests.environments.golden', or undo the change"
    )


def test_the_command_refuses_changed_scenarios_of_one_version(
    tmp_path: Path,
    made: golden.Golden,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "golden.json"
    monkeypatch.setattr(golden, "FILE", file)
    monkeypatch.setattr(golden, "golden", lambda: made)
    assert golden.main() == 0
    before = file.read_text(encoding="utf-8")
    other = copy.deepcopy(made)
    other[CAPABILITY]["scenarios"][FIRST]["task"] = "other"
    monkeypatch.setattr(golden, "golden", lambda: other)
    assert golden.main() == 1
    assert capsys.readouterr().err.startswith(f"{CAPABILITY}: 1 of ")
    assert file.read_text(encoding="utf-8") == before
    other[CAPABILITY]["version"] = made[CAPABILITY]["version"] + 1
    assert golden.main() == 0
    assert golden.read() == other


@pytest.mark.parametrize("part", ["make_draft", "grade_trajectory", "is_decided", "shortcut"])
def test_each_part_of_a_generator_is_in_its_golden_scenarios(
    monkeypatch: pytest.MonkeyPatch, made: golden.Golden, part: str
) -> None:
    real = getattr(PreconditionVerification, part)

    def grown(self: PreconditionVerification, scene: Any) -> Any:
        drawn = real(self, scene)
        scene.store.add_distractors(scene.user, 1)
        return drawn

    def shifted(self: PreconditionVerification, trajectory: Any, solved: bool) -> float:
        grade = float(real(self, trajectory, solved))
        return 0.5 if grade == 0.8 else grade

    def late(self: PreconditionVerification, trajectory: Any) -> bool:
        return False

    def longer(self: PreconditionVerification, task: Task) -> list[Message]:
        return [Message(role="assistant", content="One moment."), *real(self, task)]

    changed = {"make_draft": grown, "grade_trajectory": shifted, "is_decided": late, "shortcut": longer}[part]
    monkeypatch.setattr(PreconditionVerification, part, changed)
    [expected] = golden.problems({CAPABILITY: made[CAPABILITY]}, golden.golden([CAPABILITY]))
    assert expected.startswith(f"{CAPABILITY}: ")
    assert "raise PreconditionVerification.version in" in expected


DIGESTS = """
import json
import pytest_trace2evolve
from tests.environments import golden

print(json.dumps([pytest_trace2evolve.__file__, golden.digests()]))
"""


def test_no_comment_and_no_renamed_module_changes_a_digest(tmp_path: Path) -> None:
    package = Path(pytest_trace2evolve.__file__).parent
    copied = tmp_path / package.name
    shutil.copytree(package, copied)
    edited = [path for room in ("environments", "cases", "worlds") for path in (copied / room).rglob("*.py")]
    for file in edited:
        text = file.read_text(encoding="utf-8").replace("generators.precondition", "generators.another_name")
        file.write_text(f"{text}\n# A remark.\n", encoding="utf-8")
    folder = copied / "environments" / "generators"
    (folder / "precondition.py").rename(folder / "another_name.py")
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [str(copied / "__init__.py"), golden.digests()]
