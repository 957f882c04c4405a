"""Simulations on a simulated Ray cluster of three nodes, against an endpoint on loopback."""

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve import Project, Run, evaluate
from pytest_trace2evolve.api import SimulationFinished
from pytest_trace2evolve.engine.ray_executor import RayExecutor
from pytest_trace2evolve.errors import ConfigError, EndpointError
from pytest_trace2evolve.testing import ChatServer
from tests.e2e.test_doc_blocks import blocks
from tests.plugin.conftest import CONFTEST, REPOSITORY, DeskProject, command, project
from tests.project_modules import FOLDER
from tests.session.test_live import SECRET, SOLVED, key
from tests.session.test_provider_fields import thinking

__all__ = ["command", "key", "project"]

pytest.importorskip("ray")

STORE = 80_000_000
VOLATILE = ("id", "timestamp", "start_time", "end_time", "duration", "generation_time_seconds", "usage")
"""The endpoint counts tokens by characters, also of ids that it numbers."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of one CPU; the head has none, and no object is spilled to a disk."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as there:
        there.setenv("PYTHONPATH", os.pathsep.join(map(str, (FOLDER, REPOSITORY, REPOSITORY / "src"))))
        # The disk counts as full, so that objects that do not fit a store cannot be written there instead.
        system = {"automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 0.001}
        head = {
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": STORE,
            "_system_config": system,
        }
        found = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(3):
                found.add_node(num_cpus=1, object_store_memory=STORE)
            yield found
        finally:
            found.shutdown()


def run(
    project: DeskProject, executor: RayExecutor | None, server: ChatServer | None = None, **options: Any
) -> Run:
    """A run without a gate."""
    if server is not None:
        options |= {"model": "m", "base_url": server.base_url}
    options = {"candidate": "v0", "gate": "off", "concurrency": 24, **options}
    return evaluate(Project.find(project.root), executor=executor, **options)


def traces(done: Run) -> dict[tuple[str, int], Any]:
    """The stored simulations without what no two runs share, by task and trial."""
    found = {}
    for path in (done.plan.run_folder / "simulations").glob("*.json"):
        record = lasting(json.loads(path.read_text()))
        assert (record["task_id"], record["trial"]) not in found, "stored twice"
        found[record["task_id"], record["trial"]] = record
    return found


def usage_of_run(done: Run) -> dict[str, int]:
    """What a run says that its models used."""
    usage: dict[str, int] = json.loads((done.plan.run_folder / "run.json").read_text())["usage"]
    return usage


def lasting(value: Any) -> Any:
    """A record without what no two runs share."""
    if isinstance(value, dict):
        return {name: lasting(item) for name, item in value.items() if name not in VOLATILE}
    return [lasting(item) for item in value] if isinstance(value, list) else value


def measured(done: Run) -> dict[str, tuple[int, int, float | None]]:
    """Simulations, measured ones and the reward of each split."""
    metrics = done.outcomes[0].metrics
    return {name: (entry.simulations, entry.measured, entry.reward) for name, entry in metrics.items()}


def test_a_run_on_a_cluster_is_equal_to_a_local_one(cluster: Any, project: DeskProject) -> None:
    """Also with an endpoint that wants its reasoning back."""
    with ChatServer(thinking) as server:
        here = run(project, None, server, trials=5, seed=3)
        there = run(project, RayExecutor(cluster.address, per_actor=8), server, trials=5, seed=3, fresh=True)
    assert len(traces(here)) == 35
    assert traces(there) == traces(here)
    assert "reasoning_content" in json.dumps(list(traces(there).values()))
    assert measured(there) == measured(here)
    assert not there.notes


def test_the_page_on_clusters_shows_how_to_run_from_python(
    cluster: Any, project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = [block for block in blocks("live-runs", "Clusters") if "RayExecutor" in block]
    monkeypatch.chdir(project.root)
    names: dict[str, Any] = {}
    with ChatServer(SOLVED) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        exec(block.replace("HEAD:6379", cluster.address).replace('"v6"', '"v1"'), names)
    assert names["run"].outcomes[0].metrics["heldout"].reward == 1.0


def test_no_key_is_kept_by_the_cluster(cluster: Any, project: DeskProject) -> None:
    with ChatServer(SOLVED, keys={SECRET}) as server:
        done = run(project, RayExecutor(cluster.address), server)
    assert measured(done)["heldout"][2] == 1.0
    folder = Path(cluster.head_node.get_session_dir_path())
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 10
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_killed_nodes_lose_nothing_and_count_nothing_twice(cluster: Any, project: DeskProject) -> None:
    executor = RayExecutor(cluster.address, per_actor=8)
    done: list[Run] = []
    begun = threading.Event()

    def work() -> None:
        def on_event(event: object) -> None:
            if isinstance(event, SimulationFinished):
                begun.set()

        with ChatServer(SOLVED, latency=0.2) as server:
            done.append(run(project, executor, server, trials=40, on_event=on_event))
            counts.append(server.count.served)

    counts: list[int] = []
    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(120)
    for _ in range(2):  # in this thread, since Ray sets a signal handler for a new node
        cluster.remove_node(sorted(cluster.worker_nodes, key=id)[0], allow_graceful=False)
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
    thread.join()
    assert len(traces(done[0])) == 280
    assert measured(done[0]) == {"heldout": (160, 160, 1.0), "discovery": (120, 120, 1.0)}
    assert executor.losses in (1, 2)  # the run may end before the second node does
    assert executor.resumed >= 1
    assert f"{executor.resumed} were resumed on other processes" in "".join(done[0].notes)
    answers = usage_of_run(done[0])["calls"]
    # The endpoint counts answers on their way to a process that ended, and the run cannot.
    assert 0 <= counts[0] - answers <= executor.resumed


def test_agents_of_the_project_travel(cluster: Any, project: DeskProject) -> None:
    done = run(project, RayExecutor(cluster.address), candidate="v2", agent="listed", trials=2)
    assert measured(done) == measured(run(project, None, candidate="v2", agent="listed", trials=2))


ENDS = """
import os
from pytest_trace2evolve.agents.reference import NopAgent, OracleAgent
from pytest_trace2evolve.users.reference import GoldUser
from fake_world import FakeWorld


class Ends(OracleAgent):
    async def respond(self, history):
        os._exit(3)


def make(task, world, candidate, trial):
    return (Ends(task) if task.id == "note" else OracleAgent(task)), GoldUser(task)


def pytest_t2e_worlds(config):
    return {"fake": FakeWorld}


def pytest_t2e_agents(config):
    return {"listed": make}
"""


def test_an_agent_that_ends_its_process_is_lost_and_not_scored(cluster: Any, project: DeskProject) -> None:
    project.write("conftest.py", ENDS)
    executor = RayExecutor(cluster.address, per_actor=1)
    notes: list[str] = []

    def on_event(event: object) -> None:
        if isinstance(event, SimulationFinished):
            notes.append(event.record.note)

    done = run(project, executor, agent="listed", concurrency=1, on_event=on_event)
    assert measured(done) == {"heldout": (4, 3, 1.0), "discovery": (3, 3, 1.0)}
    assert executor.losses == 5
    assert "InfrastructureError: task 'note': its process on a Ray node ended 5 times" in notes


def test_budget_rate_limit_and_cache_are_of_the_whole_run(cluster: Any, project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        first = run(project, RayExecutor(cluster.address), server, cache=True, requests_per_minute=60_000)
        asked = server.count.served
        again = run(project, RayExecutor(cluster.address), server, cache=True, fresh=True)
        assert server.count.served == asked
        assert measured(again) == measured(first)
        before = server.count.prompt_tokens + server.count.completion_tokens
        limited = run(
            project, RayExecutor(cluster.address), server, trials=200, max_tokens=20_000, fresh=True
        )
        assert "--t2e-max-tokens 20000" in limited.exhausted_budget
        tokens = server.count.prompt_tokens + server.count.completion_tokens - before
        calls = server.count.served - asked
    used = usage_of_run(limited)
    assert (used["calls"], used["prompt_tokens"] + used["completion_tokens"]) == (calls, tokens)
    # No simulation begins that the rest of the budget does not suffice for.
    assert 10_000 < tokens < 30_000


def test_pytest_reports_the_same(cluster: Any, project: DeskProject) -> None:
    project.baseline("v0")
    with ChatServer(SOLVED) as server:
        common = ["--t2e-model=m", f"--t2e-base-url={server.base_url}", "--t2e-gate=off", "-n2", "-v"]
        here = project.spread(*common)
        there = project.spread(*common, "--t2e-fresh", f"--t2e-ray={cluster.address}")
    assert here.ret == there.ret == 0
    lines = [[line for line in map(plain, result.outlines) if line] for result in (here, there)]
    assert Counter(lines[0]) == Counter(lines[1])


def plain(line: str) -> str:
    """A line without what depends on the time, the worker or the run."""
    line = re.sub(r"^\[gw\d\] \[ *\d+%\] |\d+(\.\d+)?s\b|\d+:\d\d\b|=+", "", line)
    return (
        ""
        if re.search(r"runs/|open:|created:|workers|rerun|finished before|simulations at", line)
        else line.strip()
    )


# ---- what cannot work


def test_a_module_that_a_node_lacks_is_named(
    cluster: Any, project: DeskProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    project.write("conftest.py", "import only_here\n" + CONFTEST)
    with pytest.raises(ConfigError) as caught:
        run(project, RayExecutor(cluster.address), agent="listed")
    text = str(caught.value)
    assert re.match(r"node [\d.]+ of the Ray cluster cannot run the project: ", text)
    assert (
        "conftest.py:1: cannot be loaded by pytest: ModuleNotFoundError: No module named 'only_here'" in text
    )


def test_data_that_differ_on_a_node_are_named(cluster: Any, project: DeskProject) -> None:
    project.write(".gitignore", "data/\n")
    project.write("data/only.txt", "here")
    project.write(
        "conftest.py",
        "import pathlib\nTEXT = pathlib.Path(__file__).parent.joinpath('data/only.txt').read_text()\n"
        + CONFTEST,
    )
    with pytest.raises(ConfigError, match=r"cannot be loaded by pytest: FileNotFoundError"):
        run(project, RayExecutor(cluster.address), agent="listed")


OTHER = """
from pathlib import Path
__path__ = [{path!r}]
exec((Path(__path__[0]) / "__init__.py").read_text())
__version__ = "9.9"
"""


def test_another_version_on_a_node_is_named(
    cluster: Any, project: DeskProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pytest_trace2evolve"
    package.mkdir()
    (package / "__init__.py").write_text(OTHER.format(path=str(REPOSITORY / "src/pytest_trace2evolve")))
    path = os.pathsep.join(map(str, (tmp_path, FOLDER, REPOSITORY, REPOSITORY / "src")))
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE, env_vars={"PYTHONPATH": path})
    try:
        with pytest.raises(ConfigError) as caught:
            run(project, RayExecutor(cluster.address, per_actor=1), agent="listed")
    finally:
        cluster.remove_node(node)
    assert "it has pytest-trace2evolve 9.9, but this machine has 0.1.0; install the same" in str(caught.value)


BIG = (
    CONFTEST
    + """
from pytest_trace2evolve.records.message import Message


class Big:
    name = "big"

    async def respond(self, history):
        return Message(role="assistant", content="x" * 150_000_000)


def big(task, world, candidate, trial):
    return Big(), GoldUser(task)


def pytest_t2e_agents(config):
    return {"listed": big}
"""
)


def test_a_full_object_store_ends_the_run_with_one_line(cluster: Any, project: DeskProject) -> None:
    project.write("conftest.py", BIG)
    with pytest.raises(EndpointError) as caught:
        run(project, RayExecutor(cluster.address), agent="listed", tasks=[("desk", "close")])
    text = str(caught.value)
    assert re.match(r"node [\d.]+ of the Ray cluster cannot send a simulation: OutOfDiskError: Local", text)
    assert text.endswith("make room there, then rerun the same command to resume")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"ray": "auto", "results": ["x.json"]},
            "--t2e-ray cannot be combined with --t2e-results: there is ",
        ),
        ({"ray": "auto", "ray_pip": "none.txt"}, "t2e_ray_pip none.txt: no such file; name a file of req"),
        (
            {"ray": "auto", "ray_env": "NOT_SET"},
            "environment variable NOT_SET cannot be passed to Ray's nodes because it is not set",
        ),
    ],
)
def test_options_that_contradict_each_other(
    project: DeskProject, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        run(project, None, agent="listed", **options)


def test_ray_is_imported_only_if_it_is_asked_for(project: DeskProject) -> None:
    program = (
        "import sys\nfrom pytest_trace2evolve import Project, evaluate\n"
        "evaluate(Project.find(), candidate='v0', agent='listed', gate='off')\n"
        "sys.exit('ray' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=project.root, check=True, timeout=120)
