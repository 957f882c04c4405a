"""Hooks of a project's conftest.py and plugins: every command knows their registrations, as pytest does."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.environments import registry as environment_registry
from pytest_trace2evolve.project import extensions
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.worlds import registry as world_registry
from tests.plugin.conftest import CONFTEST, INI, Command, DeskProject

WORLD = """\
from fake_world import FakeWorld


def pytest_t2e_worlds(config):
    return {"fake": FakeWorld}
"""

ENVIRONMENT = """\
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.records.protocols import Offer


class Mine(PreconditionVerification):
    capability = "mine"


def pytest_t2e_environments(config):
    return {"mine": Offer(Mine, "An order is read.")}
"""

CHECK = """\
from pytest_trace2evolve.records.verdict import CheckResult
from pytest_trace2evolve.records.verdict import CheckStatus


class Cheaper:
    id = "cheaper"

    def evaluate(self, pairs):
        return CheckResult(id=self.id, status=CheckStatus.PASS)


def pytest_t2e_checks(config):
    return {"cheaper": Cheaper()}
"""


def process(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command as a process of its own; its script's folder is not a place to import from."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest_trace2evolve", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def measured(project: DeskProject) -> DeskProject:
    """A project with a run of v0 and one of v1, each in a folder of its own name."""
    for name in ("v0", "v1"):
        project.after(
            f"--candidate={name}", f"--t2e-run-folder={name}", "--t2e-gate=off", "--t2e-trials=2", "-q"
        )
    return project


@pytest.mark.parametrize(
    "place",
    [
        "subfolder",
    ],
)
def test_lock_knows_a_world_of_the_conftest_in_a_process_of_its_own(
    project: DeskProject, tmp_path_factory: pytest.TempPathFactory, place: str
) -> None:
    folder = {"root": project.root, "subfolder": project.root / "suites"}.get(place)
    root = () if folder else ("--root", str(project.root))
    here = folder or tmp_path_factory.mktemp("elsewhere")
    (project.root / "suites" / "suites.lock").unlink()
    made = process(here, *root, "lock")
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith("desk: heldout 4, discovery 3; fake ")
    checked = process(here, *root, "check")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("score", "v0"), "v0      14     0.286   0.286     100.0%"),
        (("compare", "v0", "v1", "--suite", "desk", "--policy", "strict"), "PROMOTE"),
        (("calibrate", "v0", "--policy", "strict", "-ot2e_resamples=10"), "strict"),
        (("show", "v0", "idle"), "reward: 1"),
        (("capabilities", "v0"), "unexplained: "),
        (("check",), ""),
        (("environment", "list"), "precondition_verification"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
@pytest.mark.parametrize("place", ["root", "elsewhere"])
def test_commands_know_a_world_of_the_conftest(
    measured: DeskProject,
    command: Command,
    tmp_path_factory: pytest.TempPathFactory,
    place: str,
    arguments: tuple[str, ...],
    expected: str,
) -> None:
    root = measured.root
    given = [str(root / item) if item in ("v0", "v1") and place != "root" else item for item in arguments]
    if place == "elsewhere":
        done = command("--root", str(root), *given, folder=tmp_path_factory.mktemp("elsewhere"))
    else:
        done = command(*given, folder=root / "suites" if place == "subfolder" else root)
    assert done.stderr == ""
    assert done.returncode == 0
    assert expected in done.stdout


def test_a_command_loads_what_pytest_would_load(project: DeskProject, command: Command) -> None:
    """Plugins of `pytest_plugins` and `-p`, folders of `pythonpath`, and what `pytest_configure` sets."""
    project.write("pytest.ini", INI + "addopts = -p named\npythonpath = lib\n")
    project.write("lib/named.py", WORLD.replace('"fake"', '"of_addopts"'))
    project.write("lib/listed.py", WORLD.replace('"fake"', '"of_pytest_plugins"'))
    project.write("lib/late.py", "from fake_world import FakeWorld\n")
    project.write(
        "conftest.py",
        """
import pytest

pytest_plugins = ["listed"]
print("noise of the conftest")


@pytest.fixture
def unused():
    yield


def pytest_configure(config):
    config.world_name = "fake"


def pytest_t2e_worlds(config):
    print("noise of the hook")

    def opened(domain):
        from late import FakeWorld  # after pytest has gone: pythonpath holds still

        return FakeWorld(domain)

    assert (config.rootpath / "suites").is_dir()
    return {config.world_name: opened}
""",
    )
    done = command("check", folder=project.root / "suites")
    assert (done.returncode, done.stderr) == (0, "")
    assert "noise" not in done.stdout
    found = Project(project.root, project.root / "suites").extensions
    assert found.worlds.keys() == {"of_addopts", "of_pytest_plugins", "fake"}


def test_options_in_addopts_start_no_run(project: DeskProject, command: Command) -> None:
    project.write("pytest.ini", INI + "addopts = --candidate v1 --t2e-agent listed --t2e-stages 2,4 -n 2\n")
    before = sorted(project.root.rglob("*"))
    done = command("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert [path for path in sorted(project.root.rglob("*")) if "__pycache__" not in str(path)] == [
        path for path in before if "__pycache__" not in str(path)
    ]


@pytest.mark.parametrize(
    ("conftest", "expected"),
    [
        (
            "import not_there\n",
            "conftest.py:1: cannot be loaded by pytest: ModuleNotFoundError: ",
        ),
        ("def broken(:\n", "conftest.py: cannot be loaded by pytest: SyntaxError: "),
        ("import sys\nsys.exit(3)\n", "conftest.py:2: cannot be loaded by pytest: SystemExit: 3; correct"),
        ("pytest_plugins = ['not_there']\n", "not_there"),
        (
            "def pytest_t2e_worlds(config):\n    raise KeyError('desk')\n",
            "conftest.py:2: hook pytest_t2e_worlds failed: KeyError: 'desk'; correct the hook",
        ),
        (
            "def pytest_t2e_worlds(config):\n    return ['fake']\n",
            "conftest.py: hook pytest_t2e_worlds returned a list, expected a mapping of names to worlds",
        ),
        (
            "def pytest_t2e_worlds(config):\n    return {'fake': 3}\n",
            "conftest.py: hook pytest_t2e_worlds registers 'fake' as a int, expected a World, or a callable",
        ),
        (
            "def pytest_configure(config):\n    raise RuntimeError('no database')\n",
            "RuntimeError: no database",
        ),
        ("import pytest\n\ndef pytest_configure(config):\n    pytest.exit('closed')\n", "closed"),
        (
            "import pytest\n\ndef pytest_t2e_worlds(config):\n    pytest.skip('no database')\n",
            "conftest.py:4: hook pytest_t2e_worlds failed: Skipped: no database; correct the hook",
        ),
    ],
)
def test_what_cannot_be_loaded_is_one_line_that_names_it(
    project: DeskProject, command: Command, conftest: str, expected: str
) -> None:
    project.write("conftest.py", conftest)
    done = command("check")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("trace2evolve: ")
    assert str(project.root) in done.stderr or "conftest.py" in done.stderr
    assert expected in done.stderr


def test_settings_that_pytest_refuses_are_told_in_its_words(project: DeskProject, command: Command) -> None:
    project.write("pytest.ini", INI + "addopts = --no-such-option\n")
    done = command("check")
    assert done.returncode == 2
    assert done.stderr.startswith(f"trace2evolve: pytest cannot be configured in {project.root}: ")
    assert "unrecognized arguments: --no-such-option" in done.stderr
    assert len(done.stderr.splitlines()) == 1


class Point:
    """An entry point as an installed package has it."""

    def __init__(self, name: str, value: str, loaded: Any) -> None:
        self.name, self.value, self._loaded, self.dist = name, value, loaded, None

    def load(self) -> Any:
        return self._loaded


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Adds entry points to those of the installed packages."""
    real, added = importlib.metadata.entry_points, []

    def entry_points(*, group: str) -> list[Any]:
        return [*real(group=group), *(point for where, point in added if where == group)]

    caches = (
        world_registry._installed_providers,
        environment_registry._installed_offers,
    )

    def add(group: str, point: Point) -> None:
        added.append((group, point))
        for cache in caches:
            cache.cache_clear()

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    yield add
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


TWICE = [
    (
        WORLD.replace('"fake"', '"tau2"'),
        "world 'tau2' is registered twice, by pytest-trace2evolve and by conftest.py; rename one",
    ),
    (
        CONFTEST.replace('"listed"', '"oracle"'),
        "agent 'oracle' is registered twice, by pytest-trace2evolve and by conftest.py; rename one",
    ),
    (
        CONFTEST.replace('"listed"', '"chat"'),
        "agent 'chat' is registered twice, by pytest-trace2evolve and by conftest.py; rename one",
    ),
    (
        "pytest_plugins = ['another']\n" + WORLD,
        "world 'fake' is registered twice, by conftest.py and by another.py; rename one",
    ),
]


@pytest.mark.parametrize(("conftest", "expected"), TWICE)
def test_a_name_that_is_taken_is_an_error_that_names_both(
    project: DeskProject, command: Command, conftest: str, expected: str
) -> None:
    project.write("conftest.py", conftest)
    project.write("another.py", WORLD)
    done = command("check")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert expected in done.stderr
    session = project.pytester.runpytest_inprocess("--t2e-agent=nop")
    assert session.ret == pytest.ExitCode.USAGE_ERROR
    session.stderr.fnmatch_lines([f"ERROR: {expected}*"])


def test_checks_and_environments_have_one_owner_each(
    project: DeskProject, command: Command, installed: Any
) -> None:
    project.write("conftest.py", ENVIRONMENT.replace('"mine"', '"multi_step_task_completion"'))
    done = command("environment", "list")
    assert done.returncode == 2
    twice = "'multi_step_task_completion' is registered twice, by pytest-trace2evolve and by conftest.py"
    assert twice in done.stderr
    project.write("conftest.py", CHECK)
    project.write("policies/own.toml", 'base = "strict"\n[checks.cheaper]\n')
    installed("trace2evolve.checks", Point("cheaper", "pkg:Cheaper", lambda: None))
    done = command("power", "--tasks", "5", "--trials", "2", "--policy", "own")
    assert (
        "check 'cheaper' is registered twice, by entry point 'pkg:Cheaper' and by conftest.py" in done.stderr
    )


def test_an_environment_of_the_conftest_is_admitted(project: DeskProject, command: Command) -> None:
    """One of its checks makes the scenarios in another process, which loads the conftest too."""
    project.write("conftest.py", ENVIRONMENT)
    project.write("pytest.ini", INI)
    listed = command("environment", "list", "--json")
    assert listed.stderr == ""
    assert "mine" in {item["capability"] for item in json.loads(listed.stdout)}
    asked = ("environment", "check", "mine", "--seeds", "20", "--json")
    checked = command(*asked, folder=project.root / "suites")
    [report] = json.loads(checked.stdout)
    anew = [line for line in report["checks"] if "process" in line["check"] or "anew" in line["check"]]
    assert [line["passed"] for line in anew] == [True], report["checks"]


def test_a_project_without_hooks_does_not_load_pytest(project: DeskProject) -> None:
    """A world that is built in, in a process of its own: nothing of pytest is imported."""
    (project.root / "conftest.py").unlink()
    source = (
        "import sys; from pytest_trace2evolve.cli.main import main; status = main(['check']);"
        "print(status, sorted({'pytest', '_pytest'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=project.root, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.endswith("\n1 []\n")  # the world is unknown now


def test_an_installed_plugin_that_requires_this_package_is_loaded(
    project: DeskProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: the plugin is a distribution with an entry point of the group pytest11."""
    (project.root / "conftest.py").unlink()
    site = tmp_path / "site"
    info = site / "pytest_desk-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "pytest_desk.py").write_text(WORLD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-desk\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\ndesk = pytest_desk\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ["PYTHONPATH"]]))
    assert "unknown provider 'fake'" in process(project.root, "check").stdout
    with (info / "METADATA").open("a") as file:
        file.write("Requires-Dist: pytest-trace2evolve>=0.1\n")
    done = process(project.root, "check")
    assert (done.returncode, done.stderr) == (0, "")


def test_hooks_are_loaded_once_a_command(
    measured: DeskProject, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Path] = []
    real = extensions.load_extensions

    def load(root: Path, suites_folder: Path) -> extensions.Extensions:
        loads.append(root)
        return real(root, suites_folder)

    monkeypatch.setattr(extensions, "load_extensions", load)
    measured.write("policies/own.toml", 'base = "strict"\n')
    assert command("compare", "v0", "v1", "--suite", "desk", "--policy", "own").stderr == ""
    assert loads == [measured.root]
    assert command("check").stderr == ""
    assert command("environment", "list").stderr == ""
    assert loads == [measured.root] * 3
