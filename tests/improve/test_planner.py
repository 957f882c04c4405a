"""What an evolution is asked for: what could come to no end is refused before anything is played."""

import argparse
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, LockError, MissingExtraError, PolicyError
from pytest_trace2evolve.improve.order import EvolveOrder
from pytest_trace2evolve.improve.request import read_order
from pytest_trace2evolve.improve.runs import refuse_partial, simulations_in
from pytest_trace2evolve.improve.session import fresh_of, simulations_of
from pytest_trace2evolve.project.lock import LOCK_NAME, Lock, SuiteLock, render_lock
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.utils import optional as _optional
from pytest_trace2evolve.utils.resources import embedded_model
from tests.gate_helpers import write_candidate

WEIGHTS = folder_digest(embedded_model())


def write_results(
    folder: Path,
    run: str,
    suite: str = "a",
    domain: str = "support",
    count: int = 0,
    tasks: Sequence[str] = (),
    provider: str | None = None,
) -> None:
    """A run's results: who talked, and that many simulations of task `t`, or one of each of some tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    candidate = {"id": "v6", "digest": "d"}
    provider = provider or provider_of(domain)
    provenance = {"domain": domain, "provider": provider, "run_id": run, "suite": suite}
    provenance |= {"candidate": candidate, "agent": {"arguments": {"weights": WEIGHTS}}}
    info = {"environment_info": {"domain_name": domain}, "trace2evolve": provenance}
    played = [("t", number) for number in range(count)] + [(name, 0) for name in tasks]
    simulations = [
        {"id": f"{run}-{place}", "task_id": name, "trial": trial, "termination_reason": "user_stop"}
        for place, (name, trial) in enumerate(played)
    ]
    named = [{"id": name, "user_scenario": {"instructions": "x"}} for name in (tasks or ("t",))]
    told = {"info": info, "tasks": named, "simulations": simulations}
    (folder / "results.json").write_text(json.dumps(told), encoding="utf-8")


def provider_of(domain: str) -> str:
    """Who provides a domain."""
    return "trace2evolve" if domain == "support" else "inspect_evals"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Candidate `v6`, and suites `a` and `b` of one domain and `c` of another, with three tasks each."""
    (tmp_path / "candidates").mkdir()
    (tmp_path / "suites").mkdir()
    write_candidate(tmp_path / "candidates", "v6", text="Be kind.")
    write_suites(tmp_path, a="support", b="support")
    return Project(root=tmp_path, suites_folder=tmp_path / "suites")


def write_suites(root: Path, policy: str = "p", split: str = "heldout", **domains: str) -> None:
    """Suites whose customers follow scripts, by their domains, and their lock."""
    suites = {}
    for name, domain in domains.items():
        provider = provider_of(domain)
        text = f'provider = "{provider}"\ndomain = "{domain}"\ntrials = 2\n'
        text += '[splits]\nheldout = { cases = "c.jsonl" }\n'
        (root / "suites" / f"{name}.toml").write_text(text, encoding="utf-8")
        suites[name] = SuiteLock(
            definition="d",
            provider=provider,
            provider_version="1",
            domain=domain,
            scorer_version=1,
            policy=policy,
            tools="t",
            data="d",
            splits={split: {"1": "x", "2": "x", "3": "x"}},
        )
    (root / "suites" / LOCK_NAME).write_text(render_lock(Lock(suites=suites)), encoding="utf-8")


def asked(project: Project, *session: str, here: Path | None = None, **given: Any) -> EvolveOrder:
    """The order of a command line; what is not given is as the command has it."""
    told = {"candidate": None if "from_run" in given else "v6", "from_run": None, "base": None, "most": 3}
    told |= {"preset": "pocket", "config": None, "steps": None, "seed": None, "heldout": 60}
    told |= {"heldout_rollouts": 4, "parallel": None, "max_rollouts": None, "max_minutes": None}
    options = argparse.Namespace(**{**told, **given}, session=list(session))
    fresh = Project(root=project.root, suites_folder=project.suites_folder)  # reads everything anew
    return read_order(options, fresh, Environments(), here or project.root)


def everything(project: Project, session: list[str]) -> None:
    """All that is read of the options before anything is played."""
    order = asked(project, "-n2", *session)
    simulations_of(project, order.session)
    fresh_of(project, order.session)


@pytest.mark.parametrize(
    ("session", "told"),
    [
        (
            ["--candidate=v5"],
            "--candidate=v5: an evolution gives its sessions this option itself; leave it out",
        ),
        (["--t2e-run-folder", "x"], "--t2e-run-folder: an evolution gives its sessions this option itself"),
        (["--t2e-baseline=v0"], "--t2e-baseline=v0: an evolution gives its sessions this option itself"),
        (
            ["--t2e-model=./m"],
            "--t2e-model=./m: the sessions of an evolution talk with its base; name that with",
        ),
        (
            ["--t2e-replay=x"],
            "--t2e-replay=x: nobody could talk with an adapter of the base then; leave it out",
        ),
        (["--t2e-agent=oracle"], "--t2e-agent=oracle: nobody could talk with an adapter of the base then"),
        (["--t2e-stages=2,4"], "--t2e-stages=2,4: a run that may stop early is no baseline of the adapters'"),
        (
            ["--t2e-cache"],
            "--t2e-cache: it keeps the answers of one model, and the routed candidate asks several",
        ),
        (
            ["--t2e-record=x"],
            "--t2e-record=x: an evolution runs several sessions, and only one of them could",
        ),
        (
            ["--t2e-save-baseline=x"],
            "--t2e-save-baseline=x: an evolution runs several sessions, and only one",
        ),
        (["--t2e-route=turn"], "--t2e-route=turn: it says nothing in sessions that route to nobody"),
        *(
            (given, f"{given[0]}: a session that leaves tests out gives no verdict that counts; leave it out")
            for given in (
                ["-k", "note"],
                ["-knote"],
                ["-x"],
                ["-xq"],
                ["-m", "discovery"],
                ["--sw"],
                ["--maxfail=1"],
                ["--ignore=suites"],
            )
        ),
        (
            ["-qx"],
            "-qx: no option that the sessions of an evolution take; what every session needs can be in",
        ),
        (
            ["--t2e-trails", "4"],
            "--t2e-trails: no option that the sessions of an evolution take; did you mean",
        ),
        (
            ["--timeout=5"],
            "--timeout=5: no option that the sessions of an evolution take; what every session",
        ),
        (
            ["suites/a.toml"],
            "suites/a.toml: sessions of an evolution run suites, named by --t2e-suite; leave",
        ),
        (["--t2e-trials"], "--t2e-trials: needs a value"),
        (
            ["--t2e-gate=off"],
            "--t2e-gate=off: an adapter is promoted by the gate's verdict alone; leave it out",
        ),
        (["--t2e-gate", "off"], "--t2e-gate=off: an adapter is promoted by the gate's verdict alone"),
        (["--t2e-trials", "x"], "--t2e-trials x: must be a whole number from 1 to 1000000"),
        (["--t2e-trials=0"], "--t2e-trials 0: must be a whole number from 1 to 1000000"),
        (["--t2e-confirm=-1"], "--t2e-confirm -1: must be a whole number from 0 to 1000000"),
    ],
)
def test_what_could_come_to_no_end_is_refused(project: Project, session: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}"):
        everything(project, session)


@pytest.mark.parametrize(
    "session",
    [
        ["--t2e-suite=a", "-n2", "--t2e-temperature=1"],
        ["--t2e-temperature", "1.0", "-n", "8", "--t2e-suite", "a"],
        ["--t2e-temperature=0.5", "-q", "--t2e-suite=a", "--t2e-suite=a", "--t2e-temperature=1e0"],
        [
            "-p",
            "one",
            "--numprocesses=2",
            "--t2e-suite=a",
            "--t2e-temperature=1",
            "--t2e-concurrency=3",
            "-vv",
        ],
    ],
)
def test_the_same_options_however_written_are_one_evolution(project: Project, session: list[str]) -> None:
    assert asked(project, *session).name == asked(project, "--t2e-suite=a", "--t2e-temperature=1").name


@pytest.mark.parametrize(("module", "extra"), [("trl", "train"), ("peft", "train"), ("matplotlib", "plot")])
def test_a_missing_extra_is_told_before_anything_is_played(
    project: Project, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    def absent(wanted: str) -> None:
        if wanted == module:
            raise ModuleNotFoundError(name=wanted)

    monkeypatch.setattr(_optional, "quiet_import", absent)
    told = rf"^'{module}' is not installed; run: pip install 'pytest-trace2evolve\[{extra}\]'$"
    with pytest.raises(MissingExtraError, match=told):
        asked(project)


def test_the_last_word_on_a_plugin_stays_the_last(project: Project) -> None:
    for words in (["-p", "no:one", "-p", "one"], ["-pone", "-q", "-p", "no:one"]):
        given = [one for one in asked(project, *words).session if one.startswith("-p")]
        assert given == [f"-p{one.removeprefix('-p')}" for one in words if "one" in one]


def test_other_options_are_another_evolution(project: Project) -> None:
    found = {
        asked(project, *session).name
        for session in ([], ["--t2e-suite=a"], ["--t2e-suite=b"], ["--t2e-seed=1"], ["--t2e-trials=1"])
    }
    assert len(found) == 5


def test_where_somebody_else_would_talk_nothing_is_learnt(project: Project, tmp_path: Path) -> None:
    ini = project.root / "pytest.ini"
    ini.write_text("[pytest]\nt2e_agent = oracle\n", encoding="utf-8")
    told = (
        rf"^t2e_agent = oracle in the pytest settings of {project.root}: that agent would talk, and .*--base"
    )
    with pytest.raises(ConfigError, match=told):
        asked(project)
    assert asked(project, base=embedded_model()).session == (f"--t2e-model={embedded_model()}",)
    ini.unlink()
    path = project.suite_path("b")
    path.write_text(f'default_agent = "nop"\n{path.read_text()}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"suites/b.toml: default_agent = nop: that agent would talk"):
        asked(project)
    assert asked(project, "--t2e-suite=a").session == ("--t2e-suite=a",)


def test_suites_without_a_split_that_decides_are_refused(project: Project) -> None:
    write_suites(project.root, split="discovery", a="support")
    with pytest.raises(
        ConfigError, match=r"^no split decides in the suites that would be run: a \(disc.*; name"
    ):
        asked(project)
    write_suites(project.root, split="development", a="support")
    assert asked(project).session == ()


def test_a_run_that_lacks_tasks_is_refused(project: Project) -> None:
    run = project.root / "run"
    write_results(run, "r1", "a", count=2)
    suites = [project.suite("a")]
    told = r"^run run lacks 3 of 3 tasks of a::heldout, by which its adapters would be judged; run the whole"
    with pytest.raises(ConfigError, match=told):
        refuse_partial(run, project, suites)
    text = (run / "results.json").read_text(encoding="utf-8").replace('"t"', '"2"')
    (run / "results.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^run run lacks 2 of 3 tasks of a::heldout"):
        refuse_partial(run, project, suites)
    write_suites(project.root, split="discovery", a="support")
    refuse_partial(run, Project(root=project.root, suites_folder=project.suites_folder), suites)


@pytest.mark.parametrize("held", [(), ("5", "6")])
def test_a_run_that_lacks_tasks_of_its_guard_is_refused(project: Project, held: tuple[str, ...]) -> None:
    """Without any, nobody would hold an adapter against the guard; without some, none could be promoted."""
    write_suites(project.root, a="support")
    lock = project.lock
    splits = {**lock.suites["a"].splits, "synthetic": {"4": "x", "5": "x", "6": "x"}}
    suite = lock.suites["a"].model_copy(update={"splits": splits})
    (project.suites_folder / LOCK_NAME).write_text(render_lock(Lock(suites={"a": suite})), encoding="utf-8")
    fresh = Project(root=project.root, suites_folder=project.suites_folder)
    run = project.root / "run"
    write_results(run, "r1", "a", tasks=("1", "2", "3", *held))
    told = (
        rf"^run run lacks {3 - len(held)} of 3 tasks of a::synthetic, by which its adapters would be judged"
    )
    with pytest.raises(ConfigError, match=told):
        refuse_partial(run, fresh, [fresh.suite("a")])
    write_results(run, "r1", "a", tasks=("1", "2", "3", "4", "5", "6"))
    refuse_partial(run, fresh, [fresh.suite("a")])


def test_a_locked_split_that_is_none_any_more_is_refused(project: Project) -> None:
    write_suites(project.root, split="robust", a="support")
    told = (
        rf"^{project.suites_folder / 'a.toml'}: split 'robust' is in t2e.lock and in no registry; run "
        r"'trace2evolve lock' if the change is meant$"
    ).replace("t2e.lock", re.escape(LOCK_NAME))
    with pytest.raises(LockError, match=told):
        asked(project)


def test_a_gate_that_the_settings_turn_off_is_refused(project: Project) -> None:
    (project.root / "pytest.ini").write_text("[pytest]\nt2e_gate = off\n", encoding="utf-8")
    told = (
        rf"^t2e_gate = off in the pytest settings of {project.root}: an adapter is promoted by the gate's "
        r"verdict alone; name one, as in --t2e-gate calibrated \(behind the -- of trace2evolve evolve\)$"
    )
    with pytest.raises(ConfigError, match=told):
        asked(project)
    assert asked(project, "--t2e-gate=strict").session == ("--t2e-gate=strict",)


def test_fresh_simulations_follow_the_policy(project: Project) -> None:
    assert fresh_of(project, []) == 640
    assert fresh_of(project, ["--t2e-confirm=8"]) == 8
    assert fresh_of(project, ["--t2e-gate=strict"]) == 0
    (project.root / "policies").mkdir()
    (project.root / "policies" / "mine.toml").write_text("confirm = 20\n", encoding="utf-8")
    (project.root / "pytest.ini").write_text("[pytest]\nt2e_gate = mine\n", encoding="utf-8")
    assert fresh_of(project, []) == 20
    (project.root / "policies" / "mine.toml").write_text("[checks.of_a_plugin]\n", encoding="utf-8")
    assert fresh_of(project, []) == 640, "only pytest knows a plugin's checks"
    with pytest.raises(PolicyError, match=r"^unknown gate policy 'yours'"):
        fresh_of(project, ["--t2e-gate=yours"])


def test_fresh_simulations_of_a_run_are_counted(tmp_path: Path) -> None:
    write_results(tmp_path / "one", "r", count=3)
    write_results(tmp_path / "one" / "fresh" / "baseline", "f", count=2)
    write_results(tmp_path / "several" / "a", "r", count=1)
    write_results(tmp_path / "several" / "b", "r", count=1)
    write_results(tmp_path / "several" / "b" / "fresh" / "candidate", "f", count=4)
    assert simulations_in(tmp_path / "one") == 5
    assert simulations_in(tmp_path / "several") == 6


def test_a_base_talks_in_the_sessions_from_wherever_the_user_stands(project: Project, tmp_path: Path) -> None:
    here = tmp_path / "elsewhere"
    shutil.copytree(embedded_model(), here / "m")
    order = asked(project, base=Path("m"), here=here)
    assert order.base.path == here / "m"
    assert order.session == (f"--t2e-model={here / 'm'}",)
    assert asked(project).session == (), "the embedded model talks where nobody is named"
    project.suite_path("b").write_text(
        'provider = "trace2evolve"\ndomain = "support"\n[splits]\ndiscovery = ["1", "2", "3"]\n'
    )
    assert simulations_of(project, asked(project).session) == 6
    assert simulations_of(project, order.session) == 6 + 3, "a model can play customers without a script"
    spoken = asked(project, "--t2e-user-model=m").session
    assert simulations_of(project, spoken) == 6, "the embedded model talks to none but those with a script"


def test_a_customers_model_in_a_folder_is_where_the_user_said(project: Project, tmp_path: Path) -> None:
    here = tmp_path / "elsewhere"
    shutil.copytree(embedded_model(), here / "m")
    for written in ("./m", "m", str(here / "m")):
        found = asked(project, "--t2e-user-model", written, here=here).session
        assert found == (f"--t2e-user-model={here / 'm'}",)
    assert asked(project, "--t2e-user-model=far", here=here).session == ("--t2e-user-model=far",)


def test_suites_of_several_domains_are_refused_before_they_are_run(project: Project) -> None:
    write_suites(project.root, a="support", c="retail")
    told = (
        r"^suites of several domains would be run: a \(support\), c \(retail\); capabilities are "
        r"learnt from one: name its suites, as in --t2e-suite a \(behind the -- of trace2evolve evolve\)$"
    )
    with pytest.raises(ConfigError, match=told):
        asked(project)
    assert asked(project, "--t2e-suite=c").session == ("--t2e-suite=c",)


def test_a_run_says_which_suites_the_adapters_run(project: Project) -> None:
    run = project.root / "run"
    for suite in ("a", "b"):
        write_results(run / suite, "r1", suite)
    assert asked(project, "-n2", from_run="run").session == ("-n2", "--t2e-suite=a", "--t2e-suite=b")
    assert asked(project, from_run="run/b").session == ("--t2e-suite=b",)
    assert asked(project, "--t2e-suite=a", from_run="run").session == ("--t2e-suite=a",)
    told = r"^--t2e-suite a: run b is of b, and with that an adapter is compared; name those, or none$"
    with pytest.raises(ConfigError, match=told):
        asked(project, "--t2e-suite=a", from_run="run/b")


def test_a_run_of_several_domains_is_refused(project: Project) -> None:
    run = project.root / "run"
    write_results(run / "a", "r1", "a")
    write_results(run / "c", "r1", "c", domain="retail")
    told = rf"^run run is of several domains: a \(support\), c \(retail\); .* as in --from-run {run / 'a'}$"
    with pytest.raises(ConfigError, match=told):
        asked(project, from_run="run")


def test_runs_of_one_name_are_evolutions_of_their_own(project: Project) -> None:
    write_results(project.root / "one" / "out", "r1", count=2)
    write_results(project.root / "two" / "out", "r2", count=2)
    first, second = (asked(project, from_run=f"{name}/out").name for name in ("one", "two"))
    assert first != second
    assert asked(project, from_run="one/out").name == first
    write_results(project.root / "one" / "out", "r1", count=1)
    assert asked(project, from_run="one/out").name != first


@pytest.mark.parametrize("changed", ["text", "lock", "environment", "policy", "settings"])
def test_where_anything_changed_it_is_another_evolution(
    project: Project, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    (project.root / "policies").mkdir()
    policy = project.root / "policies" / "mine.toml"
    policy.write_text("alpha = 0.05\n", encoding="utf-8")
    session = () if changed == "settings" else ("--t2e-gate=mine",)
    before = asked(project, *session).name
    assert asked(project, *session).name == before
    if changed == "text":
        write_candidate(project.root / "candidates", "v6", text="Be kinder.")
    elif changed == "lock":
        write_suites(project.root, policy="p2", a="support", b="support")
    elif changed == "environment":
        monkeypatch.setattr(PreconditionVerification, "version", PreconditionVerification.version + 1)
    elif changed == "policy":
        policy.write_text("alpha = 0.01\n", encoding="utf-8")
    else:
        (project.root / "pytest.ini").write_text("[pytest]\nt2e_gate = mine\n", encoding="utf-8")
    assert asked(project, *session).name != before
