"""Twenty logs of each format, made with the real SDKs, become drafts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.importing.conversations import check_drafts, imported
from tests.importing.sdk_logs import inspect_log, langfuse_log, openai_log, otel_log, tau2_log

LOGS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    **{
        f"openai-{form}": ("openai", lambda folder, form=form: openai_log(folder, form))  # type: ignore[misc]
        for form in ("objects", "lists", "array", "requests")
    },
    **{
        f"otel-{record}-{form}": (
            "otel",
            lambda folder, record=record, form=form: otel_log(folder, record, form),
        )  # type: ignore[misc]
        for record in ("parts", "events", "indexed")
        for form in ("console", "lines", "otlp", "otlp-lines")
    },
    **{
        f"langfuse-{form}": ("langfuse", lambda folder, form=form: langfuse_log(folder, form))  # type: ignore[misc]
        for form in ("page", "lines", "traces")
    },
    "inspect-eval": ("inspect", lambda folder: inspect_log(folder, ".eval")),
    "inspect-json": ("inspect", lambda folder: inspect_log(folder, ".json")),
    "tau2": ("tau2", tau2_log),
}


@pytest.mark.parametrize("name", LOGS)
def test_logs_of_the_real_sdks_become_drafts(name: str, tmp_path: Path) -> None:
    format, write = LOGS[name]
    log = write(tmp_path)
    drafts = imported(log)
    assert {draft["draft"]["format"] for draft in drafts} == {format}
    check_drafts(drafts, (tmp_path / "out.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["openai-objects", "otel-parts-console", "langfuse-traces", "tau2"])
def test_the_messages_before_a_later_message_become_the_history(name: str, tmp_path: Path) -> None:
    drafts = imported(LOGS[name][1](tmp_path), "--until", "2", "--limit", "3")
    assert len(drafts) == 3
    for draft in drafts:
        assert draft["user"]["opening"] == "Yes, please."
        roles = [message["role"] for message in draft["history"]]
        assert roles == ["user", "assistant", "tool", "assistant"]
        call = draft["history"][1]["tool_calls"][0]
        assert (call["id"], call["function"]["name"]) == ("call_1", "get_booking")
        assert draft["history"][2]["tool_call_id"] == "call_1"


def test_the_same_conversation_has_the_same_digest_whatever_the_format(tmp_path: Path) -> None:
    digests = set()
    for name in ("openai-lists", "tau2", "otel-parts-otlp"):
        folder = tmp_path / name
        folder.mkdir()
        digests.add(tuple(sorted(draft["draft"]["digest"] for draft in imported(LOGS[name][1](folder)))))
    assert len(digests) == 1


def test_all_calls_can_be_expected(tmp_path: Path) -> None:
    drafts = imported(openai_log(tmp_path, "lists"), "--all-calls")
    assert [call["name"] for call in drafts[0]["expect"]["calls"]] == ["get_booking", "cancel_booking"]
