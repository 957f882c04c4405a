"""Reasoning that an endpoint wants back: in the requests, traces, cassettes and caches of whole sessions."""

import json
import subprocess
import sys
from typing import Any

import pytest

from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from tests.own_agents import http_server
from tests.patience import until
from tests.plugin.conftest import DeskProject, project
from tests.session.test_live import SECRET, SOLVED, live, traces

__all__ = ["project"]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def thinking(request: ChatRequest) -> Reply:
    """Thinks before each call of the agent, and rejects a history without its thoughts, as DeepSeek does."""
    own = [message for message in request.messages if message.get("tool_calls")]
    if "<scenario>" in request.system:
        assert "thought" not in json.dumps(request.messages)
        return SOLVED(request)
    if any(message.get("reasoning_content") != f"thought {n}" for n, message in enumerate(own)):
        return Reply(error=(400, "Missing `reasoning_content` field in the assistant message"))
    reply = SOLVED(request)
    calls = [
        {
            "id": f"call_{len(own)}_{n}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
            "extra_content": {"google": {"thought_signature": "signed"}},
        }
        for n, (name, arguments) in enumerate(reply.tool_calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    message |= {"tool_calls": calls, "reasoning_content": f"thought {len(own)}"} if calls else {}
    return Reply(message=message)


def thoughts(project: DeskProject) -> list[tuple[str, Any]]:
    """What the traces of the last run keep for the endpoint, by task."""
    return sorted(
        (str(one["task_id"]), json.dumps([message["provider_fields"], message["tool_calls"]]))
        for one in traces(project)
        for message in one["messages"]  # type: ignore[attr-defined]
        if "reasoning_content" in message.get("provider_fields", {})
    )


def test_reasoning_is_sent_back_recorded_played_and_cached(project: DeskProject) -> None:
    with ChatServer(thinking) as server:
        live(project, server, "--t2e-record=tape.jsonl", "--t2e-cache").assert_outcomes(passed=7)
        made, served = thoughts(project), server.count.served
        assert made
        assert all("thought_signature" in kept for _, kept in made)
        live(project, server, "--t2e-cache", "--t2e-fresh").assert_outcomes(passed=7)
        assert server.count.served == served
        assert thoughts(project) == made
    result = project.pytester.runpytest_inprocess("--t2e-playback=tape.jsonl", "--t2e-fresh")
    result.assert_outcomes(passed=7)
    assert thoughts(project) == made


def test_reasoning_survives_a_kill(project: DeskProject) -> None:
    with ChatServer(thinking) as server:
        command = [sys.executable, "-m", "pytest", "-pno:xdist", "--t2e-model=m", "--t2e-concurrency=7"]
        command.append(f"--t2e-base-url={server.base_url}")
        server.release(16)
        child = subprocess.Popen(command, cwd=project.root, stdout=subprocess.DEVNULL)
        until(lambda: server.count.served == 16)
        child.kill()
        child.wait()
        server.release()
        asked = len(server.requests)
        done = subprocess.run(command, cwd=project.root, capture_output=True, text=True)
        assert "7 passed" in done.stdout, done.stdout
        resumed, made = len(server.requests) - asked, thoughts(project)
        messages = [message for one in traces(project) for message in one["messages"]]  # type: ignore[attr-defined]
        live(project, server, "--t2e-fresh").assert_outcomes(passed=7)
    assert thoughts(project) == made
    assert any(message.get("cached") and "provider_fields" in message for message in messages)
    assert resumed < len(server.requests) - asked - resumed


def test_an_endpoint_without_usage_is_named(project: DeskProject) -> None:
    def answer(method: str, record: Any) -> tuple[int, bytes]:
        reply = SOLVED(ChatRequest(record["model"], record["messages"], record.get("tools") or [], record))
        calls = [
            {"id": "a", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for name, arguments in reply.tool_calls
        ]
        message = {"role": "assistant", "content": reply.content, "tool_calls": calls}
        return 200, json.dumps({"choices": [{"index": 0, "message": message}]}).encode()

    with http_server(answer) as url:
        options = ["--t2e-model=m", f"--t2e-base-url={url.removesuffix('/chat')}"]
        result = project.pytester.runpytest_inprocess(*options)
        result.assert_outcomes(passed=7)
        result.stdout.fnmatch_lines(["*answers of 'm' came without usage: tokens and cost are too low*"])
        limited = project.pytester.runpytest_inprocess(*options, "--t2e-fresh", "--t2e-max-tokens=100000")
        limited.stdout.fnmatch_lines(["*reports no usage, so --t2e-max-tokens and --t2e-max-cost cannot be*"])
