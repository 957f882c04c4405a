"""The embedded model in the real llama.cpp: what a run makes of its answers and errors."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed (dependency group 'engines')")
pytest.importorskip("gguf", reason="gguf is not installed (dependency group 'engines')")

from pytest_trace2evolve import Project, evaluate
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.errors import EndpointError
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings, Retries
from pytest_trace2evolve.records.completion import Completion
from pytest_trace2evolve.utils.resources import embedded_model
from tests.gguf_model import PLAIN_TEMPLATE, llama_cpp, template_for_llama_cpp, write_gguf
from tests.models.test_engines import FULL, simulate_chat
from tests.own_agents import WORLD

ASK = [{"role": "user", "content": "Hello, where is my order?"}]
END = "2"
"""The token that ends an answer of the embedded model."""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "good")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "pocket.gguf"
    write_gguf(embedded_model(), path)
    return path


@pytest.fixture(scope="module")
def tool_model(weights: Path) -> Iterator[str]:
    """The base URL of the model with its own way of calling tools."""
    template = template_for_llama_cpp((embedded_model() / "chat_template.jinja").read_text())
    with llama_cpp(weights, chat_template=template) as url:
        yield url


@pytest.fixture(scope="module")
def small_model(weights: Path) -> Iterator[str]:
    """The base URL of the model with a context of 512 tokens, and a template without tools."""
    with llama_cpp(weights, chat_template=PLAIN_TEMPLATE, n_ctx=512, n_parallel=1) as url:
        yield url


def complete(url: str, *, has_tools: bool = False, **settings: Any) -> Completion:
    async def ask() -> Completion:
        retries = Retries(attempts=2, first_pause=0.001)
        model = ChatModel(ModelSettings("pocket", base_url=url, retries=retries, **settings))
        try:
            return await model.complete(ASK, WORLD.tools("assistant") if has_tools else ())
        finally:
            await model.close()

    return asyncio.run(ask())


def test_a_tool_model_works(tool_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    project = Project.find(tmp_path)
    names = sorted(project.lock.suites["support"].splits["discovery"])
    by_capability = {name.rpartition("-")[0]: ("support", name) for name in names}
    tasks = by_capability.values()
    options = {"candidate": "v8", "gate": "off", "max_answer_tokens": 160}
    run = evaluate(project, tasks=tasks, model="pocket", base_url=tool_model, **options)
    traces = [json.loads(path.read_text()) for path in run.plan.run_folder.glob("simulations/*.json")]
    assert len(traces) == len(by_capability)
    results = [message for item in traces for message in item["messages"] if message["role"] == "tool"]
    assert any(not message["error"] for message in results)
    assert run.outcomes[0].metrics["discovery"].reward > 0


def test_a_prompt_that_does_not_fit_is_the_candidates_own_end(small_model: str) -> None:
    name = "word " * 1000
    done = asyncio.run(simulate_chat(small_model, [name]))[name]
    assert done.termination_reason == FULL
    assert "exceeds the available context size (512 tokens)" in done.error_text


def test_an_endless_answer_ends_at_the_limit_or_at_the_context(small_model: str) -> None:
    endless = {"parameters": {"logit_bias": {END: -100.0}}}
    cut = complete(small_model, max_answer_tokens=40, **endless)
    assert (cut.finish_reason, cut.usage.completion_tokens) == ("length", 40)
    full = complete(small_model, max_answer_tokens=16_384, **endless)
    assert full.finish_reason == "length"
    assert 400 < full.usage.tokens <= 512


def test_ignored_tools_stop_the_run(small_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EndpointError, match="ignores the tools of model 'pocket': with and without"):
        complete(small_model, has_tools=True)
    assert complete(small_model, has_tools=True, allows_ignored_tools=True).content
    assert main(["check", "--model", "pocket", "--base-url", small_model]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith(("plain", "tools"))] == [
        ["plain", "works"],
        ["tools", "refused"],
    ]


def test_the_first_of_two_answers_is_used(tool_model: str) -> None:
    assert complete(tool_model, extra_body={"n": 2}).content == complete(tool_model).content
    with pytest.raises(EndpointError, match="Field 'n': Value must be between 1 <= value <= 2, but got 3"):
        complete(tool_model, extra_body={"n": 3})


def test_a_template_that_llama_cpp_cannot_use_is_one_line(weights: Path) -> None:
    with (
        llama_cpp(weights) as url,
        pytest.raises(EndpointError, match=r"^.*400 Unable to generate parser .*$"),
    ):
        complete(url, has_tools=True)
    with (
        llama_cpp(weights, chat_template=PLAIN_TEMPLATE, use_jinja=False) as url,
        pytest.raises(EndpointError, match="500 tools param requires --jinja flag"),
    ):
        complete(url, has_tools=True)
