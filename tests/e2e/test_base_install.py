"""Without any extra: what a project of one's own needs works, and all else names the extra in one line."""

import functools
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pytest_trace2evolve.utils.resources import MODEL_PATH, template_folder
from tests.e2e import base_install
from tests.e2e.base_install import canonical

Run = Callable[..., tuple[int, str]]


def needed(name: str, found: set[str]) -> set[str]:
    """The distributions that an installation of one brings, with its extras in brackets if there are any."""
    requirement = Requirement(name)
    if (key := canonical(requirement.name)) in found and not requirement.extras:
        return found
    found.add(key)
    for text in importlib.metadata.requires(requirement.name) or ():
        marker = Requirement(text).marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in requirement.extras or {""}):
            needed(text.partition(";")[0], found)
    return found


@functools.cache
def hiding_code() -> str:
    """The code that hides all that the package's own dependencies do not bring."""
    visible = needed("pytest-trace2evolve", set())
    owners = importlib.metadata.packages_distributions()
    hidden = {package for package, names in owners.items() if visible.isdisjoint(map(canonical, names))}
    assert {"torch", "uvicorn", "inspect_evals"} <= hidden
    return f"import base_install\nbase_install.hide({hidden!r}, {visible!r})\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command of the package, or pytest, in an empty folder; returns its status and output."""
    site, project = tmp_path / "site", tmp_path / "project"
    site.mkdir()
    project.mkdir()
    (site / "sitecustomize.py").write_text(hiding_code())
    (site / "base_install.py").write_bytes(Path(base_install.__file__).read_bytes())
    environment = os.environ | {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment["OPENAI_API_KEY"] = "any"
    environment.pop("PYTEST_ADDOPTS", None)

    def run(*command: str) -> tuple[int, str]:
        module = () if command[0] == "pytest" else ("pytest_trace2evolve",)
        done = subprocess.run(
            [sys.executable, "-m", *module, *command],
            cwd=project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert "crashed:" not in done.stdout, done.stdout
        return done.returncode, done.stdout

    return run


def test_an_agent_of_ones_own_is_gated(run: Run, tmp_path: Path) -> None:
    assert run("init", "--for", "own")[0] == 0
    assert run("pytest", "--candidate", "v0", "-n", "2", "--t2e-save-baseline", "v0")[0] == 0
    status, output = run("pytest", "--candidate", "v1")
    assert status == 0
    assert "PROMOTE: v1 is better than v0" in output
    runs = sorted(path.name for path in (tmp_path / "project/.trace2evolve/runs").iterdir())
    for _ in range(2):  # scored, then from stored figures
        assert "PROMOTE" in run("compare", *runs)[1]
    for command, expected in (
        (("score", f".trace2evolve/runs/{runs[0]}"), "0.750"),
        (("show",), runs[1]),
        (("show", runs[0], "renew-reserved"), "Renewed"),
        (("export", "csv", runs[1]), "simulations.csv"),
        (("ledger",), "v1 against v0: PROMOTE"),
        (("baseline", "list"), "current"),
        (("lock",), "desk: development 4"),
        (("power", "--tasks", "20", "--trials", "2"), "20 tasks"),
    ):
        status, output = run(*command)
        assert (status, expected in output) == (0, True), output
    assert run("check")[0] == 0
    status, output = run("improve", "--suite", "desk", "--proposer", "ablate")
    assert status == 2
    assert "has no instruction" in output


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("serve", str(template_folder() / MODEL_PATH)), "local"),
        (("show", "--serve"), "view"),
        (("train", "--capability", "tool_calling_precision"), "train"),
        (("train", "--router"), "local"),
        (("pytest", "--candidate", "v0", "--t2e-suite", "support"), "local"),
        (("improve", "--suite", "support", "--proposer", "gepa", "--reflect-model", "m"), "gepa"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(run: Run, command: tuple[str, ...], extra: str) -> None:
    assert run("init", "--for", "support")[0] == 0
    status, output = run(*command)
    assert status in (2, 4)
    assert f"pytest-trace2evolve[{extra}]" in output
