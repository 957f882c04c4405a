"""Which file holds a folder's pytest settings, and that the key gets into it without harm."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.pytest_ini import ini_value, pytest_ini

TOML = 't2e_suites = "suites"'
INI = "t2e_suites = suites"


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).write_bytes(text.encode())


@pytest.mark.parametrize(
    ("files", "name", "text"),
    [
        ({}, "pytest.ini", f"[pytest]\n{INI}\n"),
        ({"tox.ini": "[tox]\n", "setup.cfg": "[metadata]\n"}, "pytest.ini", f"[pytest]\n{INI}\n"),
        ({"pyproject.toml": ""}, "pyproject.toml", f"[tool.pytest.ini_options]\n{TOML}\n"),
        (
            {"pyproject.toml": "[project] # mine\nname = 'a'"},
            "pyproject.toml",
            f"[project] # mine\nname = 'a'\n\n[tool.pytest.ini_options]\n{TOML}\n",
        ),
        (
            {"pyproject.toml": "[a]\r\nb = 1\r\n"},
            "pyproject.toml",
            f"[a]\r\nb = 1\r\n\r\n[tool.pytest.ini_options]\r\n{TOML}\r\n",
        ),
        (
            {"pyproject.toml": "[tool.pytest.ini_options] # mine\n# c\naddopts = '-q'\n[b]\nc = 1\n"},
            "pyproject.toml",
            f"[tool.pytest.ini_options] # mine\n{TOML}\n# c\naddopts = '-q'\n[b]\nc = 1\n",
        ),
        (
            {"pyproject.toml": "[ tool . pytest ]\r\naddopts = ['-q']\r\n"},
            "pyproject.toml",
            f"[ tool . pytest ]\r\n{TOML}\r\naddopts = ['-q']\r\n",
        ),
        (
            {"pyproject.toml": "[a]\n", "setup.cfg": "[tool:pytest]\naddopts = -q\n"},
            "setup.cfg",
            f"[tool:pytest]\n{INI}\naddopts = -q\n",
        ),
        (
            {"pyproject.toml": "[a]\n", "tox.ini": "[tox]\nx = 1\n[pytest]  ; mine\naddopts =\n    -q\n"},
            "tox.ini",
            f"[tox]\nx = 1\n[pytest]  ; mine\n{INI}\naddopts =\n    -q\n",
        ),
        (
            {"pytest.ini": "# empty", "pyproject.toml": "[tool.pytest.ini_options]\n"},
            "pytest.ini",
            f"# empty\n\n[pytest]\n{INI}\n",
        ),
        ({".pytest.ini": "[pytest]"}, ".pytest.ini", f"[pytest]\n{INI}\n"),
        (
            {"pytest.toml": "[pytest]\naddopts = ['-q']\n", "pytest.ini": "[pytest]\n"},
            "pytest.toml",
            f"[pytest]\n{TOML}\naddopts = ['-q']\n",
        ),
        (
            # A header in a string is none: the key must not land there.
            {"pyproject.toml": "[a]\nb = '''\n[c]\n'''\n[tool.pytest.ini_options]\naddopts = ''"},
            "pyproject.toml",
            f"[a]\nb = '''\n[c]\n'''\n[tool.pytest.ini_options]\n{TOML}\naddopts = ''",
        ),
    ],
)
def test_the_key_gets_into_the_file_that_pytest_reads(
    pytester: pytest.Pytester, files: dict[str, str], name: str, text: str
) -> None:
    tmp_path = pytester.path
    put(tmp_path, files)
    found = pytest_ini(tmp_path)
    assert (found.path.name, found.text, found.there) == (name, text, False)
    put(tmp_path, {name: text})
    assert pytest_ini(tmp_path).there
    # pytest itself agrees, by its own reading.
    read = pytester.parseconfig()
    assert read.inipath == tmp_path / name
    assert read.getini("t2e_suites") == "suites"


@pytest.mark.parametrize(
    ("name", "text", "section"),
    [
        ("pyproject.toml", "tool.pytest.ini_options.addopts = '-q'\n", "tool.pytest.ini_options"),
        ("pyproject.toml", "[tool]\npytest = {addopts = ['-q']}\n", "tool.pytest"),
        (
            "pyproject.toml",
            "a = '''\n[tool.pytest.ini_options]\n'''\n[tool.pytest.'ini_options']\naddopts = ''\n",
            "tool.pytest.ini_options",
        ),
        ("pyproject.toml", "[tool]\npytest = 3\n", "tool.pytest.ini_options"),
    ],
)
def test_what_cannot_be_added_safely_is_told(tmp_path: Path, name: str, text: str, section: str) -> None:
    put(tmp_path, {name: text})
    found = pytest_ini(tmp_path)
    assert (found.text, found.there) == (None, False)
    assert found.advice == f"{name} was left alone; add under [{section}]: {TOML}"


def test_a_linked_file_is_not_replaced(tmp_path: Path) -> None:
    put(tmp_path, {"shared": "[pytest]\n"})
    (tmp_path / "pytest.ini").symlink_to(tmp_path / "shared")
    assert pytest_ini(tmp_path).advice == f"pytest.ini was left alone; add under [pytest]: {INI}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pyproject.toml", b"[tool"),
        ("pyproject.toml", b"\xff"),
        ("setup.cfg", b"loose\n"),
        ("pytest.ini", b"[a]\n[a]\n"),
    ],
)
def test_a_broken_file_is_told_and_left(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    found = pytest_ini(tmp_path)
    assert (found.text, found.there) == (None, False)
    assert found.advice.startswith(f"{name} cannot be read (")
    assert found.advice.endswith("): mend it, and run this again")
    assert "\n" not in found.advice


@pytest.mark.parametrize("value", ["suites", "./suites", "suites/"])
def test_the_key_may_be_there(tmp_path: Path, value: str) -> None:
    put(
        tmp_path,
        {"pyproject.toml": f"[tool.pytest.ini_options]\ntestpaths = ['t']\nt2e_suites = '{value}'\n"},
    )
    found = pytest_ini(tmp_path)
    assert (found.there, found.text, found.has_testpaths) == (True, None, True)


@pytest.mark.parametrize("value", ["'evals'", "['suites']", "''"])
def test_a_key_that_names_another_folder_is_refused(tmp_path: Path, value: str) -> None:
    put(tmp_path, {"pyproject.toml": f"[tool.pytest]\nt2e_suites = {value}\n"})
    with pytest.raises(
        ConfigError, match=r"pyproject\.toml: t2e_suites is .*; set it to that, or lay out an"
    ):
        pytest_ini(tmp_path)


LINES = st.lists(
    st.sampled_from(
        [
            "[tool.pytest.ini_options]", "[tool.pytest]", "[tool]", "[a]", "x = 1", "s = '''", "'''", "# c",
            "", "addopts = '-q'", "[tool.pytest.ini_options] # c", "pytest = {}", "[[tool.pytest]]",
        ]
    ),
    max_size=7,
)  # fmt: skip


@given(lines=LINES, end=st.sampled_from(["\n", "\r\n"]))
def test_no_line_of_the_users_is_lost(
    lines: list[str], end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp() / "no-line-is-lost"
    root.mkdir(exist_ok=True)
    text = end.join(lines)
    put(root, {"pyproject.toml": text})
    found = pytest_ini(root)
    if found.text is None:
        assert found.advice
        return
    after = iter(found.text.splitlines())
    assert all(line in after for line in lines if line)  # each is found behind the one before
    kept = [line for line in lines if line]
    assert len([line for line in found.text.splitlines() if line]) - len(kept) in (1, 2)
    put(root, {"pyproject.toml": found.text})
    assert pytest_ini(root).there


@pytest.mark.parametrize(
    ("files", "value"),
    [
        ({}, None),
        (
            {"pytest.ini": "[pytest]\nt2e_gate = off \n", "pyproject.toml": "[tool.pytest]\nt2e_gate = 'x'"},
            "off",
        ),
        ({"pytest.ini": "", "pyproject.toml": "[tool.pytest.ini_options]\nt2e_gate = 'x'"}, None),
        ({"pyproject.toml": "[tool.pytest.ini_options]\nt2e_gate = 'x'"}, "x"),
        ({"pyproject.toml": "[a]\n", "setup.cfg": "[tool:pytest]\nt2e_gate = x\n"}, "x"),
        ({"pyproject.toml": "[tool.pytest.ini_options]\nt2e_gate = 1"}, None),
        ({"pytest.ini": "no section"}, None),
    ],
)
def test_a_key_is_read_where_pytest_reads_it(
    tmp_path: Path, files: dict[str, str], value: str | None
) -> None:
    put(tmp_path, files)
    assert ini_value(tmp_path, "t2e_gate") == value
