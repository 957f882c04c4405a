"""Suites as items: ids, markers, selection."""

from tests.plugin.conftest import INI, DeskProject


def test_every_task_is_an_item_of_its_split(project: DeskProject) -> None:
    result = project.run("--collect-only", "-q")
    assert result.outlines[:7] == [
        "suites/desk.toml::heldout::close",
        "suites/desk.toml::heldout::note",
        "suites/desk.toml::heldout::restart",
        "suites/desk.toml::heldout::look",
        "suites/desk.toml::discovery::idle",
        "suites/desk.toml::discovery::opened",
        "suites/desk.toml::discovery::free",
    ]


def test_a_split_is_a_registered_marker(project: DeskProject) -> None:
    project.write("pytest.ini", INI + "addopts = --strict-markers\n")
    result = project.run("-m", "heldout", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["4/7 tests collected (3 deselected)*"])
    project.run("--markers").stdout.fnmatch_lines(["@pytest.mark.heldout: trace2evolve split: *"])


def test_an_unknown_role_of_a_split_is_named(project: DeskProject) -> None:
    project.write("suites/_splits.toml", '[canary]\nrole = "bird"\ndescription = "once broke"\n')
    result = project.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*_splits.toml: split 'canary': role: *; roles are gate, *"])


def test_without_an_option_other_paths_stay_untouched(project: DeskProject) -> None:
    project.write("tests/test_own.py", "def test_own(): pass\n")
    result = project.pytester.runpytest_inprocess("tests")
    result.assert_outcomes(passed=1)
    assert "trace2evolve" not in result.stdout.str().split("plugins:")[1].split("\n", 1)[1]
    assert not (project.root / ".trace2evolve").exists()


def test_an_option_runs_the_suites_whatever_testpaths_says(project: DeskProject) -> None:
    project.write("pytest.ini", INI.replace("testpaths = suites", "testpaths = tests"))
    project.write("tests/test_own.py", "def test_own(): pass\n")
    result = project.run("--candidate=v1", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["suites/desk.toml::heldout::close"])
    result.stdout.no_fnmatch_line("*test_own*")
