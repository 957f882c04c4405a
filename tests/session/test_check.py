"""`trace2evolve check`: what is wrong with a project's files and rules, without a model or a network."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pytest_trace2evolve.cases.case import format_case_line, generate
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.errors import ConfigError, MissingExtraError
from pytest_trace2evolve.evidence.draws import DrawStore
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.session.check import check_project
from pytest_trace2evolve.worlds import registry
from pytest_trace2evolve.worlds.registry import Worlds
from tests.fake_world import FakeWorld
from tests.inn_world import RULES, InnSession, InnWorld
from tests.plugin.conftest import SUITE, DeskProject

FROZEN = (
    "---\nid: v2\nparent: v1\nfrozen_at: 2026-11-20\ninformed_by: [desk::discovery]\n---\nclose restart\n"
)
ENTRY_POINTS = """\
[trace2evolve.worlds]
inn = tests.inn_world:InnWorld
broken = tests.session.test_check:broken
absent = tests.session.test_check:absent
gone = no_such_package:World
"""
INN = 'provider = "inn"\ndomain = "inn"\n\n[splits]\ndiscovery = ["book", "cancel"]\n'
HEAVY = ("inspect_evals", "inspect_ai", "openai", "torch", "tau2", "aiohttp")


def git(root: Path, *arguments: str) -> None:
    """git, without a thing of this machine's settings."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    named = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *named, *arguments], cwd=root, env=surroundings, check=True, capture_output=True)


@pytest.fixture
def providers(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package, here and in processes of their own, offers the help desk and the inn."""
    folder = tmp_path_factory.mktemp("installed")
    package = folder / "worlds-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: worlds\nVersion: 1.0\n", encoding="utf-8")
    (package / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(folder)]))
    registry._installed_providers.cache_clear()
    yield
    registry._installed_providers.cache_clear()


@pytest.fixture
def desk(project: DeskProject, providers: None, monkeypatch: pytest.MonkeyPatch) -> DeskProject:
    """A sound project in git, with a frozen candidate; the working folder is in it."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(project.root)
    project.write("candidates/v2.md", FROZEN)
    git(project.root, "init", "-q")
    git(project.root, "add", "candidates", "suites")
    git(project.root, "commit", "-qm", "first")
    return project


def linted(desk: DeskProject, against: str = "HEAD") -> list[str]:
    """What is found, a line each, as the command prints it."""
    worlds = Worlds({"fake": FakeWorld})
    found = check_project(Project(desk.root, desk.root / "suites"), worlds, against)
    return [
        f"{one.path.relative_to(desk.root)}: {'warning: ' if one.is_warning else ''}{one.text}"
        for one in found
    ]


def test_a_sound_project_has_no_findings(desk: DeskProject) -> None:
    desk.baseline("v1")
    assert linted(desk) == []


@pytest.mark.parametrize(
    ("name", "text", "finding"),
    [
        (
            "candidates/v3.md",
            "hello",
            "candidates/v3.md: line 1 must be '---', the start of the front matter",
        ),
        (
            "candidates/v3.md",
            "---\nid: v4\n---\n",
            "candidates/v3.md: its id is 'v4'; name the file v4.md or*",
        ),
        (
            "candidates/v3.md",
            "---\nid: v3\nparent: v9\n---\n",
            "candidates/v3.md: unknown parent 'v9'; nearest*",
        ),
        (
            "candidates/v3.md",
            "---\nid: v3\nref: 0123456789\n---\n",
            "candidates/v3.md: ref '0123456789' is not a commit in this repository; fetch it, or *",
        ),
        (
            "candidates/v3.md",
            "---\nid: v3\nagent: no_such_module:make\n---\n",
            "candidates/v3.md: agent 'no_such_module:make' cannot be imported: ModuleNotFoundError: *",
        ),
        (
            "candidates/v3.md",
            "---\nid: v3\nfrozen_at: 2999-01-01\n---\n",
            "candidates/v3.md: has frozen_at 2999-01-01, which is in the future; correct the date",
        ),
        (
            "pyproject.toml",
            '[tool.trace2evolve]\nagent = "json:dump_"\n',
            "pyproject.toml: agent 'json:dump_' cannot be imported: *no 'dump_' (nearest are dump, *); *",
        ),
        (
            "pyproject.toml",
            '[tool.trace2evolve]\nchecks = "no_such_checks"\n',
            "pyproject.toml: checks = 'no_such_checks': the module cannot be imported: *",
        ),
        ("suites/_splits.toml", "[x]\nrole = 1\n", "suites/_splits.toml: split 'x': *; roles are *"),
        ("suites/desk.toml", "provider = ", "suites/desk.toml: not valid TOML: *"),
        (
            "suites/desk.toml",
            SUITE.replace("discovery", "secret"),
            "suites/desk.toml: unknown split 'secret'; known are *",
        ),
        (
            "suites/desk.toml",
            SUITE.replace(', "free"', ""),
            "suites/desk.toml: task 'free' was removed from split 'discovery'; its settings changed since *",
        ),
        (
            "suites/other.toml",
            SUITE,
            "suites/other.toml: not in suites.lock; run 'trace2evolve lock' and commit the result",
        ),
        ("suites/suites.lock", "{", "suites/suites.lock: not valid JSON*; restore it or run *"),
        ("baselines/desk/v1.json", "{", "baselines/desk/v1.json: *"),
        (
            "baselines/desk/v1.json",
            "{}",
            "baselines/desk/v1.json: is not evidence of trace2evolve; save a baseline *",
        ),
    ],
)
def test_each_damage_is_one_line_with_its_mend(desk: DeskProject, name: str, text: str, finding: str) -> None:
    desk.write(name, text)
    lines = linted(desk)
    assert len(lines) == 1
    pytest.LineMatcher(lines).fnmatch_lines([finding.replace("[", "[[]")])


def test_a_circle_is_told_once(desk: DeskProject) -> None:
    desk.candidate("a", "", parent="b")
    desk.candidate("b", "", parent="a")
    assert linted(desk) == ["candidates: the parents form a cycle: a → b → a; correct one of them"]


def test_a_broken_ancestor_is_told_once(desk: DeskProject) -> None:
    desk.write("candidates/v0.md", "---\nid: v0\n")
    lines = linted(desk)
    assert len(lines) == 1
    assert lines[0].startswith("candidates/v0.md: the front matter is not closed")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("close restart", "close restart look", "its text changed"),
        ("frozen_at: 2026-11-20\n", "", "its frozen_at changed"),
        ("frozen_at: 2026-11-20", "frozen_at: 2026-11-19", "its frozen_at changed"),
        ("parent: v1", "parent: v0", "its parent changed"),
        ("[desk::discovery]", "[]", "its informed_by no longer names 'desk::discovery'"),
    ],
)
def test_a_frozen_candidate_stays_as_it_is(desk: DeskProject, old: str, new: str, what: str) -> None:
    desk.write("candidates/v2.md", FROZEN.replace(old, new))
    message = f"candidates/v2.md: {what}, but v2 was frozen on 2026-11-20; make a new candidate"
    assert linted(desk) == [message]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("frozen_at", "hypothesis: It helps.\nfrozen_at"),
        ("[desk::discovery]", "[desk::discovery, desk::heldout]"),
        ("\n", "\r\n"),
    ],
)
def test_what_evidence_does_not_rest_on_may_change(desk: DeskProject, old: str, new: str) -> None:
    (desk.root / "candidates" / "v2.md").write_bytes(FROZEN.replace(old, new).encode())
    assert linted(desk) == []


def test_a_candidate_that_was_not_frozen_may_change(desk: DeskProject) -> None:
    desk.candidate("v1", "close", parent="v0")
    assert linted(desk) == []


def test_frozen_candidates_are_held_against_any_commit(desk: DeskProject) -> None:
    desk.write("candidates/v2.md", FROZEN.replace("close", "look"))
    git(desk.root, "commit", "-qam", "second")
    assert linted(desk) == []
    (line,) = linted(desk, "HEAD~1")
    assert "frozen on 2026-11-20" in line
    with pytest.raises(ConfigError, match="--against '--output=x' is not a commit here"):
        linted(desk, "--output=x")


def test_the_prompt_of_a_frozen_candidate_stays_as_it_is(desk: DeskProject) -> None:
    desk.write("prompt.md", "Be kind.\n")
    desk.write("candidates/v2.md", FROZEN.replace("parent", "prompt: prompt.md\nparent"))
    git(desk.root, "add", "prompt.md")
    git(desk.root, "commit", "-qam", "second")
    assert linted(desk) == []
    desk.write("prompt.md", "Be brief.\n")
    (line,) = linted(desk)
    assert line.startswith("candidates/v2.md: its text changed, but v2 was frozen on 2026-11-20")


def test_without_git_frozen_texts_are_told_as_not_compared(
    desk: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    (line,) = linted(desk)
    assert line.startswith(
        "candidates: warning: frozen texts were not compared, because git has no commit here"
    )


def test_a_lock_of_a_suite_that_is_gone_is_found(desk: DeskProject) -> None:
    (desk.root / "suites" / "desk.toml").unlink()
    message = (
        "suites/suites.lock: locks suite 'desk', which has no file; restore it or run 'trace2evolve lock'"
    )
    assert linted(desk) == [message]


def test_a_lock_of_another_scorer_is_found(desk: DeskProject) -> None:
    path = desk.root / "suites" / "suites.lock"
    record = json.loads(path.read_text())
    record["suites"]["desk"]["scorer_version"] = 0
    path.write_text(json.dumps(record))
    (line,) = linted(desk)
    assert line.startswith("suites/suites.lock: desk is locked for scorer 0, but this version has ")


def test_baselines_are_held_against_suites_and_lock(desk: DeskProject) -> None:
    desk.baseline("v1")
    desk.write("suites/desk.toml", SUITE.replace(', "free"', ""))
    desk.lock()
    assert linted(desk) == []  # a comparison with it is refused
    (desk.root / "baselines" / "desk").rename(desk.root / "baselines" / "disk")
    assert linted(desk) == []  # no suite uses it
    desk.write("suites/disk.toml", SUITE)
    desk.lock()
    message = "baselines/disk/v1.json: belongs to suite 'desk', not to 'disk'; move it to that suite's folder"
    assert linted(desk) == [message]


def test_several_findings_are_told_together(desk: DeskProject) -> None:
    desk.write("candidates/v2.md", FROZEN.replace("close", "look"))
    desk.write("candidates/v3.md", "")
    desk.write("suites/other.toml", SUITE)
    lines = linted(desk)
    assert [line.partition(": ")[0] for line in lines] == [
        "candidates/v3.md",
        "candidates/v2.md",
        "suites/other.toml",
    ]


def test_check_loads_no_client(desk: DeskProject) -> None:
    """This keeps it fast: `benchmarks/session.py` measures it."""
    desk.baseline("v1")
    check = (
        "import sys\n"
        "from pytest_trace2evolve.cli.main import main\n"
        "status = main(['check'])\n"
        f"print(status, sorted(set(sys.modules) & set({HEAVY!r})))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n"


CASES = "".join(map(format_case_line, generate("check", 3, Content.HELDOUT)))


@pytest.fixture
def with_cases(desk: DeskProject) -> DeskProject:
    """The project with a suite of three cases, locked."""
    desk.write("cases/three.jsonl", CASES)
    head = 'provider = "trace2evolve"\ndomain = "support"\n\n[splits]\n'
    desk.write("suites/help.toml", head + 'synthetic = { cases = "cases/three.jsonl" }\n')
    desk.lock()
    return desk


def test_sound_cases_have_no_findings(with_cases: DeskProject) -> None:
    assert linted(with_cases) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "suites/help.toml: split 'synthetic': *cases/three.jsonl: cannot be read: No such file*"),
        (CASES[:300], "suites/help.toml: split 'synthetic': *cases/three.jsonl, line 1: *"),
        (CASES.split("\n", 1)[1], "suites/help.toml: task '*' was removed from split 'synthetic' since *"),
        (
            CASES.replace('"after":"anything"', '"after":"done"', 1),
            "suites/help.toml: the content of task '*' in split 'synthetic' changed since *",
        ),
    ],
)
def test_cases_that_are_not_as_they_were_locked_are_told(
    with_cases: DeskProject, text: str | None, message: str
) -> None:
    path = with_cases.root / "cases" / "three.jsonl"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    (line,) = linted(with_cases)
    assert fnmatch(line, message)


# The rules of the project's own worlds.


def broken(domain: str) -> InnWorld:
    """A world whose rules are declared with a mistake."""
    world = InnWorld()
    world.rules = lambda: Rules.model_validate({**RULES.model_dump(), "owner": None})  # type: ignore[method-assign]
    return world


def absent(domain: str) -> InnWorld:
    """A world whose package is missing."""
    raise MissingExtraError("'inn_data' is not installed; run: pip install inn-data")


@pytest.fixture
def inn(desk: DeskProject) -> DeskProject:
    """The project with a suite of the inn, locked."""
    desk.write("suites/inn.toml", INN)
    Project(desk.root, desk.root / "suites").renew_lock(Worlds({"fake": FakeWorld, "inn": InnWorld}))
    return desk


def about_rules(desk: DeskProject) -> list[str]:
    """What is found about rules: a patched world is not the locked one either."""
    return [line for line in linted(desk) if "rules of" in line]


def test_rules_that_can_match_have_no_findings(inn: DeskProject) -> None:
    assert linted(inn) == []


def test_a_rule_that_can_never_match_is_a_finding(inn: DeskProject, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = RULES.model_copy(update={"identify": {"find_gest": "guest.id"}, "ids": {"bookings": "B("}})
    monkeypatch.setattr(InnWorld, "rules", lambda self: rules)
    lines = about_rules(inn)
    what = "suites/inn.toml: rules of inn (provider inn): "
    unknown = (
        "identify: the agent has no tool 'find_gest', so the rule never applies; did you mean 'find_guest'?"
    )
    invalid = (
        "'B(' is not a regular expression (missing ), unterminated subpattern at position 1); correct it"
    )
    assert lines == [f"{what}{unknown}", f"{what}ids['bookings']: {invalid}"]


def test_rules_of_worlds_that_are_passed_in_are_checked(inn: DeskProject) -> None:
    """Such as those that a project's `conftest.py` registers."""
    wrong = RULES.model_copy(update={"identify": {"find_gest": "guest.id"}})
    worlds = Worlds({"fake": FakeWorld, "inn": lambda domain: InnWorld(domain, wrong)})
    *_, finding = check_project(Project(inn.root, inn.root / "suites"), worlds)
    assert finding.path == inn.root / "suites" / "inn.toml"
    assert finding.text.startswith("rules of inn (provider inn): identify: the agent has no tool 'find_gest'")


def test_two_suites_of_one_world_have_its_findings_once(
    inn: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    inn.write("suites/second.toml", INN.replace('"cancel"', '"tab"'))
    Project(inn.root, inn.root / "suites").renew_lock(Worlds({"fake": FakeWorld, "inn": InnWorld}))
    rules = RULES.model_copy(update={"identify": {"find_gest": "guest.id"}})
    monkeypatch.setattr(InnWorld, "rules", lambda self: rules)
    (line,) = about_rules(inn)
    assert line.startswith("suites/inn.toml: rules of inn (provider inn): identify: the agent has no tool")


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("absent", "warning: not compared with suites.lock: 'inn_data' is not installed; run: pip"),
        ("gone", "warning: not compared with suites.lock: ModuleNotFoundError: No module named"),
        ("nowhere", "not compared with suites.lock: unknown provider 'nowhere'; known are "),
        (
            "broken",
            "rules of inn (provider broken): cannot be read: owner: Input should be a valid string, not None",
        ),
    ],
)
def test_a_world_that_cannot_be_checked_is_named(inn: DeskProject, provider: str, message: str) -> None:
    inn.write("suites/other.toml", INN.replace('"inn"', f'"{provider}"', 1))
    worlds = Worlds({"fake": FakeWorld, "inn": InnWorld, provider: InnWorld})
    Project(inn.root, inn.root / "suites").renew_lock(worlds)
    lines = [line for line in linted(inn) if line.startswith("suites/other.toml: ")]
    assert lines[-1].startswith(f"suites/other.toml: {message}")
    assert len(lines) == 1 or provider == "broken"


def test_changed_settings_are_an_error_if_the_world_cannot_be_opened(inn: DeskProject) -> None:
    inn.write("suites/inn.toml", INN.replace('"inn"', '"nowhere"', 1))
    changed, unopened = linted(inn)
    assert changed.startswith("suites/inn.toml: its settings changed since suites.lock was written; run ")
    message = "suites/inn.toml: not compared with suites.lock: unknown provider 'nowhere'; known are "
    assert unopened.startswith(message)


def test_tasks_that_cannot_be_tried_are_a_warning(inn: DeskProject, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(self: InnSession, state: object) -> None:
        raise KeyError("rooms")

    monkeypatch.setattr(InnSession, "initialise", raises)
    message = "warning: world inn (provider inn): its tasks were not tried: KeyError: 'rooms'"
    assert linted(inn) == [f"suites/inn.toml: {message}"]


def test_the_command_prints_findings_and_fails_unless_they_are_warnings(
    inn: DeskProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["check"]) == 0
    assert capsys.readouterr().out.startswith("candidates: warning: frozen texts were not compared, ")
    wrong = RULES.model_copy(update={"identify": {"find_gest": "guest.id"}})
    monkeypatch.setattr(InnWorld, "rules", lambda self: wrong)
    assert main(["check"]) == 1
    assert "suites/inn.toml: rules of inn (provider inn): identify: the agent has " in capsys.readouterr().out


def test_a_stored_simulation_that_was_deleted_is_named(project: DeskProject) -> None:
    folder = project.root / ".trace2evolve" / "finished"
    store = DrawStore(folder, folder / "draws", ("candidate", "agent", "conditions"), "run-1")
    simulation = {"id": "s", "task_id": "t", "termination_reason": "user_stop", "messages": []}
    store.put(store.draw_key("a"), Simulation.model_validate(simulation))
    desk, worlds = Project(project.root, project.root / "suites"), Worlds({"fake": FakeWorld})
    assert check_project(desk, worlds) == []
    (path,) = folder.glob("*/*.json")
    path.unlink()
    (finding,) = check_project(desk, worlds)
    assert finding.path == path
    assert finding.text.startswith("was deleted, but the account of its draw names it; restore it, use ")
