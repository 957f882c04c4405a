"""Pure rooms import nothing heavy. import-linter checks the layers in `make check`."""

import subprocess
import sys
from pathlib import Path

import pytest

import pytest_trace2evolve

HEAVY = ("pytest", "torch", "openai", "trl", "peft", "inspect_ai", "inspect_evals", "tau2", "scipy.stats")
NUMBERS = ("numpy", "scipy")
"""A tenth to half a second each; only the gate computes."""

PACKAGE = Path(pytest_trace2evolve.__file__).parent


@pytest.mark.parametrize("room", ["errors", "utils", "records", "scoring", "gate"])
def test_pure_rooms_import_nothing_heavy(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]
    names = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in files]
    imports = "\n".join(f"import {name.removesuffix('.__init__')}" for name in names)
    heavy = HEAVY if room == "gate" else (*HEAVY, *NUMBERS)
    check = f"import sys\n{imports}\nprint(sorted(set(sys.modules) & set({heavy!r})))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def loaded_by(modules: str, names: tuple[str, ...]) -> str:
    program = f"import sys, {modules}; print(sorted(set(sys.modules) & set({names!r})))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_a_session_loads_statistics_only_to_judge() -> None:
    assert loaded_by("pytest_trace2evolve.plugin.controller", ("scipy.stats", "scipy.special")) == "[]\n"


def test_a_worker_loads_no_records_and_no_statistics() -> None:
    modules = "pytest_trace2evolve.plugin.worker, pytest_trace2evolve.plugin.case_fixtures"
    assert loaded_by(modules, ("pydantic", "hypothesis", *NUMBERS)) == "[]\n"
