"""Options of an evolution's sessions that stand in `addopts` or PYTEST_ADDOPTS."""

import re
import shutil

import pytest

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.improve.session import fresh_of, simulations_of
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.utils.resources import embedded_model
from tests.evolving.test_asking import asked, project, write_suites

__all__ = ["project"]

PLACES = ("settings", "variable")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, project: Project, monkeypatch: pytest.MonkeyPatch) -> "Place":
    return Place(request.param, project, monkeypatch)


class Place:
    """Where such options stand.

    Attributes:
        told: How an error names it.
    """

    def __init__(self, name: str, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        self._name, self._project, self._patch = name, project, monkeypatch
        monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
        settings = f"addopts in the pytest settings of {project.root}"
        self.told = settings if name == "settings" else "PYTEST_ADDOPTS"

    def holds(self, words: str) -> None:
        if self._name == "variable":
            self._patch.setenv("PYTEST_ADDOPTS", words)
        else:
            (self._project.root / "pytest.ini").write_text(f"[pytest]\naddopts = {words}\n", encoding="utf-8")


def test_what_they_say_of_suites_trials_and_gate_counts(project: Project, place: Place) -> None:
    write_suites(project.root, a="support", c="retail")
    place.holds("--t2e-suite c -q --t2e-gate=strict --t2e-trials 3 --strict-markers")
    session = asked(project).session
    assert set(session) == {"--t2e-suite=c", "--t2e-gate=strict", "--t2e-trials=3"}
    assert simulations_of(project, session) == 9
    assert fresh_of(project, session) == 0


def test_an_evolution_is_the_same_whether_they_stand_there_or_are_given(
    project: Project, place: Place
) -> None:
    """`pytest --t2e-evolve` hands on what it was given in any place; its command names none of it again."""
    place.holds("--t2e-suite=a --t2e-trials=4 --t2e-temperature 0")
    plain = asked(project, "-n2").name
    assert asked(project, "--t2e-suite=a", "--t2e-trials=4.0", "--t2e-temperature=0.0").name == plain
    assert asked(project, "--t2e-trials=2").name != plain, "what is given counts"
    place.holds("--t2e-suite=a --t2e-trials=5 --t2e-temperature 0")
    assert asked(project, "-n2").name != plain


def test_a_customers_model_is_where_sessions_would_look_for_it(project: Project, place: Place) -> None:
    shutil.copytree(embedded_model(), project.root / "customer")
    place.holds("--t2e-user-model ./customer")
    told = f"--t2e-user-model={project.root / 'customer'}"
    assert asked(project).session == (told,)
    assert asked(project, told).name == asked(project).name


def test_the_variable_overrules_the_settings(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    Place("settings", project, monkeypatch).holds("--t2e-gate=off --t2e-trials=2")
    Place("variable", project, monkeypatch).holds("--t2e-gate=strict")
    assert set(asked(project).session) == {"--t2e-gate=strict", "--t2e-trials=2"}


def test_suites_of_both_are_run_as_pytest_runs_them(project: Project, place: Place) -> None:
    place.holds("--t2e-suite a")
    assert simulations_of(project, asked(project, "--t2e-suite=b").session) == 12
    assert asked(project, "--t2e-suite=a").session == ("--t2e-suite=a",)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-x", "-x: a session that leaves tests out gives no verdict that counts; leave it out"),
        ("-ra -qx", "-qx: a session that leaves tests out"),
        ("--maxfail=1", "--maxfail=1: a session that leaves tests out"),
        ("--lf", "--lf: a session that leaves tests out"),
        ("-k note", "-k: a session that leaves tests out"),
        ("--t2e-model m", "--t2e-model: the sessions of an evolution talk with its base; name that with"),
        ("--t2e-agent=oracle", "--t2e-agent=oracle: nobody could talk with an adapter of the base then"),
        ("--t2e-evolve", "--t2e-evolve: a session of an evolution begins no other one; leave it out"),
        ("--t2e-record=x", "--t2e-record=x: an evolution runs several sessions"),
        (
            "--t2e-gate off",
            "--t2e-gate off: an adapter is promoted by the gate's verdict alone; leave it out",
        ),
        ("--t2e-gate=off", "--t2e-gate off: an adapter is promoted by the gate's verdict alone"),
        ("--t2e-trials=none", None),
        ("--t2e-summary=told.md", "--t2e-summary=told.md: an evolution runs several sessions, and only one"),
        ("--t2e-evolve-options='--most 2'", "--t2e-evolve-options=--most 2: it is for the session that evol"),
        ("-o t2e_gate=off", "-o t2e_gate=off: sets what is read elsewhere; leave it out"),
        ("--override-ini=addopts=", "--override-ini addopts=: sets what is read elsewhere; leave it out"),
    ],
)
def test_what_could_come_to_no_end_is_refused_there_too(
    project: Project, place: Place, words: str, told: str | None
) -> None:
    place.holds(words)
    place_and_reason = "--t2e-trials none: must be" if told is None else f"{place.told}: {told}"
    with pytest.raises(ConfigError, match=f"^{re.escape(place_and_reason)}"):
        simulations_of(project, asked(project).session)


@pytest.mark.parametrize(
    "words",
    [
        "-m 'not slow'",
        "--ignore=examples --strict-config",
        "-ra -vv --cov=x",
        "--candidate=v5",
        "-p x",
        "--maxfail=0",
        "-o log_cli=true",
    ],
)
def test_what_is_for_other_tests_or_overruled_stands(project: Project, place: Place, words: str) -> None:
    place.holds(words)
    assert asked(project).session == ()


def test_a_model_is_overruled_by_a_base_and_a_gate_by_a_gate(project: Project, place: Place) -> None:
    place.holds("--t2e-model=m --t2e-gate=off")
    order = asked(project, "--t2e-gate=strict", base=embedded_model())
    assert order.session == ("--t2e-gate=strict", f"--t2e-model={embedded_model()}")


def test_a_quotation_without_an_end_is_left_to_pytest(project: Project, place: Place) -> None:
    place.holds("-k 'a")
    assert asked(project).session == ()
