"""Checking out a commit of a project: its exact files, verified before each use."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.utils.git import checked_out

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links and executable files")


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project that is a folder of its repository, with a module, a script, a link and git attributes."""
    root = tmp_path / "project"
    (root / "app").mkdir(parents=True)
    (tmp_path / "other.py").write_text("other = 1\n")
    (root / "app/bot.py").write_bytes(b"name = '$Format:%H$'\r\n")
    (root / "app/prompt \u00e4.md").write_text("Ask first.\n")
    (root / "run.sh").write_text("exit 0\n")
    (root / "run.sh").chmod(0o755)
    (root / "latest").symlink_to("app")
    commit(tmp_path)
    (root / ".gitattributes").write_text("app/prompt* export-ignore\napp/bot.py export-subst text eol=lf\n")
    git(tmp_path, "add", "project/.gitattributes")
    git(tmp_path, "commit", "-qm", "attributes")
    return root


def test_a_checkout_has_the_exact_files_of_the_project(root: Path) -> None:
    folder, found = checked_out(root, "HEAD")
    assert folder == root / ".trace2evolve/commits" / found
    assert (folder / "app/bot.py").read_bytes() == b"name = '$Format:%H$'\r\n"
    assert (folder / "app/prompt \u00e4.md").read_text() == "Ask first.\n"
    assert os.access(folder / "run.sh", os.X_OK)
    assert not os.access(folder / "app/bot.py", os.X_OK)
    assert (folder / "latest").readlink() == Path("app")
    assert not (folder / "other.py").exists()
    assert [path.name for path in folder.parent.iterdir()] == [found]


EDITS: dict[str, Callable[[Path], object]] = {
    "content": lambda folder: (folder / "app/bot.py").write_text("name = 'x'\n"),
    "missing": lambda folder: (folder / "app/bot.py").unlink(),
    "mode": lambda folder: (folder / "run.sh").chmod(0o644),
    "link": lambda folder: [(folder / "latest").unlink(), (folder / "latest").symlink_to("..")],
    "a link in place of a folder": lambda folder: [
        (folder / "app").rename(folder.parent / "moved"),
        (folder / "app").symlink_to("../moved"),
    ],
    "another module": lambda folder: (folder / "json.py").write_text(""),
    "compiled": lambda folder: (folder / "app/bot.pyc").write_bytes(b""),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_checkout_is_replaced(root: Path, edit: Callable[[Path], object]) -> None:
    folder, found = checked_out(root, "HEAD")
    edit(folder)
    assert checked_out(root, "HEAD") == (folder, found)
    assert (folder / "app/bot.py").read_bytes() == b"name = '$Format:%H$'\r\n"
    assert not (folder / "app").is_symlink()
    assert (folder / "latest").readlink() == Path("app")
    assert os.access(folder / "run.sh", os.X_OK)
    assert not (folder / "json.py").exists()
    assert not (folder / "app/bot.pyc").exists()


def test_an_intact_checkout_and_the_data_of_the_agent_stay(root: Path) -> None:
    folder, _ = checked_out(root, "HEAD")
    (folder / "state.json").write_text("{}")
    inode = folder.stat().st_ino
    checked_out(root, "HEAD")
    assert folder.stat().st_ino == inode
    assert (folder / "state.json").exists()


@pytest.mark.parametrize("target", ["/etc/hosts", "../..", "self/self/../.."])
def test_a_link_out_of_the_project_is_rejected(tmp_path: Path, target: str) -> None:
    (tmp_path / "self").symlink_to(".")
    (tmp_path / "out").symlink_to(target)
    commit(tmp_path)
    with pytest.raises(ConfigError, match=r"'HEAD' cannot be checked out .*link 'out' leads out"):
        checked_out(tmp_path, "HEAD")
    assert list((tmp_path / ".trace2evolve/commits").iterdir()) == []


def test_a_link_to_itself_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    commit(tmp_path)
    with pytest.raises(ConfigError, match="'HEAD' cannot be checked out"):
        checked_out(tmp_path, "HEAD")
    assert list((tmp_path / ".trace2evolve/commits").iterdir()) == []


def test_a_commit_without_the_project_is_rejected(root: Path) -> None:
    (root / "new").mkdir()
    with pytest.raises(ConfigError, match=r"'HEAD' has no files of .*new"):
        checked_out(root / "new", "HEAD")
