"""The pytest settings of a folder, read without pytest as pytest reads them."""

from pathlib import Path

import pytest

from pytest_trace2evolve.project.pytest_ini import ini_value, ini_words, pytest_settings


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("files", "name", "value"),
    [
        ({}, None, None),
        ({"tox.ini": "[tox]\n", "setup.cfg": "[metadata]\n", "pyproject.toml": "[a]\n"}, None, None),
        ({"pyproject.toml": "[tool.pytest.ini_options]\nt2e_gate = 'x'"}, "pyproject.toml", "x"),
        ({"pyproject.toml": "[tool.pytest]\nt2e_gate = 'x'"}, "pyproject.toml", "x"),
        ({"pyproject.toml": "[tool]\na = 3\n", "tox.ini": "[pytest]\nt2e_gate = x\n"}, "tox.ini", "x"),
        ({"pyproject.toml": "[a]\n", "setup.cfg": "[tool:pytest]\nt2e_gate = x\n"}, "setup.cfg", "x"),
        (
            {"pytest.ini": "[pytest]\nt2e_gate = off \n", "pyproject.toml": "[tool.pytest]\nt2e_gate = 'x'"},
            "pytest.ini",
            "off",
        ),
        (
            {"pytest.ini": "", "pyproject.toml": "[tool.pytest.ini_options]\nt2e_gate = 'x'"},
            "pytest.ini",
            None,
        ),
        ({"pytest.toml": "[pytest]\nt2e_gate = 'y'\n", "pytest.ini": "[pytest]\n"}, "pytest.toml", "y"),
    ],
)
def test_a_key_is_read_where_pytest_reads_it(
    pytester: pytest.Pytester, files: dict[str, str], name: str | None, value: str | None
) -> None:
    put(pytester.path, files)
    assert ini_value(pytester.path, "t2e_gate") == value
    found = pytest_settings(pytester.path)
    assert (found[0].name if found else None) == name
    config = pytester.parseconfig()
    assert (config.inipath.name if config.inipath and found else None) == name
    assert (config.getini("t2e_gate") or None) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("pytest.ini", "[pytest]\naddopts = -p 'a b'\n  -q\n", ["-p", "a b", "-q"]),
        ("pyproject.toml", "[tool.pytest]\naddopts = ['-p', 'a b']\n", ["-p", "a b"]),
        ("pytest.ini", "[pytest]\naddopts = 'open\n", []),
        ("pytest.ini", "no section", []),
        ("pyproject.toml", "[tool", []),
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = ''\n", []),
    ],
)
def test_words_are_split_as_pytest_splits_them(
    tmp_path: Path, name: str, text: str, words: list[str]
) -> None:
    put(tmp_path, {name: text})
    assert ini_words(tmp_path, "addopts") == words
