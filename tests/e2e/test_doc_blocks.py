"""The code blocks of the tutorial and of the how-to pages work: each page's blocks run in order in a project.

A scripted endpoint takes the model's place. It solves every case under candidate v6, and does nothing under
others. Two things differ from a page: `-n 2` is left out, and the suite has fewer cases. Commands that train,
serve a model or need a cluster are only parsed, as other tests run them. Of `make` and `pip` commands the
target and the extras are checked. tests/cluster runs the Python block of the page on clusters.
"""

import contextlib
import importlib.util
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.cli.parser import build_parser
from pytest_trace2evolve.models.prices import read_prices
from pytest_trace2evolve.project.tool_settings import ToolSettings
from pytest_trace2evolve.records import rules
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus
from pytest_trace2evolve.session.option_table import OPTIONS
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply, case_script
from tests.attack.sessions import Sessions
from tests.patience import until

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "tutorial": "",
    "agents": "",
    "live-runs": "",
    "baselines": "",
    "ci": "",
    "models": "",
    "cases": "tasks: Synthetic cases and pressure tests",
    "extending": "",
    "training": "",
    "cluster": "live-runs: Clusters",
}
"""The pages, or pages and sections, whose blocks run; a page runs without the sections of `APART`."""

APART = (
    "Gate your own agent in fifteen minutes",
    "Clusters",
    "Benchmarks",
    "The ledger",
    "Engines and gateways",
    "Make a world from a class",
    "Checks of your own",
    "From failing tests to a gated adapter",
)
"""Sections that run by themselves, in another test, or not at all."""

PROGRAMS = ("accelerate", "cd", "export", "make", "pip", "pytest", "python", "ray", "trace2evolve")

NOT_RUN = re.compile(
    r"trace2evolve (train|serve|gate|cases from-failure)\b|--t2e-(evolve|ray)\b"
    r"|--candidate v6\+|--t2e-model \./"
)
"""Commands that take minutes, end by a signal, or need more machines or a git repository."""

FRAMEWORKS = {"app.pydantic_bot": "pydantic_ai", "app.graph_bot": "langchain_openai", "app.sdk_bot": "agents"}
"""Modules of a page, and the package without which they cannot be imported."""

NOT_NAMED = ("app.graph_bot", "app.sdk_bot")
"""Modules that no command of the page names, so that they are only imported."""

OUTPUTS = ("=====", "trace2evolve: baseline v5: ", "382 of 456 done")
"""How blocks begin that show what is printed."""

MODEL = "gpt-4.1-mini"
PRESSURE = "synthetic/pressure.jsonl"
CASES = {"discovery": 3, "heldout": 12}
"""Cases of each split: enough for a promotion."""


def blocks(page: str, section: str = "") -> list[str]:
    """The code blocks of a section, or of a page without the sections that run apart."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    titled = [(part.partition("\n")[0].removeprefix("## "), part) for part in re.split(r"(?m)^(?=## )", text)]
    parts = [part for title, part in titled if (title == section if section else title not in APART)]
    tokens = MarkdownIt().parse("".join(parts))
    return [token.content.rstrip() for token in tokens if token.type in ("code_block", "fence")]


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as found:
        yield found


@pytest.fixture(scope="module")
def endpoint(prepared: Path) -> Iterator[str]:
    """The URL of an endpoint that solves every case under candidate v6, and does nothing under others."""
    cases = [*read_cases(prepared / "suites/support/discovery.jsonl")]
    cases += [*read_cases(prepared / "suites/support/heldout.jsonl")]
    cases += [*read_cases(prepared / "synthetic/pressure.jsonl")]
    solve = case_script(case.task for case in cases)
    instruction = (prepared / "candidates/v6.md").read_text(encoding="utf-8").rpartition("---\n")[2].strip()

    def answer(request: ChatRequest) -> Reply:
        return solve(request) if instruction in request.system else Reply("I cannot help with that.")

    with ChatServer(answer) as server:
        yield server.base_url


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `trace2evolve init` writes, with fewer cases, no guard and no baselines of all cases."""
    root = tmp_path_factory.mktemp("docs") / "my-agent"
    assert main(["init", str(root)]) == 0
    shutil.rmtree(root / "baselines")
    for name, count in CASES.items():
        file = root / f"suites/support/{name}.jsonl"
        file.write_text("".join(file.read_text("utf-8").splitlines(keepends=True)[:count]), encoding="utf-8")
    suite = root / "suites/support.toml"
    suite.write_text(re.sub(r"(?m)^synthetic = .*$", "", suite.read_text("utf-8")), encoding="utf-8")
    (root / "suites/suites.lock").unlink()
    assert main(["lock", "--root", str(root)]) == 0
    return root


@pytest.fixture(scope="module")
def measured(prepared: Path, sessions: Sessions, endpoint: str) -> Path:
    """The same with baselines of v0 and v5, and a run of v6 that is promoted."""
    root = prepared.with_name("measured")
    shutil.copytree(prepared, root)
    save = ("--t2e-gate=off", "--t2e-save-baseline")
    for candidate, options in (("v0", (*save, "v0")), ("v6", ()), ("v5", (*save, "v5"))):
        command = ("pytest", "--candidate", candidate, "--t2e-model", MODEL, *options)
        done = sessions.run(root, *command, environment={"OPENAI_BASE_URL": endpoint})
        assert "PROMOTE" in done.text or candidate != "v6", done.text
        assert done.status in (0, 1), done.text
    return root


class Page:
    """Runs the blocks of one page in a project."""

    def __init__(self, root: Path, sessions: Sessions, endpoint: str) -> None:
        self.root = root
        self._sessions = sessions
        self._port = 8080
        self._server: subprocess.Popen[bytes] | None = None
        self._environment = {"OPENAI_BASE_URL": endpoint, "PYTEST_ADDOPTS": "-p no:cacheprovider"}

    def run(self, block: str) -> None:
        """Run a block of commands or of Python, write a candidate's file, or check a block of settings."""
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        if lines[0].split()[0] in PROGRAMS and not lines[0].startswith("pytest_"):
            for line in lines:
                self._command(line.partition("  #")[0].partition(" # ")[0].strip())
        elif block.startswith(("import ", "from ", "class ", "def ", "@", "with ", "Rules(", "writes=")):
            self._python(block)
        elif block.startswith("---\n"):
            name = re.search(r"(?m)^id: (\w+)$", block)
            assert name
            (self.root / f"candidates/{name[1]}.md").write_text(block + "\n", encoding="utf-8")
        elif block.startswith("# app/"):
            self._file(block)
        elif block.startswith("["):
            self._toml(block)
        elif block.startswith("# .pre-commit-config.yaml"):
            hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
            for repository in yaml.safe_load(block)["repos"]:
                assert {hook["id"] for hook in repository["hooks"]} <= {hook["id"] for hook in hooks}
        else:
            assert block.startswith(OUTPUTS), f"nothing here knows how to run this block:\n{block}"

    def _command(self, line: str) -> None:
        program, *words = shlex.split(line)
        if program == "make":
            assert re.search(rf"(?m)^{words[0]}:", (ROOT / "Makefile").read_text("utf-8")), line
        elif program == "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
                "optional-dependencies"
            ]
            (wanted,) = re.findall(r"pytest-trace2evolve\[([\w,]+)\]", line)
            assert set(wanted.split(",")) <= set(extras), line
        elif program == "python" and words[0].startswith("app/"):
            self._start(words[0])
        elif program == "accelerate":
            build_parser(COMMANDS).parse_args(words[words.index("pytest_trace2evolve") + 1 :])
        elif program in ("pytest", "trace2evolve"):
            self._ours(line)
        else:
            assert program in ("cd", "export", "ray"), line

    def _ours(self, line: str) -> None:
        program, *words = shlex.split(self._filled(line))
        if program == "pytest":
            check_options(words)
        else:
            build_parser(COMMANDS).parse_args(words)
        if NOT_RUN.search(line) or words[:2] == ["init", "my-agent"]:
            return
        if words[-2:] == ["--out", PRESSURE]:
            (self.root / PRESSURE).unlink()  # the page says it of a project that lacks the file
        agent = words[words.index("--t2e-agent") + 1] if "--t2e-agent" in words else ""
        framework = FRAMEWORKS.get(agent.partition(":")[0], "json")
        if importlib.util.find_spec(framework) is None:
            return  # CI may leave the dependency group "agents" out
        environment = dict(self._environment)
        is_own = ":" in agent
        if is_own:  # one process, because each imports its framework
            words = [word for word in words if word not in ("--t2e-concurrency", "4")]
            words += ["--t2e-concurrency=1", "--t2e-trials=1"]
            environment["PYTHONDONTWRITEBYTECODE"] = ""
        if (
            (is_own or "--t2e-agent" not in words)
            and "--t2e-playback" not in words
            and "--t2e-model" not in words
        ):
            environment["PYTEST_ADDOPTS"] += f" --t2e-model={MODEL}"
        done = self._sessions.run(self.root, program, *words, environment=environment)
        expected = (0, 1, 10) if program == "pytest" else (0,)
        assert done.status in expected, f"{line}\nexit status {done.status}\n{done.text}"
        assert program != "pytest" or "trace2evolve: " in done.text or " passed" in done.text, done.text

    def _filled(self, line: str) -> str:
        """A line with values for its placeholders."""
        line = re.sub(r" \[[^]]*\]…?| -n 2\b", "", line)
        line = line.replace(" …", f" --t2e-model {MODEL}").replace("MODEL", MODEL)
        line = line.replace(":8080", f":{self._port}")
        line = line.replace("HEAD:", "127.0.0.1:").replace("DIR", "folder").replace("NAME", "name")
        if "RUN" in line:
            runs = sorted((self.root / ".trace2evolve/runs").glob("*-v6-*"))
            line = line.replace("RUN", runs[-1].name if runs else "run")
        if "TASK" in line:
            task = read_cases(self.root / "suites/support/discovery.jsonl")[0].task.id
            line = line.replace("TASK", task)
        return line

    def _file(self, block: str) -> None:
        """Write a file of the page's agent, on a free port."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        path = self.root / block.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.replace("8080", str(self._port)) + "\n", encoding="utf-8")
        module = f"app.{path.stem}"
        if module in NOT_NAMED and importlib.util.find_spec(FRAMEWORKS[module]) is not None:
            subprocess.run([sys.executable, "-c", f"import {module}"], cwd=self.root, check=True)

    def _start(self, script: str) -> None:
        """Start the server of a page, and wait until it answers."""
        self._server = subprocess.Popen([sys.executable, script], cwd=self.root)

        def is_listening() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return True
            return False

        until(is_listening)

    def close(self) -> None:
        """End the server of the page."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def _toml(self, block: str) -> None:
        if block.startswith("[tool.trace2evolve]"):
            settings = tomllib.loads(block)["tool"]["trace2evolve"]
            assert {*settings} <= {*ToolSettings.model_fields}
        elif "splits" in tomllib.loads(block):
            suite = tomllib.loads((ROOT / "suites/support.toml").read_text("utf-8"))
            assert tomllib.loads(block)["splits"].items() <= suite["splits"].items()
        else:
            prices = self.root / "prices.toml"
            prices.write_text(block, encoding="utf-8")
            assert read_prices(prices)["gpt-4.1"]

    def _python(self, block: str) -> None:
        if "run_case" in block:
            (self.root / "synthetic/test_pressure.py").write_text("import pytest\n" + block, encoding="utf-8")
            return
        if block.startswith("writes="):
            block = f"dict({block})"
        names: dict[str, Any] = {**vars(rules), "CheckResult": CheckResult, "CheckStatus": CheckStatus}
        names |= {"MyWorld": object, "make_shy": object}
        names |= {"path": ROOT / "suites/support/discovery.jsonl"}
        exec(compile(block, "docs", "exec"), names)
        if "run" in names:
            assert names["run"].decision


def check_options(words: list[str]) -> None:
    """Every option of this plugin exists, and takes the value that it has."""
    known = {name: option for option in OPTIONS for name in (option.flag, option.alias) if name}
    for place, word in enumerate(words):
        flag, _, value = word.partition("=")
        if flag.startswith(("--t2e-", "--candidate")):
            option = known[flag]
            value = value or ("" if option.is_flag else words[place + 1])
            assert option.choices is None or value in option.choices, word
            if option.type is not None and value:
                option.type(value)


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(
    page: str,
    prepared: Path,
    measured: Path,
    sessions: Sessions,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, _, section = PAGES[page].partition(": ")
    found = blocks(name or page, section)
    assert found
    root = tmp_path / "my-agent"
    shutil.copytree(prepared if page == "live-runs" else measured, root)
    if page == "baselines":
        (root / "baselines/support/v5.json").unlink()  # the page saves it
    monkeypatch.chdir(root)
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    runner = Page(root, sessions, endpoint)
    try:
        for block in found:
            if page != "cluster" or not block.startswith("from "):
                runner.run(block)
    finally:
        runner.close()
