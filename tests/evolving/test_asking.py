"""What an evolution is asked for: options with which it could not end are rejected before anything is run."""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.improve import add_evolve_options
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, LockError, MissingExtraError, PolicyError
from pytest_trace2evolve.improve.order import EvolveOrder
from pytest_trace2evolve.improve.request import fresh_of, read_order, run_option_values, simulations_of
from pytest_trace2evolve.improve.runs import refuse_partial, simulations_in
from pytest_trace2evolve.project.lock import LOCK_NAME, Lock, SuiteLock, render_lock
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import ini_value
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.session.planner import resources_of
from pytest_trace2evolve.session.settings import Context
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


def request_of(**given: Any) -> argparse.Namespace:
    """The options of a command line; what is not given has its default."""
    parser = argparse.ArgumentParser()
    add_evolve_options(parser)
    request = parser.parse_args([])
    vars(request).update({"candidate": None, "from_run": None, "base": None} | given)
    return request


def asked(project: Project, *session: str, here: Path | None = None, **given: Any) -> EvolveOrder:
    """The order of a command line; what is not given is as the command has it."""
    request = request_of(**{"candidate": None if "from_run" in given else "v6", **given})
    fresh = Project(root=project.root, suites_folder=project.suites_folder)  # reads everything anew
    context = Context(
        root=project.root,
        here=here or project.root,
        agent=ini_value(project.root, "t2e_agent") or "",
        gate=ini_value(project.root, "t2e_gate") or "",
    )
    return read_order(request, run_option_values(session), context, resources_of(fresh), Environments())


def fresh(project: Project, *session: str) -> int:
    """Fresh simulations of one run."""
    return fresh_of(resources_of(project), asked(project, *session).options)


def simulations(project: Project, order: EvolveOrder) -> int:
    """Simulations of one run."""
    return simulations_of(project, order.options)


@pytest.mark.parametrize(
    ("session", "told"),
    [
        (
            ["--candidate=v5"],
            "--candidate=v5: an evolution sets this option of its runs itself; leave it out",
        ),
        (["--t2e-run-folder", "x"], "--t2e-run-folder: an evolution sets this option of its runs itself"),
        (["--t2e-baseline=v0"], "--t2e-baseline=v0: an evolution sets this option of its runs itself"),
        (
            ["--t2e-model=./m"],
            "--t2e-model=./m: the base talks in the runs of an evolution; name it with --base",
        ),
        (["--t2e-replay=x"], "--t2e-replay=x: the base model would not talk, and adapters are of the base"),
        (["--t2e-agent=oracle"], "--t2e-agent=oracle: the base model would not talk, and adapters are of"),
        (["--t2e-stages=2,4"], "--t2e-stages=2,4: a run that may stop early is no baseline of the adapters'"),
        (["--t2e-cache"], "--t2e-cache: it keeps the answers of one model, and the routed candidate asks"),
        (["--t2e-record=x"], "--t2e-record=x: an evolution makes several runs, and only one of them could"),
        (["--t2e-save-baseline=x"], "--t2e-save-baseline=x: an evolution makes several runs, and only one"),
        (["--t2e-route=turn"], "--t2e-route=turn: it has no effect in runs without a routed candidate"),
        (
            ["--t2e-inconclusive=pass"],
            "--t2e-inconclusive=pass: it has no effect in the runs of an evolution",
        ),
        (["-n", "2"], "-n: no option that the runs of an evolution take; leave it out"),
        (["-k", "note"], "-k: no option that the runs of an evolution take; leave it out"),
        (["--timeout=5"], "--timeout=5: no option that the runs of an evolution take; leave it out"),
        (["--t2e-trails", "4"], "--t2e-trails: no option that the runs of an evolution take; did you mean"),
        (["suites/a.toml"], "suites/a.toml: no option that the runs of an evolution take; leave it out"),
        (["--t2e-trials"], "options of the runs: argument --t2e-trials: expected one argument"),
        (
            ["--t2e-gate=off"],
            "--t2e-gate=off: an adapter is promoted by the gate's verdict alone; leave it out",
        ),
        (["--t2e-gate", "off"], "--t2e-gate=off: an adapter is promoted by the gate's verdict alone"),
        (["--t2e-goal=no-regression"], "--t2e-goal=no-regression: an evolution keeps what the gate promotes"),
        (["--t2e-gate="], "--t2e-gate is empty; leave it out or give a value"),
        (["--t2e-trials", "x"], "options of the runs: argument --t2e-trials: "),
        (["--t2e-trials=0"], "options of the runs: argument --t2e-trials: "),
        (["--t2e-confirm=-1"], "options of the runs: argument --t2e-confirm: "),
    ],
)
def test_options_with_which_an_evolution_could_not_end_are_rejected(
    project: Project, session: list[str], told: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}"):
        asked(project, *session)


@pytest.mark.parametrize(
    "session",
    [
        ["--t2e-suite=a", "--t2e-temperature=1"],
        ["--t2e-temperature", "1.0", "--t2e-suite", "a"],
        ["--t2e-temperature=0.5", "--t2e-suite=a", "--t2e-suite=a", "--t2e-temperature=1e0"],
        ["--t2e-suite=a", "--t2e-temperature=1", "--t2e-concurrency=3"],
    ],
)
def test_the_same_options_however_written_are_one_evolution(project: Project, session: list[str]) -> None:
    assert asked(project, *session).name == asked(project, "--t2e-suite=a", "--t2e-temperature=1").name


@pytest.mark.parametrize(("module", "extra"), [("trl", "train"), ("peft", "train"), ("matplotlib", "plot")])
def test_a_missing_extra_is_told_before_anything_is_played(
    project: Project, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    told = rf"^'{module}' is not installed; run: pip install 'pytest-trace2evolve\[{extra}\]'$"
    with pytest.raises(MissingExtraError, match=told):
        asked(project)


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
    assert asked(project, base=embedded_model()).options.live is not None
    ini.unlink()
    path = project.suite_path("b")
    path.write_text(f'default_agent = "nop"\n{path.read_text()}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"suites/b.toml: default_agent = nop: that agent would talk"):
        asked(project)
    assert asked(project, "--t2e-suite=a").options.suites == ("a",)


def test_suites_without_a_split_that_decides_are_refused(project: Project) -> None:
    write_suites(project.root, split="discovery", a="support")
    with pytest.raises(
        ConfigError, match=r"^no split decides in the suites that would be run: a \(disc.*; name"
    ):
        asked(project)
    write_suites(project.root, split="development", a="support")
    assert asked(project).options.suites == ()


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
        r"verdict alone; name one, as in --t2e-gate calibrated \(for trace2evolve evolve, after --\)$"
    )
    with pytest.raises(ConfigError, match=told):
        asked(project)
    assert asked(project, "--t2e-gate=strict").options.gate == "strict"


def test_fresh_simulations_follow_the_policy(project: Project) -> None:
    assert fresh(project) == 640
    assert fresh(project, "--t2e-confirm=8") == 8
    assert fresh(project, "--t2e-gate=strict") == 0
    (project.root / "policies").mkdir()
    (project.root / "policies" / "mine.toml").write_text("confirm = 20\n", encoding="utf-8")
    (project.root / "pytest.ini").write_text("[pytest]\nt2e_gate = mine\n", encoding="utf-8")
    assert fresh(project) == 20
    (project.root / "policies" / "mine.toml").write_text("[checks.of_a_plugin]\n", encoding="utf-8")
    with pytest.raises(PolicyError, match="of_a_plugin"):
        fresh(project)
    with pytest.raises(PolicyError, match=r"^unknown gate policy 'yours'"):
        fresh(project, "--t2e-gate=yours")


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
    assert order.options.live is not None
    assert order.options.live.agent.folder == here / "m"
    assert asked(project).options.embedded is not None, "the embedded model talks if no agent is named"
    project.suite_path("b").write_text(
        'provider = "trace2evolve"\ndomain = "support"\n[splits]\ndiscovery = ["1", "2", "3"]\n'
    )
    assert simulations(project, asked(project)) == 6
    assert simulations(project, order) == 6 + 3, "a model can play customers without a script"


def test_a_customers_model_in_a_folder_is_where_the_user_said(project: Project, tmp_path: Path) -> None:
    here = tmp_path / "elsewhere"
    shutil.copytree(embedded_model(), here / "m")
    base = embedded_model()
    for written in ("./m", "m", str(here / "m")):
        order = asked(project, "--t2e-user-model", written, here=here, base=base)
        assert order.deciding["user-model"] == str(here / "m")
        assert order.options.live is not None
        assert order.options.live.user.folder == here / "m"
    order = asked(project, "--t2e-user-model=far", here=here, base=base)
    assert order.deciding["user-model"] == "far"


def test_suites_of_several_domains_are_refused_before_they_are_run(project: Project) -> None:
    write_suites(project.root, a="support", c="retail")
    told = (
        r"^suites of several domains would be run: a \(support\), c \(retail\); capabilities are "
        r"learnt from one: name its suites, as in --t2e-suite a \(for trace2evolve evolve, after --\)$"
    )
    with pytest.raises(ConfigError, match=told):
        asked(project)
    assert asked(project, "--t2e-suite=c").options.suites == ("c",)


def test_a_run_says_which_suites_the_adapters_run(project: Project) -> None:
    run = project.root / "run"
    for suite in ("a", "b"):
        write_results(run / suite, "r1", suite)
    assert asked(project, from_run="run").options.suites == ("a", "b")
    assert asked(project, from_run="run/b").options.suites == ("b",)
    assert asked(project, "--t2e-suite=a", from_run="run").options.suites == ("a",)
    told = r"^--t2e-suite a: run b is of b, and an adapter is compared with it; name those, or none$"
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
