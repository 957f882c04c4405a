"""Where a project's own checks are found, and which names they may have."""

from pathlib import Path

import pytest

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.project import Project

CHECK = "import pytest_trace2evolve as t2e\n\n\n@t2e.check\ndef {}(trace):\n    return True\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "suites").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def ids(root: Path) -> list[str]:
    return list(Project(root, root / "suites").extensions.trace_checks)


def name_module(root: Path, module: str, text: str) -> None:
    (root / "pyproject.toml").write_text(f'[tool.trace2evolve]\nchecks = "{module}"\n')
    path = root / Path(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_checks_come_from_both_conftests_and_the_named_module(root: Path) -> None:
    (root / "conftest.py").write_text(CHECK.format("top"))
    (root / "suites" / "conftest.py").write_text(CHECK.format("below"))
    name_module(root, "own_pkg.checks_a", CHECK.format("named"))
    assert ids(root) == ["top", "below", "named"]


def test_the_settings_limit_the_time_of_a_check(root: Path) -> None:
    name_module(root, "own_checks_limit", CHECK.format("named"))
    (root / "pyproject.toml").write_text(
        '[tool.trace2evolve]\nchecks = "own_checks_limit"\ncheck_timeout = 5\n'
    )
    assert Project(root, root / "suites").extensions.trace_checks["named"].timeout == 5


def test_a_taken_name_names_both_places(root: Path) -> None:
    (root / "conftest.py").write_text(CHECK.format("same"))
    name_module(root, "own_checks_d", "\n" + CHECK.format("same"))
    with pytest.raises(
        ConfigError,
        match=r"check 'same' is registered twice, by conftest.py:4 and by own_checks_d.py:5; rename",
    ):
        ids(root)


@pytest.mark.parametrize("name", ["reward", "invariants", "measured", "pass_rate_not_worse"])
def test_names_of_built_in_checks_are_taken(root: Path, name: str) -> None:
    (root / "conftest.py").write_text(CHECK.format(name))
    with pytest.raises(
        ConfigError, match=f"check '{name}' is registered twice, by pytest-trace2evolve and by"
    ):
        ids(root)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 / 0\n", r"ZeroDivisionError: division by zero \(own_checks_e.py:1\)"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("def x(:\n", "SyntaxError"),
        ("import pytest_trace2evolve as t2e\nt2e.check(lambda x: True)\n", "check id '<lambda>'"),
    ],
)
def test_a_module_that_fails_is_named(root: Path, text: str, problem: str) -> None:
    name_module(root, "own_checks_e", text)
    with pytest.raises(ConfigError, match=problem):
        ids(root)


def test_a_missing_module_is_named(root: Path) -> None:
    (root / "pyproject.toml").write_text('[tool.trace2evolve]\nchecks = "no_such_checks"\n')
    with pytest.raises(
        ConfigError, match="checks = 'no_such_checks': the module cannot be imported: ModuleNot"
    ):
        ids(root)
