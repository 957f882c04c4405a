"""Twenty logs of each format, made with the real SDKs, become drafts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from tests.importing.conversations import check_drafts, imported
from tests.importing.model_logs import (
    CANCELLED,
    chat,
    instrumented_log,
    langfuse_openai_log,
    pydantic_ai_log,
    respond,
    responses_log,
    tau2_of_inspect_log,
)
from tests.importing.sdk_logs import inspect_log, langfuse_log, openai_log, otel_log

LOGS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "openai-objects": ("openai", lambda folder: openai_log(folder, "objects")),
    "openai-requests": ("openai", lambda folder: openai_log(folder, "requests")),
    "otel-console": ("otel", lambda folder: otel_log(folder, "console")),
    "otel-otlp": ("otel", lambda folder: otel_log(folder, "otlp")),
    "langfuse-page": ("langfuse", lambda folder: langfuse_log(folder, "page")),
    "langfuse-traces": ("langfuse", lambda folder: langfuse_log(folder, "traces")),
    "inspect-eval": ("inspect", lambda folder: inspect_log(folder, ".eval")),
    "inspect-json": ("inspect", lambda folder: inspect_log(folder, ".json")),
}


@pytest.mark.parametrize("name", LOGS)
def test_logs_of_the_real_sdks_become_drafts(name: str, tmp_path: Path) -> None:
    format, write = LOGS[name]
    log = write(tmp_path)
    drafts = imported(log)
    assert {draft["draft"]["format"] for draft in drafts} == {format}
    check_drafts(drafts, (tmp_path / "out.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["openai-objects", "otel-console", "langfuse-traces"])
def test_the_messages_before_a_later_message_become_the_history(name: str, tmp_path: Path) -> None:
    drafts = imported(LOGS[name][1](tmp_path), "--until", "2")
    assert drafts
    for draft in drafts:
        assert draft["user"]["opening"] == "Yes, please."
        roles = [message["role"] for message in draft["history"]]
        assert roles == ["user", "assistant", "tool", "assistant"]
        call = draft["history"][1]["tool_calls"][0]
        assert (call["id"], call["function"]["name"]) == ("call_1", "get_booking")
        assert draft["history"][2]["tool_call_id"] == "call_1"


def test_the_same_conversation_has_the_same_digest_whatever_the_format(tmp_path: Path) -> None:
    digests = set()
    for name in ("openai-objects", "langfuse-page", "otel-otlp"):
        folder = tmp_path / name
        folder.mkdir()
        digests.add(tuple(sorted(draft["draft"]["digest"] for draft in imported(LOGS[name][1](folder)))))
    assert len(digests) == 1


def test_a_call_over_the_responses_api_is_expected(tmp_path: Path) -> None:
    assert [draft["expect"] for draft in imported(responses_log(tmp_path))] == [CANCELLED]


@pytest.mark.parametrize("have", [chat, respond])
def test_a_call_over_the_openai_wrapper_of_langfuse_is_expected(
    have: Callable[[object], None], tmp_path: Path
) -> None:
    assert [draft["expect"] for draft in imported(langfuse_openai_log(tmp_path, have))] == [CANCELLED]


@pytest.mark.parametrize("form", ["logs", "both"])
def test_log_events_of_the_openai_instrumentation_become_one_draft(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = instrumented_log(tmp_path, form, monkeypatch)
    assert [draft["expect"] for draft in imported(log)] == [CANCELLED]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_call_of_pydantic_ai_is_expected(api: str, tmp_path: Path) -> None:
    assert [draft["expect"] for draft in imported(pydantic_ai_log(tmp_path, api))] == [CANCELLED]


@pytest.mark.parametrize("outcome", ["fails", "retries"])
def test_a_call_of_pydantic_ai_that_failed_is_not_expected(outcome: str, tmp_path: Path) -> None:
    log = pydantic_ai_log(tmp_path, "chat", outcome)
    assert [draft["expect"] for draft in imported(log)] == [{"data": {}}]


@pytest.mark.filterwarnings("ignore")  # of inspect_ai's dependencies
def test_epochs_of_tau2_in_inspect_are_one_draft_of_the_agent_under_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tau2_of_inspect_log(tmp_path, epochs=2)
    (draft,) = imported(log)
    assert draft["user"]["opening"] == "My mobile data does not work abroad."
    assert [call["name"] for call in draft["expect"]["calls"]] == ["enable_roaming"]
    content = json.loads(log.read_text(encoding="utf-8"))
    for sample in content["samples"]:
        sample["store"] = {}
    log.write_text(json.dumps(content), encoding="utf-8")
    capsys.readouterr()
    assert main(["import", str(log), "--out", "-"]) == 2
    assert "sample 1: is of inspect_evals/tau2 and lacks the agent's messages" in capsys.readouterr().err
