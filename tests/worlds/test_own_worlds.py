# ruff: noqa: E501 - tables of one case a line
"""Worlds of a project by import path and from a conftest: every command knows them, and the lock covers them."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.engine.factories import world_texts
from pytest_trace2evolve.errors import LockError, WorldError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.worlds.registry import Worlds

WORLD = '''
from pytest_trace2evolve import World

LIMIT = 5


def limit():
    return LIMIT


class HotelTools:
    """A hotel."""

    def __init__(self, db: dict):
        self.db = db

    def cancel_booking(self, booking_id: str) -> str:
        """Cancel a booking."""
        self.db["bookings"][booking_id]["status"] = "cancelled"
        return f"Cancelled, limit {limit()}."


world = World.from_tools(HotelTools, data="hotel.json", policy="policy.md")


class Another:
    pass


def make(domain):
    return world


def make_without_domain():
    return world


def make_text(domain):
    return "no world"


def fail(domain):
    raise ValueError("no\\nnetwork")


number = 5
'''
TASKS = """
- id: t
  user: {goal: Cancel booking B17., knows: {name: Ann Lee}}
  expect: {calls: [{name: cancel_booking, arguments: {booking_id: B17}}]}
"""
NUMBERS = itertools.count()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A project whose world is `own_N.hotel:world`."""
    package = tmp_path / f"own_{next(NUMBERS)}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hotel.py").write_text(WORLD)
    (package / "hotel.json").write_text('{"bookings": {"B17": {"status": "open"}}}')
    (package / "policy.md").write_text("Be kind.\n")
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/hotel.toml").write_text('tasks = "tasks.yaml"\n')
    (tmp_path / "tasks.yaml").write_text(TASKS)
    (tmp_path / "pyproject.toml").write_text(f'[tool.trace2evolve]\nworld = "{package.name}.hotel:world"\n')
    path, modules = [*sys.path], {*sys.modules}
    yield tmp_path
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        if name.startswith("own_"):
            del sys.modules[name]


def package(root: Path) -> str:
    return next(root.glob("own_*")).name


def edit(root: Path, name: str, old: str, new: str) -> None:
    path = root / package(root) / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def reload(root: Path) -> Project:
    for name in [name for name in sys.modules if name.startswith(package(root))]:
        del sys.modules[name]
    sys.path_importer_cache.clear()
    return Project(root=root, suites_folder=root / "suites")


def run(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    reload(root)
    status = main([*words, "--root", str(root)])
    output = capsys.readouterr()
    return status, output.out + output.err


def test_commands_know_a_world_by_import_path(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(root, capsys, "check")
    assert (status, "hotel.toml: not in suites.lock" in text) == (1, True), text
    status, text = run(root, capsys, "lock")
    assert (status, "hotel: heldout 1" in text) == (0, True), text
    assert run(root, capsys, "check") == (0, "")
    status, text = run(root, capsys, "cases", "check")
    assert (status, "1 of 1 tasks admitted" in text) == (0, True), text
    status, text = run(root, capsys, "cases", "check", str(root / "tasks.yaml"))
    assert (status, "1 of 1 tasks admitted" in text) == (0, True), text


def test_texts_belong_to_the_agent_and_code_to_the_lock(root: Path) -> None:
    project = reload(root)
    lock = project.renew_lock(project.open_worlds()).suites["hotel"]
    suite = project.suite("hotel")
    before = world_texts(suite, project.world(suite, project.open_worlds()))
    assert sorted(before) == ["(policy)", "(tools)"]

    edit(root, "policy.md", "kind", "very kind")
    edit(root, "hotel.py", '"""Cancel a booking."""', '"""Cancel a booking: at once."""')
    edit(root, "hotel.py", '"""A hotel."""', '"""A small hotel."""')
    project = reload(root)
    worlds = project.open_worlds()
    project.verify_world(suite, lock, worlds)
    assert project.current_lock(suite, worlds) == lock
    after = world_texts(suite, project.world(suite, worlds))
    assert all(after[name] != before[name] for name in before)

    edit(root, "hotel.py", "LIMIT = 5", "LIMIT = 6")
    project = reload(root)
    with pytest.raises(LockError, match="the implementation of its tools changed"):
        project.verify_world(suite, lock, project.open_worlds())


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("policy.md", "kind", "rude", "its policy changed"),
        ("hotel.py", '"""Cancel a booking."""', '"""Cancel it."""', "its tools changed"),
        ("hotel.json", "open", "closed", "its data changed"),
        ("hotel.py", "booking_id: str", "booking_id: int", "its tools changed"),
    ],
)
def test_a_suite_can_lock_its_texts(root: Path, name: str, old: str, new: str, expected: str) -> None:
    (root / "suites/hotel.toml").write_text('tasks = "tasks.yaml"\nlocks = ["policy", "tools"]\n')
    project = reload(root)
    suite = project.suite("hotel")
    lock = project.renew_lock(project.open_worlds()).suites["hotel"]
    assert world_texts(suite, project.world(suite, project.open_worlds())) == {}
    edit(root, name, old, new)
    project = reload(root)
    with pytest.raises(LockError, match=expected):
        project.verify_world(suite, lock, project.open_worlds())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "hotel:wrld",
            r"world '\S+hotel:wrld' cannot be imported from .*: LookupError: module \S+ has no 'wrld'",
        ),
        ("hotl:world", r"cannot be imported from .*: ModuleNotFoundError: No module named"),
        ("hotel:number", r"world '\S+hotel:number' is a int, not a world; make one with World.from_tools"),
        ("hotel:Another", r"is the class Another, not a world; make one with World.from_tools\(Another\)"),
        (
            "hotel:HotelTools",
            r"is the class HotelTools, not a world; make one with World.from_tools\(HotelTools\)",
        ),
        ("hotel:make_text", r"world '\S+:make_text' returned a str, not a world"),
        ("hotel:fail", r"world '\S+:fail' cannot be opened: ValueError: no network; correct it"),
    ],
)
def test_a_wrong_import_path_is_one_line(root: Path, path: str, expected: str) -> None:
    reload(root)
    with pytest.raises(WorldError, match=expected) as error:
        Worlds(folder=root).open(f"{package(root)}.{path}", "hotel")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["world", "make", "make_without_domain"])
def test_an_import_path_names_a_world_or_a_function_that_opens_one(root: Path, name: str) -> None:
    reload(root)
    worlds = Worlds(folder=root)
    path = f"{package(root)}.hotel:{name}"
    assert worlds.open(path, "hotel").has_tool("cancel_booking")
    code = worlds.code(path, "hotel")
    assert code.unknown == ""
    assert any(file.endswith("hotel.py") for file in code.files)
