"""Reads a project's git repository."""

import io
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError

GIT_SECONDS = 60
"""Maximum number of seconds that a git command may take."""


def git_output(root: Path, *arguments: str) -> bytes | None:
    """Return the output of a git command in a folder; None if git fails or is not installed."""
    try:
        process = subprocess.run(["git", *arguments], cwd=root, capture_output=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout if process.returncode == 0 else None


def git_text(root: Path, *arguments: str) -> str | None:
    """Return the output of a git command as text; None if git fails or is not installed."""
    output = git_output(root, *arguments)
    return None if output is None else output.decode("utf-8", "replace")


def is_ignored(root: Path, path: Path) -> bool:
    """Whether `git add` rejects a path because the repository ignores it; false outside a repository."""
    return git_output(root, "check-ignore", "--quiet", "--", str(path)) is not None


def checked_out(root: Path, ref: str) -> tuple[Path, str]:
    """Return a folder with the project as it was at a commit, and the commit's full id.

    The folder lies in `.trace2evolve/commits`, and later calls reuse it.

    Raises:
        ConfigError: the commit does not exist or cannot be read.
    """
    output = git_output(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if output is None:
        raise ConfigError(
            f"commit {ref!r} is not in the git repository of {root}; fetch it, or correct the candidate's ref"
        )
    commit = output.decode().strip()
    folder = root / ".trace2evolve" / "commits" / commit
    if not folder.is_dir():
        # If the project is a folder inside the repository, git archives only that folder.
        archive = git_output(root, "archive", "--format=tar", commit)
        if archive is None:
            raise ConfigError(f"commit {ref!r} cannot be read by git archive in {root}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        new_folder = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(new_folder, filter="data")
        except (OSError, tarfile.TarError) as error:  # a link out of the project, or a full disk
            shutil.rmtree(new_folder, ignore_errors=True)
            raise ConfigError(f"commit {ref!r} cannot be checked out in {folder.parent}: {error}") from None
        try:
            new_folder.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(new_folder, ignore_errors=True)
    return folder, commit
