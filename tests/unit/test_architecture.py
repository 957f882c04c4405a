"""The import contract of the package: five levels, imports go down only, rooms of one level stay apart."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import pytest_trace2evolve

PACKAGE = "pytest_trace2evolve"
SOURCE = Path(pytest_trace2evolve.__file__).parent

LEVELS = {
    0: {
        "__init__",
        "errors",
        "_optional",
        "_canonical",
        "_http",
        "_sanitize",
        "_scratch",
        "_secrets",
        "option_types",
        "shipped",
    },
    1: {"records", "reading"},
    2: {"scoring", "gate", "capabilities", "routing", "adapters", "candidates", "lock", "suites", "identity"},
    3: {
        "rollout",
        "agents",
        "users",
        "judges",
        "testing",
        "models",
        "worlds",
        "evidence",
        "cases",
        "environments",
        "training",
        "serving",
    },
    4: {"extensions", "report", "workflow"},
    5: {
        "plugin",
        "options",
        "hookspecs",
        "collect",
        "xdist",
        "cli",
        "__main__",
        "commands",
        "evolution",
        "active",
        "controller",
        "crashes",
        "outlets",
        "participant",
        "staging",
        "choices",
        "usage",
        "pressure",
    },
}
"""Where every file and folder of the package stands; a new one must be placed here."""

STEPS = ("", "recorded", "planning", "running", "judging")
"""The folders of `workflow` in the order of a run, files beside them first."""

BESIDE = {"capabilities", "cases", "environments", "experiments", "evolving", "pocket", "routing", "training"}
"""Folders of `workflow` that are no step of a run, and may use all of them."""

LEVEL_OF = {name: level for level, names in LEVELS.items() for name in names}
APART = {2, 3}
"""Levels whose rooms do not import one another."""

ONE_ROOM = {"adapters", "candidates", "suites", "lock"}
"""Files of level 2 that are one room."""

HEAVY = ("pytest", "torch", "openai", "trl", "peft", "inspect_ai", "inspect_evals", "tau2")


def place_of(module: str) -> str:
    """The file or folder right under the package that a module belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def room_of(module: str) -> str:
    place = place_of(module)
    return "definitions" if place in ONE_ROOM else place


def module_name(path: Path) -> str:
    parts = [PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def imported(source: str, known: Mapping[str, str]) -> Iterator[str]:
    """Modules of the package that a source imports, at its top, in functions, or by a name in a string."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module
        elif isinstance(node, ast.Constant) and node.value in known and node.value != PACKAGE:
            yield str(node.value)


def violations(modules: Mapping[str, str]) -> list[str]:
    """What breaks the contract, a line each."""
    found = []
    for module, source in modules.items():
        for target in imported(source, modules):
            here, there = LEVEL_OF[place_of(module)], LEVEL_OF[place_of(target)]
            if there > here:
                found.append(
                    f"{module} (level {here}) imports {target} (level {there}): imports go down only"
                )
            elif there == here and here in APART and room_of(module) != room_of(target):
                found.append(f"{module} imports {target}: rooms of level {here} do not import one another")
    return found


def test_every_module_has_a_place() -> None:
    homeless = sorted(module for module in MODULES if place_of(module) not in LEVEL_OF)
    assert homeless == [], "place each in LEVELS, and in the architecture document"


def test_no_name_stands_on_two_levels() -> None:
    assert len(LEVEL_OF) == sum(len(names) for names in LEVELS.values())


def test_imports_go_down_only_and_rooms_stay_apart() -> None:
    placed = {module: text for module, text in MODULES.items() if place_of(module) in LEVEL_OF}
    assert len(placed) > 30
    assert violations(placed) == []


def step_of(module: str) -> int:
    """Where a module of `workflow` stands in the order of a run."""
    folder = module.split(".")[2] if module.count(".") > 2 else ""
    return STEPS.index("judging" if folder in BESIDE else folder)


def test_a_step_of_the_workflow_knows_only_those_before_it() -> None:
    own = {module: text for module, text in MODULES.items() if place_of(module) == "workflow"}
    against = [
        f"{module} imports {target}"
        for module, source in own.items()
        for target in imported(source, own)
        if place_of(target) == "workflow" and step_of(target) > step_of(module)
    ]
    assert len(own) > 30
    assert against == []


@pytest.mark.parametrize(
    ("module", "source", "broken"),
    [
        ("scoring.a", "from pytest_trace2evolve.gate.b import x", True),
        ("gate.a", "from pytest_trace2evolve.suites import x", True),
        ("rollout.a", "def f():\n    import pytest_trace2evolve.worlds.b", True),
        ("errors", "from pytest_trace2evolve import records", True),
        ("agents.a", "import importlib\nimportlib.import_module('pytest_trace2evolve.worlds.b')", True),
        ("workflow.a", "from pytest_trace2evolve import cli", True),
        ("lock", "from pytest_trace2evolve.suites import x", False),
        ("worlds.a", "from pytest_trace2evolve.worlds.b import x", False),
        ("rollout.a", "from pytest_trace2evolve.records import x", False),
        ("cli", "from pytest_trace2evolve import __version__", False),
        ("report.a", "from pytest_trace2evolve.workflow import x", False),
    ],
)
def test_the_check_knows_a_breach_from_a_fair_import(module: str, source: str, broken: bool) -> None:
    others = ("", "gate.b", "suites", "worlds.b", "records", "cli", "workflow")
    modules = {f"{PACKAGE}.{name}".rstrip("."): "" for name in others} | {f"{PACKAGE}.{module}": source}
    assert bool(violations(modules)) is broken


def test_ground_records_and_pure_rooms_import_nothing_heavy() -> None:
    pure = [module for module in MODULES if LEVEL_OF.get(place_of(module), 9) <= 2]
    assert f"{PACKAGE}.scoring.reward" in pure
    assert f"{PACKAGE}.gate.decide" in pure
    imports = "\n".join(f"import {module}" for module in pure)
    check = f"import sys\n{imports}\nprint(sorted(set(sys.modules) & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_statistics_are_loaded_by_who_judges() -> None:
    """A worker of xdist judges nothing: it need not wait a second for them."""
    told = "import sys, pytest_trace2evolve.controller; print('scipy.stats' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
