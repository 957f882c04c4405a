"""What ships: the wheel's mapping, where the files are found, and a project laid out without a checkout."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pytest_trace2evolve
from pytest_trace2evolve import __version__
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.utils import resources as shipped
from tests.ci_files import REPOSITORY
from tests.patience import HANG_SECONDS

PACKAGE = Path(pytest_trace2evolve.__file__).parent
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = PYPROJECT["tool"]["hatch"]["build"]["targets"]
MAPPED = TARGETS["wheel"]["force-include"]


def test_the_wheel_takes_in_all_that_ships_and_that_there_is() -> None:
    there = {part for part in shipped.TEMPLATE_PARTS if (REPOSITORY / part).exists()}
    assert {"suites", "candidates", "synthetic", "prices.toml", shipped.WORKFLOW_PATH} <= there
    assert set(MAPPED) == there, "map each of shipped.TEMPLATE_PARTS in pyproject.toml as soon as it is there"
    for part, place in MAPPED.items():
        assert place == f"pytest_trace2evolve/{shipped.TEMPLATE_FOLDER}/{part}"


def test_a_source_distribution_holds_what_its_wheel_needs() -> None:
    include = TARGETS["sdist"]["include"]
    for part in shipped.TEMPLATE_PARTS:
        assert any(part == item or part.startswith(f"{item}/") for item in include), part


def test_the_workflow_installs_this_version() -> None:
    text = (REPOSITORY / shipped.WORKFLOW_PATH).read_text(encoding="utf-8")
    assert f"'pytest-trace2evolve[local]=={__version__}'" in text


def test_a_checkout_is_its_own_template() -> None:
    assert shipped.template_folder() == REPOSITORY
    assert shipped.template_folder(PACKAGE) == REPOSITORY


def test_an_installed_package_has_its_own(tmp_path: Path) -> None:
    package = tmp_path / "src" / "pytest_trace2evolve"
    (package / "template").mkdir(parents=True)
    (tmp_path / "suites").mkdir()
    assert shipped.template_folder(package) == package / "template"


@pytest.mark.parametrize("folder", ["lib", "src"])
def test_an_installation_without_one_is_told(tmp_path: Path, folder: str) -> None:
    package = tmp_path / folder / "pytest_trace2evolve"
    with pytest.raises(ConfigError) as message:
        shipped.template_folder(package)
    assert str(message.value) == (
        f"{package}/template: is missing from this installation; reinstall pytest-trace2evolve from its wheel"
    )


def test_the_embedded_model_is_used_where_it_lies(tmp_path: Path) -> None:
    model = tmp_path / "template" / "adapters" / "pocket"
    model.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(ConfigError) as message:
            shipped.embedded_model(tmp_path)
        assert str(message.value) == (
            f"{model}: not an embedded model, because {name} is missing; "
            "reinstall pytest-trace2evolve from its wheel, or name a different model"
        )
        (model / name).touch()
    assert shipped.embedded_model(tmp_path) == model


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds what the wheel would install, found before any other installation."""
    site = tmp_path / "site"
    # Times are kept, so that bytecode is still good.
    shutil.copytree(PACKAGE, site / PACKAGE.name)
    for part, place in MAPPED.items():
        origin, target = REPOSITORY / part, site / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir():
            target.symlink_to(origin)
        else:
            shutil.copy2(origin, target)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return site


def test_a_project_of_the_installed_package_is_measured(installed: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"

    def run(*arguments: str, folder: Path = project) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    program = "from pytest_trace2evolve.utils import resources; print(resources.template_folder())"
    where = run("-c", program, folder=tmp_path)
    assert where == f"{installed / 'pytest_trace2evolve' / 'template'}\n"
    message = run("-m", "pytest_trace2evolve.cli", "init", "project", folder=tmp_path)
    assert "next: cd project && pytest --candidate v7" in message
    # The oracle, and the frozen cases alone: whether a model is good is not the question here.
    run(
        *("-m", "pytest", "--candidate", "v6", "--t2e-agent", "oracle", "--t2e-suite", "support"),
        *("-m", "synthetic", "--t2e-gate=off", "--t2e-run-folder", "run"),
    )
    rewards = [
        item.reward_info["reward"] for item in read_results(project / "run").simulations if item.reward_info
    ]
    assert rewards == [1.0] * 84
