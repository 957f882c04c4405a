"""Reads a project's git repository."""

import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.utils.files import folder_lock

GIT_SECONDS = 60
"""Maximum number of seconds that a git command may take."""

_EXECUTABLE, _LINK, _SUBMODULE = "100755", "120000", "160000"
"""Modes of entries in a git tree."""


def git_output(root: Path, *arguments: str, stdin: bytes | None = None) -> bytes | None:
    """Return the output of a git command in a folder; None if git fails or is not installed."""
    try:
        process = subprocess.run(
            ["git", *arguments], cwd=root, input=stdin, capture_output=True, timeout=GIT_SECONDS
        )
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


class _TreeFile(NamedTuple):
    """A file or a link in a commit."""

    mode: str
    blob: str


def checked_out(root: Path, ref: str) -> tuple[Path, str]:
    """Return a folder with the project's files exactly as a commit has them, and the commit's full id.

    The folder lies in `.trace2evolve/commits`. Later calls reuse it if each file still has the content of the
    commit and no other module lies next to them; otherwise they replace it. No attribute or filter of git
    applies, so files in Git LFS are pointers.

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
    files = _files_of(root, commit)
    if not files:
        raise ConfigError(
            f"commit {ref!r} has no files of {root} that git can read; correct the candidate's ref"
        )
    if _is_unchanged(folder, files):
        return folder, commit
    contents = _contents_of(root, files)
    if contents is None:
        raise ConfigError(f"commit {ref!r} cannot be read by git cat-file in {root}; run git fsck")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder.parent, ignore_unsupported=True):
            if not _is_unchanged(folder, files):  # else another run has replaced it in the meantime
                _replace(folder, files, contents)
    except (OSError, RuntimeError, ValueError) as error:  # a bad link, or a full disk
        raise ConfigError(f"commit {ref!r} cannot be checked out in {folder.parent}: {error}") from None
    return folder, commit


def _replace(folder: Path, files: Mapping[str, _TreeFile], contents: Mapping[str, bytes]) -> None:
    """Write the files of a commit to a new folder, and let it take the place of `folder`.

    Raises:
        OSError, RuntimeError, ValueError: the files cannot be written, or the folder cannot be replaced.
    """
    new_folder, old_folder = (Path(tempfile.mkdtemp(dir=folder.parent)) for _ in range(2))
    try:
        _write_files(new_folder, files, contents)
        with contextlib.suppress(FileNotFoundError):
            folder.replace(old_folder / folder.name)
        new_folder.replace(folder)
    finally:
        for leftover in (new_folder, old_folder):
            shutil.rmtree(leftover, ignore_errors=True)


def _files_of(root: Path, commit: str) -> dict[str, _TreeFile]:
    """Return the files of a commit by path; only those of the project if it is a folder in the repository."""
    files = {}
    for line in (git_output(root, "ls-tree", "-r", "-z", commit) or b"").split(b"\0"):
        fields, _, path = line.partition(b"\t")
        if fields:
            mode, _, blob = fields.decode().split()
            if mode != _SUBMODULE:
                files[os.fsdecode(path)] = _TreeFile(mode, blob)
    return files


def _contents_of(root: Path, files: Mapping[str, _TreeFile]) -> dict[str, bytes] | None:
    """Return the contents of blobs by their ids; None if git cannot read one."""
    blobs = list(dict.fromkeys(file.blob for file in files.values()))
    output = git_output(root, "cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in blobs).encode())
    contents, start = {}, 0
    for blob in blobs:
        end = (output or b"").find(b"\n", start)
        header = (output or b"")[start : max(end, 0)].split()
        if output is None or len(header) != 3 or header[1] != b"blob":
            return None
        start = end + 1 + int(header[2])
        contents[blob] = output[end + 1 : start]
        start += 1
    return contents


def _write_files(folder: Path, files: Mapping[str, _TreeFile], contents: Mapping[str, bytes]) -> None:
    """Write files and then links, so that no file is written through a link.

    Raises:
        OSError: a file cannot be written.
        RuntimeError: a link leads to itself.
        ValueError: a path or a link leads out of the folder.
    """
    links = [path for path, file in files.items() if file.mode == _LINK]
    for path, file in files.items():
        pure_path = PurePosixPath(path)
        if pure_path.is_absolute() or ".." in pure_path.parts:
            raise ValueError(f"path {path!r} leads out of the project")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if file.mode != _LINK:
            with (folder / path).open("xb") as stream:
                stream.write(contents[file.blob])
            if file.mode == _EXECUTABLE:
                (folder / path).chmod(0o755)
    for path in links:
        (folder / path).symlink_to(os.fsdecode(contents[files[path].blob]))
    for path in links:
        if not (folder / path).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"link {path!r} leads out of the project")


def _is_unchanged(folder: Path, files: Mapping[str, _TreeFile]) -> bool:
    """Whether a folder holds exactly the files of a commit, and no further modules or links.

    Other further files are left alone, since an agent may write to its folder.
    """
    try:
        if not all(_blob_of(folder / path, file) == file.blob for path, file in files.items()):
            return False
    except OSError:
        return False
    suffixes = tuple(all_suffixes())
    for parent, folder_names, file_names in os.walk(folder):
        for name in (*folder_names, *file_names):
            path = Path(parent, name)
            can_import = path.is_symlink() or (name in file_names and name.endswith(suffixes))
            if can_import and path.relative_to(folder).as_posix() not in files:
                return False
    return True


def _blob_of(path: Path, file: _TreeFile) -> str:
    """Return the id that git would give to the content of a path; empty if its kind is another one.

    Raises:
        OSError: the path cannot be read.
    """
    status = path.lstat()
    if file.mode == _LINK:
        if not stat.S_ISLNK(status.st_mode):
            return ""
        content = os.fsencode(path.readlink())
    else:
        is_executable = bool(status.st_mode & stat.S_IXUSR)
        if not stat.S_ISREG(status.st_mode) or is_executable != (file.mode == _EXECUTABLE):
            return ""
        content = path.read_bytes()
    algorithm = "sha1" if len(file.blob) == 40 else "sha256"
    return hashlib.new(algorithm, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
