"""Whole sessions with a project's own agent: kills, stores, budgets, old commits and baselines."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.evidence import SLOT_USER
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from pytest_trace2evolve.utils.git import checked_out
from tests.attack.sessions import Done, Sessions
from tests.own_agents import http_server
from tests.patience import gone, until

HOTEL = '''
from pytest_trace2evolve import World

class HotelTools:
    def __init__(self, db: dict) -> None:
        self.db = db

    def get_booking(self, booking_id: str) -> dict:
        """Look a booking up."""
        return self.db["bookings"][booking_id]

    def cancel_booking(self, booking_id: str) -> str:
        """Cancel a booking."""
        self.db["bookings"][booking_id]["status"] = "cancelled"
        return f"Booking {booking_id} is cancelled."

bookings = {f"B{n}": {"status": "confirmed"} for n in range(10, 20)}
world = World.from_tools(HotelTools, data={"bookings": bookings}, policy="Ask for consent first.")
'''

BOT = """
import json, os, urllib.request
from pathlib import Path

def make(tools, candidate):
    folder = Path(os.environ["T2E_TEST_PIDS"])
    (folder / str(os.getpid())).touch()
    tools = {tool.__name__: tool for tool in tools}
    messages = [{"role": "system", "content": candidate.prompt}]

    def ask():
        body = {"model": candidate.model or "m", "messages": messages, **candidate.parameters}
        request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)["choices"][0]["message"]

    def run(message):
        messages.append({"role": "user", "content": message})
        while True:
            reply = ask()
            messages.append(reply)
            if not reply.get("tool_calls"):
                return reply["content"]
            for call in reply["tool_calls"]:
                result = tools[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return run
"""

SETTINGS = """
[tool.trace2evolve]
agent = "app.bot:make"
world = "app.hotel:world"

[tool.pytest.ini_options]
t2e_suites = "suites"
addopts = "-p no:cacheprovider"
"""

TASKS = [
    {
        "id": f"cancel-{number}",
        "user": {"goal": f"Please cancel booking B{number}.", "knows": {"booking_id": f"B{number}"}},
        "expect": {"data": {"bookings": {f"B{number}": {"status": "cancelled"}}}, "says": ["cancelled"]},
    }
    for number in (10, 11, 12)
]


def play(request: ChatRequest) -> Reply:
    """A model that asks for consent, and cancels; a prompt with `lazy` makes it do nothing."""
    last = request.messages[-1]
    number = re.search(r"B\d+", json.dumps(request.messages[1:]))
    assert number
    if "lazy" in request.system:
        return Reply("Done: it is settled. Goodbye.")
    if last["role"] == "tool":
        return Reply(f"{last['content']} Anything else?")
    if "yes" in last["content"].lower():
        return Reply(tool_calls=(("cancel_booking", {"booking_id": number[0]}),))
    return Reply(f"Shall I cancel booking {number[0]}?")


class Project:
    """A project with its own world and agent, in its own folder."""

    def __init__(self, root: Path, sessions: Sessions) -> None:
        self.root = root
        self.sessions = sessions
        self.pids = root / "pids"
        self.pids.mkdir(parents=True)
        self.write("pyproject.toml", SETTINGS)
        self.write("app/__init__.py", "")
        self.write("app/hotel.py", HOTEL)
        self.write("app/bot.py", BOT)
        self.write("tasks.yaml", json.dumps(TASKS))
        self.write("suites/hotel.toml", 'tasks = "tasks.yaml"\ntrials = 1\n')
        self.write("prices.toml", "[m]\ninput = 1.0\noutput = 2.0\n")
        self.candidate("v0")
        assert sessions.run(root, "trace2evolve", "lock").status == 0

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def candidate(self, name: str, *lines: str, text: str = "") -> None:
        self.write(f"candidates/{name}.md", "\n".join(["---", f"id: {name}", *lines, "---", text, ""]))

    def run(self, server: ChatServer | None, *arguments: str, **options: Any) -> Done:
        """Run a session; `arguments` begin with the candidate."""
        environment = {
            "OPENAI_BASE_URL": server.base_url if server else "http://127.0.0.1:9/v1",
            "T2E_TEST_PIDS": str(self.pids),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        command = ("pytest", "--candidate", *arguments, "--t2e-concurrency=1")
        return self.sessions.run(self.root, *command, environment=environment, **options)

    def assert_no_process_is_left(self) -> None:
        assert all(gone(int(path.name)) for path in self.pids.iterdir())


@pytest.fixture
def project(tmp_path: Path, sessions: Sessions) -> Project:
    return Project(tmp_path / "project", sessions)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(play) as server:
        yield server


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


OFF = "--t2e-gate=off"
REQUESTS = 9
"""The requests of one run: three for each of three tasks."""


def test_a_killed_run_pays_nothing_twice(project: Project, server: ChatServer) -> None:
    for n_served in (1, 2, 4, 5, 7, 8):

        def kill(pid: int, n_served: int = n_served) -> None:
            server.release(n_served - server.count.served)
            # The next request arrives after the last answer was stored.
            until(
                lambda: (server.count.served == n_served and server.count.concurrent == 1) or has_ended(pid)
            )
            os.killpg(pid, signal.SIGKILL)

        server.hold()
        done = project.run(server, "v0", OFF, meanwhile=kill)
        assert done.status == -9, done.text
        project.assert_no_process_is_left()
        until(lambda: server.count.concurrent == 0)
    server.release()
    done = project.run(server, "v0", OFF)
    assert "3 passed" in done.text, done.text
    project.assert_no_process_is_left()
    distinct = {json.dumps(request, sort_keys=True) for request in server.requests}
    assert server.count.served == len(distinct) == REQUESTS
    # The run has made all its simulations, so another run makes new ones.
    done = project.run(server, "v0", OFF)
    assert "3 passed" in done.text, done.text
    assert server.count.served == 2 * REQUESTS


def test_a_change_outside_the_code_is_measured_and_more_trials_continue_a_test(
    project: Project, server: ChatServer
) -> None:
    project.write("suites/hotel.toml", 'estimand = "suite"\n[splits]\nheldout = { tasks = "tasks.yaml" }\n')
    assert project.sessions.run(project.root, "trace2evolve", "lock").status == 0
    project.candidate("v1", "parent: v0", text="Be quick.")
    project.run(server, "v0", OFF, "--t2e-trials=1", "--t2e-save-baseline=v0")
    first = project.run(server, "v1", "--t2e-trials=1")
    assert "INCONCLUSIVE" in first.text, first.text
    repeat = project.run(server, "v1", "--t2e-trials=1")
    assert "3 simulations to make, 3 finished before" not in repeat.text
    project.run(server, "v0", OFF, "--t2e-trials=2", "--t2e-save-baseline=v0", "--t2e-baseline-mode=update")
    project.run(server, "v1", "--t2e-trials=2", "-k", "cancel-10")  # ends without a verdict, and so counts
    n_served = server.count.served
    project.run(server, "v1", "--t2e-trials=2")
    assert server.count.served == n_served + 2 * REQUESTS
    done = project.sessions.run(project.root, "trace2evolve", "ledger", "--json")
    (split,) = json.loads(done.text)["splits"]
    verdicts = [entry for entry in split["entries"] if entry["kind"] == "evaluation"]
    assert [(entry["look"], entry["analysis"], bool(entry["repeats"])) for entry in verdicts] == [
        (1, 1, False),
        (1, 1, True),
        (1, 3, False),
    ]
    draws = [entry for entry in split["entries"] if entry["kind"] == "draw"]
    assert {entry["made"] for entry in draws} == {"resumable"}
    assert len({entry["draw"] for entry in draws}) == len(draws) == 6
    # The agent behaves differently, although neither its code nor its candidate changed.
    with ChatServer(lambda request: Reply("Done: it is settled. Goodbye.")) as broken:
        done = project.run(broken, "v1", "--t2e-trials=2", "--t2e-goal=no-regression")
        assert broken.count.served > 0
    assert "DISCARD" in done.text, done.text


def test_runs_of_other_goals_and_policies_are_looks(project: Project, server: ChatServer) -> None:
    project.write("suites/hotel.toml", 'estimand = "suite"\n[splits]\nheldout = { tasks = "tasks.yaml" }\n')
    assert project.sessions.run(project.root, "trace2evolve", "lock").status == 0
    project.candidate("v1", "parent: v0", text="Be quick.")
    project.run(server, "v0", OFF, "--t2e-trials=2", "--t2e-save-baseline=v0")
    for arguments in (
        ("no-regression",),
        ("hold",),
        ("no-regression", "--t2e-gate=strict"),
        ("no-regression",),
    ):
        done = project.run(server, "v1", "--t2e-trials=2", f"--t2e-goal={arguments[0]}", *arguments[1:])
        assert "level is lower" not in done.text or arguments[0] == "hold", done.text
    done = project.run(server, "v1", "--t2e-trials=2")
    assert "(test 1, analysis 5, level 0.0001;" in done.text, done.text
    assert "4 other draws of this split could have been chosen instead, so the level is lower:" in done.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_and_is_reported(
    project: Project, server: ChatServer, number: signal.Signals
) -> None:
    def interrupt(pid: int) -> None:
        server.release(3)
        until(lambda: (server.count.served == 3 and server.count.concurrent == 1) or has_ended(pid))
        os.kill(pid, number)

    server.hold()
    done = project.run(server, "v0", OFF, meanwhile=interrupt)
    assert done.status == 2, done.text
    assert "rerun the same command to resume" in done.text, done.text
    project.assert_no_process_is_left()


def test_stores_of_answers(project: Project, server: ChatServer) -> None:
    done = project.run(server, "v0", OFF, "--t2e-cache", "--t2e-record=tape.jsonl")
    assert "9 answers" in done.text, done.text
    done = project.run(server, "v0", OFF, "--t2e-cache", "--t2e-fresh")
    assert "3 passed" in done.text, done.text
    assert server.count.served == REQUESTS
    header = json.loads((project.root / "tape.jsonl").read_text().partition("\n")[0])
    assert header["agent"]["implementation"] == "app.bot:make"
    assert header["user"]["implementation"] == "script"
    done = project.run(None, "v0", OFF, "--t2e-playback=tape.jsonl")
    assert "3 passed" in done.text, done.text
    assert done.status == 0
    project.candidate("v1", "parent: v0", text="Be quick.")
    done = project.run(None, "v1", OFF, "--t2e-playback=tape.jsonl")
    assert "cassette tape.jsonl was recorded with candidate 'v0'" in done.text
    assert "the cassette has no answer to a request of the agent" in done.text


def test_budgets_stop_an_opaque_agent(project: Project, server: ChatServer) -> None:
    done = project.run(server, "v0", OFF, "--t2e-max-tokens=100")
    assert "tokens of --t2e-max-tokens 100" in done.text, done.text
    assert 0 < server.count.served < REQUESTS
    done = project.run(server, "v0", OFF, "--t2e-max-cost=0.000001", "--t2e-fresh")
    assert "of --t2e-max-cost 1e-06" in done.text, done.text
    n_served = server.count.served
    project.write("prices.toml", "[other]\ninput = 1.0\noutput = 2.0\n")
    done = project.run(server, "v0", OFF, "--t2e-max-cost=5", "--t2e-fresh")
    assert "--t2e-max-cost needs the price of model 'm', which the agent called" in done.text
    assert done.status not in (0, 1)
    assert server.count.served == n_served
    server.hold()
    done = project.run(server, "v0", OFF, "--t2e-max-minutes=0.02", "--t2e-fresh")
    assert "--t2e-max-minutes 0.02 is exceeded" in done.text, done.text
    server.release()
    done = project.run(server, "v0", OFF, "-ot2e_requests_per_minute=600", "--t2e-fresh")
    assert "3 passed" in done.text, done.text
    project.assert_no_process_is_left()


def test_errors_of_the_endpoint(project: Project) -> None:
    with ChatServer(play, keys=["another"]) as server:
        done = project.run(server, "v0", OFF)
        assert done.text.count("401 Incorrect API key provided.; check OPENAI_API_KEY") >= 1, done.text
        assert "Traceback" not in done.text
        assert done.status not in (0, 1)
    with ChatServer(lambda request: Reply(error=(503, "down"))) as server:
        done = project.run(server, "v0", OFF)
        assert "the agent's model did not answer; 503 (details are not shown" in done.text, done.text
        assert "failed" not in done.text


def test_an_agent_that_cannot_be_imported_is_one_error(project: Project) -> None:
    project.write("app/bot.py", "import nothing_like_it\n")
    done = project.run(None, "v0", OFF)
    assert done.status == 4
    assert done.text.count("nothing_like_it") == 1, done.text
    assert "agent 'app.bot:make' cannot be imported: ModuleNotFoundError" in done.text
    assert 'app/bot.py", line 1' in done.text
    assert not list((project.root / ".trace2evolve").rglob("*.journal"))


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_an_old_commit_runs_and_confirms_a_regression(project: Project, server: ChatServer) -> None:
    """The agent of the working tree is worse than that of the commit, which is the baseline."""
    root = project.root
    project.write(".gitignore", ".trace2evolve\npids\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    commit = git(root, "rev-parse", "HEAD")
    project.write("app/bot.py", BOT.replace('"content": candidate.prompt', '"content": "lazy"'))
    project.candidate("old", f"ref: {commit[:12]}")
    done = project.run(server, "old", OFF, "--t2e-save-baseline=old")
    assert "3 passed" in done.text, done.text
    project.candidate("new", "parent: old")
    done = project.run(server, "new", "--t2e-goal=no-regression", "-ot2e_max_reruns=99")
    assert "not confirmed" not in done.text, done.text
    assert "DISCARD" in done.text
    assert done.status == 1
    # The old agent also ran afresh.
    assert sum("lazy" not in json.dumps(request) for request in server.requests) > REQUESTS
    project.candidate("lost", "ref: 0123456789")
    done = project.run(server, "lost", OFF)
    assert done.status == 4
    assert "commit '0123456789' is not in the git repository" in done.text
    project.assert_no_process_is_left()


def test_a_link_out_of_the_project_cannot_be_checked_out(tmp_path: Path) -> None:
    (tmp_path / "passwords").symlink_to("/etc/passwd")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    with pytest.raises(ConfigError, match=r"commit 'HEAD' cannot be checked out in .*'passwords'"):
        checked_out(tmp_path, "HEAD")
    assert not [*(tmp_path / ".trace2evolve" / "commits").iterdir()]


def test_an_agent_of_the_project_does_not_run_on_a_cluster(project: Project) -> None:
    done = project.run(None, "v0", OFF, "--t2e-ray=auto")
    assert done.status == 4
    text = " ".join(done.text.split())
    assert "agent 'app.bot:make' runs in processes of this machine, which --t2e-ray cannot move" in text


def test_a_draw_that_cannot_be_ended_costs_no_result(project: Project, server: ChatServer) -> None:
    project.write(
        "conftest.py",
        "from pytest_trace2evolve.session.draws import Draws\n\n\n"
        "def end(draws):\n    raise OSError('the disk is full')\n\n\nDraws.end = end\n",
    )
    done = project.run(server, "v0", OFF)
    text = " ".join(done.text.split())
    assert "3 passed" in text, text
    assert "note: the next run may reuse these simulations: the disk is full; give it --t2e-fresh" in text


def test_a_reference_agent_has_no_commit(project: Project) -> None:
    project.candidate("old", "ref: 0123456")
    done = project.run(None, "old", OFF, "--t2e-agent=oracle")
    assert done.status == 4
    assert "candidate 'old' sets ref, but this run's agent is not named by an import path; give" in done.text


def test_evidence_records_the_user_of_written_tasks(project: Project, server: ChatServer) -> None:
    for name, agent in (("live", "app.bot:make"), ("gold", "oracle")):
        project.run(server, "v0", OFF, f"--t2e-agent={agent}", f"--t2e-save-baseline={name}")
        baseline = (project.root / "baselines" / "hotel" / f"{name}.json").read_text(encoding="utf-8")
        assert json.loads(baseline)["provenance"]["user"]["implementation"] == SLOT_USER


def test_the_agent_is_imported_from_where_its_code_was_identified(
    project: Project, server: ChatServer
) -> None:
    project.write("src/double.py", BOT)
    project.write("double.py", "raise OSError\n")
    done = project.run(server, "v0", OFF, "--t2e-agent=double:make", "-o", "pythonpath=src .")
    assert "3 passed" in done.text, done.text


def test_an_agent_that_is_edited_during_a_run_is_not_scored_further(
    project: Project, server: ChatServer
) -> None:
    edit = "Path(__file__).write_text(Path(__file__).read_text() + 'edited = True')"
    project.write("app/bot.py", BOT.replace("    return run\n", f"    {edit}\n    os._exit(1)\n"))
    done = project.run(server, "v0", OFF)
    assert "the code of agent 'app.bot:make' changed during the run (app/bot.py); run again, and" in done.text
    assert not re.search("cancel-1[12] - reward", done.text), done.text
    assert done.status == 2


def test_a_model_that_the_agents_code_changes_is_shown(project: Project, server: ChatServer) -> None:
    done = project.run(server, "v0", OFF, "--t2e-save-baseline=v0")
    assert "3 passed" in done.text, done.text
    project.write("app/bot.py", BOT.replace('candidate.model or "m"', '"n"'))
    project.candidate("v1", "parent: v0")
    done = project.run(server, "v1", "--t2e-goal=no-regression", "-v")
    text = " ".join(done.text.split())
    assert "hotel: the agent called m on the baseline and n on the candidate" in text, done.text
    assert ", called m; user" in text, done.text
    assert ", called n; user" in text
    assert done.status == 0
    # Equal models need no note.
    project.candidate("v2", "parent: v1")
    done = project.run(server, "v1", OFF, "--t2e-save-baseline=v1")
    done = project.run(server, "v2", "--t2e-baseline=v1", "--t2e-goal=no-regression", "-v")
    text = " ".join(done.text.split())
    assert ", called n; user" in text, done.text
    assert "the agent called" not in text


def test_another_limit_of_a_step_is_another_measurement(project: Project, server: ChatServer) -> None:
    done = project.run(server, "v0", OFF, "--t2e-save-baseline=v0", "-ot2e_call_timeout=500")
    assert "3 passed" in done.text, done.text
    path = project.root / "baselines/hotel/v0.json"
    assert json.loads(path.read_text())["provenance"]["call_timeout"] == 500
    project.candidate("v1", "parent: v0")
    done = project.run(server, "v1", "--t2e-goal=no-regression")
    assert "call timeout 500.0 and 600.0" in " ".join(done.text.split()), done.text
    assert done.status == 4
    done = project.run(server, "v1", "--t2e-goal=no-regression", "-ot2e_call_timeout=500")
    assert done.status == 0, done.text


def test_candidates_with_different_agents_and_reruns_of_the_baseline(
    project: Project, server: ChatServer
) -> None:
    project.write("app/bot.py", f"{BOT}\nprint('old', flush=True)\n")
    lazy = BOT.replace('"content": candidate.prompt', '"content": "lazy"')
    project.write("app/other.py", f"{lazy}\nprint('new', flush=True)\n")
    done = project.run(server, "v0", OFF, "--t2e-save-baseline=v0")
    assert "3 passed" in done.text, done.text
    project.candidate("v1", "parent: v0", "agent: app.other:make")
    n_served = server.count.served
    done = project.run(server, "v1", "--t2e-goal=no-regression", "-ot2e_max_reruns=99")
    assert "not confirmed" not in done.text, done.text
    assert done.status == 1, done.text
    prompts = [request["messages"][0]["content"] for request in server.requests[n_served:]]
    assert {"lazy", "Ask for consent first."} == {*prompts}
    # The output of both agents lies in the folder of the run.
    logs = (project.root / ".trace2evolve" / "agents").glob("*-v1-*/*.log")
    assert {path.read_text(encoding="utf-8") for path in logs} == {"old\n", "new\n"}


def test_an_agent_behind_http(project: Project) -> None:
    version = b'{"version": "1"}'

    def answer(method: str, record: Any) -> tuple[int, bytes]:
        if method == "GET":
            return 200, version
        if "end" in record:
            return 200, b"{}"
        if "results" in record:
            return 200, json.dumps({"reply": record["results"][0]["content"] + " Anything else?"}).encode()
        number = re.search(r"B\d+", record["message"])
        if number is None:
            return 200, b'{"reply": "Goodbye."}'
        call = {"id": "1", "name": "cancel_booking", "arguments": {"booking_id": number[0]}}
        return 200, json.dumps({"calls": [call]}).encode()

    with http_server(answer) as url:
        secret_url = url.replace("//", "//me:secret@")
        done = project.run(None, "v0", OFF, f"--t2e-agent={secret_url}", "--t2e-save-baseline=v0")
        assert "3 passed" in done.text, done.text
        assert "cannot be identified" not in done.text
        baseline = (project.root / "baselines/hotel/v0.json").read_text()
        assert "secret" not in baseline + done.text
        assert json.loads(baseline)["provenance"]["agent"]["code"]["fingerprint"]
        version = b"{}"
        done = project.run(None, "v0", OFF, f"--t2e-agent={url}")
        assert f"the code of its agent cannot be identified ({url} tells no version" in done.text, done.text
    done = project.run(None, "v0", OFF, f"--t2e-agent={url}")
    assert done.status == 4
    assert "cannot be reached" in done.text
