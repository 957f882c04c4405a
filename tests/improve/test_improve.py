"""`trace2evolve improve`, as users run it, against a scripted endpoint on loopback."""

import html
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.improve.arena import SessionArena
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.ledger import Draw, Evaluation
from pytest_trace2evolve.records.verdict import Decision, Label
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.testing import ChatServer
from tests.improve.searches import (
    BAD,
    GOOD,
    IDLE,
    SIZE,
    RuleAgent,
    improve,
    rows,
    state,
    write_project,
    write_table,
)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_project(tmp_path)


def test_a_table_ends_with_the_good_sentence_promoted(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(project.root, BAD, GOOD, IDLE)
    with ChatServer(RuleAgent(project.root)) as server:
        assert improve(project, server, "--proposer", "table", "--table", str(table)) == 0
    found = {row["hypothesis"]: row for row in rows(project) if row["parent"] == "v0"}
    assert found[f"Adds: {GOOD}"]["status"] == "keep"
    assert found[f"Adds: {GOOD}"]["verdict"] == "promote"
    page = next(project.root.glob(".trace2evolve/improving/*/report.html")).read_text(encoding="utf-8")
    assert page.count('<circle class="keep"') == 1
    assert page.count('<circle class="discard"') == len(rows(project)) - 1
    assert all(row["hypothesis"] in html.unescape(page) for row in rows(project))
    assert found[f"Adds: {BAD}"]["status"] == "discard"
    assert found[f"Adds: {BAD}"]["verdict"].startswith("screened out after")
    kept = project.candidates[found[f"Adds: {GOOD}"]["candidate"]]
    assert (kept.parent, kept.instruction, kept.informed_by) == ("v0", f"- {GOOD}", ("small::discovery",))
    assert kept.frozen_at is not None
    ledger = ProjectLedger(project)
    (promotion,) = [entry for entry in ledger.entries if isinstance(entry, Evaluation)]
    assert (promotion.decision, promotion.label, promotion.look) == (Decision.PROMOTE, Label.CLEAN, 1)
    assert not ledger.problems
    # Only what was gated has drawn the sealed split.
    draws = {entry.candidate.id for entry in ledger.entries if isinstance(entry, Draw)}
    assert draws == {"v0", kept.id}
    report, progress = capsys.readouterr()
    assert f"{kept.id}: the gate's verdict is promote" in progress
    assert f"page: {project.root}" in progress
    assert "null arm (v0-null): +0.0 ± 0.0 points on 20 tasks" in report
    assert "the parent under another name, so equal answers show no noise" in report
    assert "best of 2 runs of v0" in report
    assert f"best: {kept.id}, after 1 promotion" in report
    # Both controls, the kept proposal in full, and less than that for all others together.
    assert state(project).simulations_of() < 3 * SIZE + 2 * SIZE + 6 * SIZE


def test_a_search_says_why_the_gate_did_not_promote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = write_project(tmp_path, size=12)
    table = write_table(tmp_path, GOOD)
    with ChatServer(RuleAgent(project.root)) as server:
        assert improve(project, server, "--proposer", "table", "--table", str(table)) == 0
    [row] = rows(project)
    assert row["verdict"] == "inconclusive"
    report, progress = capsys.readouterr()
    assert f"{row['candidate']}: heldout: reward_improved " in progress
    assert f"{row['candidate']}: inconclusive: heldout: reward_improved " in report


def test_a_search_that_is_killed_at_every_step_pays_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = (write_project(tmp_path / name) for name in ("whole", "killed"))
    table = ("--proposer", "table", "--table", str(write_table(tmp_path, BAD, GOOD)), "-ot2e_plateau=3")
    with ChatServer(RuleAgent(whole.root)) as server:
        assert improve(whole, server, *table) == 0
    served = server.count
    store, countdown = SessionArena._store, [0]

    def stored(arena: SessionArena, **changes: Any) -> None:
        store(arena, **changes)
        countdown[0] -= 1
        if countdown[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(SessionArena, "_store", stored)
    kills = 0
    with ChatServer(RuleAgent(killed.root)) as server:
        while True:
            countdown[0] = 1 + kills % 2  # one store alone can be the last one of an attempt
            if improve(killed, server, *table) == 0:
                break
            kills += 1
            assert kills < 100
    assert kills >= 8
    assert server.count.served == served.served
    assert rows(killed) == rows(whole)
    uses = [
        {name: (use.simulations, use.usage.calls) for name, use in state(one).sessions.items()}
        for one in (killed, whole)
    ]
    assert uses[0] == uses[1]


def answer(hypothesis: str, instruction: str) -> str:
    return json.dumps({"hypothesis": hypothesis, "instruction": instruction})


def test_bad_proposals_of_a_model_end_as_one_rejected_row_each(project: Project) -> None:
    sealed = json.loads((project.root / "cases" / "heldout.jsonl").read_text().splitlines()[0])
    users = sealed["initial_state"]["initialization_data"]["agent_data"]["users"]
    name = next(iter(users.values()))["name"]
    opening = sealed["user_scenario"]["instructions"]
    said = next(text for text in _texts(opening) if text.count(" ") > 8)
    reflections = {
        "no JSON": "I would rather not.",
        "a field too many": json.dumps({"hypothesis": "h", "instruction": "i", "reward": 1}),
        "empty": answer("It helps.", "  "),
        "no hypothesis": answer("", "Be brief."),
        "huge": answer("It helps.", "Be brief. " * 10_000),
        "control": answer("It helps.", "Be brief.\x1b[2J"),
        "the parent": answer("It helps.", ""),
        "id": answer("It helps.", f"Serve user {next(iter(users))} first."),
        "name": answer("It helps.", f"{name['first_name']} {name['last_name']} is always right."),
        "words": answer(f"Customers say: {said}", "Be brief."),
        "front matter": answer('It "helps": #1\n---\nid: v9', f"---\nid: v9\n---\n{GOOD}"),
    }
    agent = RuleAgent(project.root, list(reflections.values()))
    arguments = ["--proposer", "reflect", "--reflect-model", "reflector"]
    with ChatServer(agent) as server:
        status = improve(
            project,
            server,
            *arguments,
            f"-ot2e_reflect_base_url={server.base_url}",
            "--max-proposals",
            str(len(reflections)),
        )
        count = server.count
    assert status == 0
    found = rows(project)
    verdicts = dict(zip(reflections, sorted(found, key=lambda row: int(row["candidate"][3:])), strict=True))
    for kind in reflections.keys() - {"front matter"}:
        assert verdicts[kind]["status"] == "discard", kind
        assert verdicts[kind]["verdict"].startswith("rejected: "), kind
        assert not (project.root / "candidates" / f"{verdicts[kind]['candidate']}.md").exists()
    for kind in ("id", "name", "words"):
        assert "content of a sealed split" in verdicts[kind]["verdict"]
    # A text that looks like front matter is only a text.
    kept = project.candidates[verdicts["front matter"]["candidate"]]
    assert (kept.id, kept.parent) == (verdicts["front matter"]["candidate"], "v0")
    assert verdicts["front matter"]["status"] == "keep"
    assert len(agent.asked) == len(reflections)
    used = state(project).usage
    assert (used.calls, used.prompt_tokens) == (count.served, count.prompt_tokens)
    # The model sees conversations of discovery, and nothing else.
    shown = "\n".join(str(message["content"]) for request in agent.asked for message in request.messages)
    assert "## conversation 1" in shown
    assert sealed["id"] not in shown
    assert said not in shown
    assert "evaluation_criteria" not in shown


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--proposer", "table"], "--proposer table needs --table FILE"),
        (["--proposer", "reflect"], "--proposer reflect needs --reflect-model MODEL"),
        (["--proposer", "ablate"], "has no instruction, so --proposer ablate has nothing to drop"),
        (["--proposer", "parameters", "--table", "t.toml"], "--table has no effect without"),
        (["--proposer", "parameters", "--max-simulations", "50"], "one proposal needs 100 simulations"),
        (["--proposer", "parameters", "--max-cost", "1"], "--max-cost needs the price of model 'scripted'"),
        (["--proposer", "parameters", "--max-minutes", "0"], "--max-minutes 0: must be more than 0"),
        (["--proposer", "parameters", "--", "--t2e-gate", "off"], "only the gate's verdict can promote"),
        (["--proposer", "parameters", "--", "--t2e-goal", "no-regression"], "this goal proves nothing"),
        (["--proposer", "parameters", "--candidate", "v0+x"], "uses an adapter"),
        (["--proposer", "parameters", "--baseline", "v7"], "'v7' is neither a file nor a saved baseline"),
    ],
)
def test_what_cannot_work_is_rejected_before_anything_runs(
    project: Project, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    with ChatServer(RuleAgent(project.root)) as server:
        assert improve(project, server, *arguments) == 2
        assert not server.count.attempts
    error = capsys.readouterr().err
    assert problem in error
    assert not (project.root / ".trace2evolve" / "improving").exists()


@pytest.mark.parametrize("split", ["discovery", "heldout"])
def test_a_suite_needs_tasks_to_learn_from_and_tasks_that_decide(
    project: Project, capsys: pytest.CaptureFixture[str], split: str
) -> None:
    path = project.root / "suites" / "small.toml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith(split)))
    shutil.rmtree(project.root / "ledger", ignore_errors=True)
    from pytest_trace2evolve.cli.main import main

    assert main(["--root", str(project.root), "lock"]) == 0
    with ChatServer(RuleAgent(project.root)) as server:
        assert improve(project, server, "--proposer", "parameters") == 2
    wanted = {"discovery": "has no split to learn from", "heldout": "has no split that decides"}[split]
    assert wanted in capsys.readouterr().err
