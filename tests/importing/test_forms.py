"""Forms of one conversation: items and streams of the Responses API, parts, traces of failed tools."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.importing.conversation import Conversation
from pytest_trace2evolve.importing.documents import Document
from pytest_trace2evolve.importing.readers import FORMATS
from tests.importing.conversations import imported

Item = dict[str, Any]

QUESTION = "Please cancel my flat, which I booked for May."
ASKED: Item = {"role": "user", "content": QUESTION}
REASONED: Item = {"type": "reasoning", "id": "rs_1", "summary": []}
CALLED: Item = {
    "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "cancel_booking",
    "arguments": '{"booking": "flat"}', "status": "completed",
}  # fmt: skip
RESULT: Item = {"type": "function_call_output", "call_id": "call_1", "output": "cancelled"}
DONE: Item = {
    "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}],
}  # fmt: skip
CANCELLED = {"calls": [{"name": "cancel_booking", "arguments": {"booking": "flat"}}]}
UNCHANGED: Item = {"data": {}}


def response(number: int, *output: Item, previous: str | None = None) -> Item:
    return {
        "id": f"resp_{number}", "object": "response", "status": "completed",
        "previous_response_id": previous, "output": list(output),
    }  # fmt: skip


def log_of(folder: Path, *values: Any) -> Path:
    """A log with one value in each line."""
    path = folder / "log.jsonl"
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values), encoding="utf-8")
    return path


def expectations(folder: Path, *values: Any) -> list[Any]:
    """What the drafts of a log expect."""
    (folder / "out.yaml").unlink(missing_ok=True)
    return [draft["expect"] for draft in imported(log_of(folder, *values))]


ANSWER = response(1, REASONED, CALLED)
RESPONSES: dict[str, Any] = {
    "messages with items": {"messages": [ASKED, REASONED, CALLED, RESULT, DONE]},
    "items": [ASKED, REASONED, CALLED, RESULT, DONE],
    "request and response": {"request": {"input": [ASKED]}, "response": ANSWER},
    "text": {"request": {"input": QUESTION}, "response": ANSWER},
    "input and output": {"input": QUESTION, **ANSWER},
    "input and response": {"input": QUESTION, "response": ANSWER},
    "parts of messages": [
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        CALLED,
    ],
    "result with parts": [ASKED, CALLED, {**RESULT, "output": [{"type": "input_text", "text": "done"}]}],
    "other items": [ASKED, {"type": "web_search_call"}, {"type": "item_reference", "id": "r"}, CALLED],
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSES)
def test_calls_of_the_responses_api_are_expected(name: str, tmp_path: Path) -> None:
    assert expectations(tmp_path, RESPONSES[name]) == [CANCELLED]


FAILED: dict[str, list[Item]] = {
    "status of the result": [CALLED, {**RESULT, "status": "error"}],
    "incomplete result": [CALLED, {**RESULT, "status": "incomplete"}],
    "text": [CALLED, {**RESULT, "output": "Error: unknown booking"}],
    "object": [CALLED, {**RESULT, "output": '{"error": "unknown booking"}'}],
    "flag of MCP": [CALLED, {**RESULT, "output": '{"isError": true, "content": []}'}],
    "cut call": [{**CALLED, "status": "incomplete"}],
    "flag of Anthropic": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "cancel", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": "unknown", "is_error": True}],
        },
    ],
    "result without an id": [
        {"role": "assistant", "tool_calls": [{"function": {"name": "cancel", "arguments": "{}"}}]},
        {"role": "tool", "content": "unknown", "status": "error"},
    ],
}


@pytest.mark.parametrize("name", FAILED)
def test_a_call_that_failed_is_not_expected(name: str, tmp_path: Path) -> None:
    assert expectations(tmp_path, [ASKED, *FAILED[name]]) == [UNCHANGED]


def test_a_repeated_call_is_expected_if_it_succeeds_with_the_id_of_the_failed_one(tmp_path: Path) -> None:
    failed = {**RESULT, "status": "error"}
    assert expectations(tmp_path, [ASKED, CALLED, failed, CALLED, RESULT]) == [CANCELLED]


# ---- chains of responses

CHAIN: list[Item] = [
    {"request": {"input": "Good morning to you, I have a question."}, "response": response(1, DONE)},
    {
        "request": {"input": QUESTION, "previous_response_id": "resp_1"},
        "response": response(2, REASONED, CALLED),
    },
    {"request": {"input": [RESULT]}, "response": response(3, DONE, previous="resp_2")},
    {"request": {"input": "Thanks!", "previous_response_id": "resp_3"}, "response": response(4, DONE)},
]  # fmt: skip


def test_responses_that_continue_each_other_are_one_conversation(tmp_path: Path) -> None:
    (draft,) = imported(log_of(tmp_path, *CHAIN), "--until", "3")
    assert [message["content"] for message in draft["history"] if message["role"] == "user"] == [
        "Good morning to you, I have a question.",
        QUESTION,
    ]
    assert draft["user"]["opening"] == "Thanks!"


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
def test_responses_of_a_conversation_that_the_provider_keeps_are_joined(
    conversation: Any, tmp_path: Path
) -> None:
    calls = [
        {"request": {"input": given, "conversation": conversation}, "response": response(number, answer)}
        for number, (given, answer) in enumerate([(QUESTION, CALLED), ([RESULT], DONE), ("Thanks!", DONE)])
    ]
    other = {"request": {"input": "Hello.", "conversation": "conv_2"}, "response": response(9, DONE)}
    assert expectations(tmp_path, calls[0], other, *calls[1:]) == [UNCHANGED, CANCELLED]


def test_a_chain_without_its_beginning_is_a_conversation(tmp_path: Path) -> None:
    assert expectations(tmp_path, *CHAIN[1:]) == [CANCELLED]


def test_two_continuations_of_a_response_are_two_conversations(tmp_path: Path) -> None:
    other = {
        "request": {"input": "No, thanks.", "previous_response_id": "resp_1"},
        "response": response(9, DONE),
    }
    assert expectations(tmp_path, CHAIN[0], other, *CHAIN[1:]) == [UNCHANGED, CANCELLED]


@given(st.lists(st.sampled_from([None, "resp_0", "resp_1", "resp_2", "resp_3"]), min_size=4, max_size=4))
@settings(max_examples=30, deadline=None)
def test_every_message_of_a_log_of_responses_is_in_a_conversation(previous: list[str | None]) -> None:
    documents = [
        Document(f"line {number}", {"input": f"text {number}", **response(number, previous=previous[number])})
        for number in range(4)
    ]
    texts = set()
    for conversation in FORMATS["openai"](documents):
        assert isinstance(conversation, Conversation)
        texts |= {turn.text for turn in conversation.turns}
    assert texts == {f"text {number}" for number in range(4)}


# ---- Langfuse


def generation(number: int, given: Any, answer: Any, trace: str = "t1") -> Item:
    return {
        "id": f"o{number}", "type": "GENERATION", "traceId": trace,
        "startTime": f"2026-05-01T10:00:0{number}Z", "input": given, "output": answer,
    }  # fmt: skip


PARTS = [{"role": "user", "parts": [{"type": "text", "content": QUESTION}]}]
PART_CALL = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "c", "name": "cancel_booking", "arguments": {"booking": "flat"}}],
}
PART_RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "result": "cancelled"}]}
GENERATIONS: dict[str, list[Item]] = {
    "responses": [
        generation(1, [ASKED], response(1, CALLED)),
        generation(2, [RESULT], response(2, DONE, previous="resp_1")),
    ],
    "output alone": [
        generation(1, {"input": QUESTION, "tools": []}, [REASONED, CALLED]),
        generation(2, {"input": [RESULT], "tools": []}, [REASONED, DONE]),
    ],
    "one item": [generation(1, QUESTION, CALLED)],
    "parts": [generation(1, PARTS, [PART_CALL]), generation(2, [PART_RESULT], [PARTS[0]])],
    "parts as JSON": [generation(1, json.dumps([*PARTS, PART_CALL]), json.dumps([PART_RESULT]))],
}


@pytest.mark.parametrize("form", ["list", "lines", "page"])
@pytest.mark.parametrize("name", GENERATIONS)
def test_generations_of_langfuse_become_one_draft(name: str, form: str, tmp_path: Path) -> None:
    observations = GENERATIONS[name]
    values: dict[str, list[Any]] = {
        "list": [[{"id": "t1", "observations": observations}]],
        "lines": list(observations),
        "page": [{"data": observations, "meta": {"page": 1}}],
    }
    assert expectations(tmp_path, *values[form]) == [CANCELLED]


def test_the_tools_that_the_langchain_handler_of_langfuse_adds_are_no_results(tmp_path: Path) -> None:
    """Messages as langfuse 5.0.4 writes them."""
    tool = {"role": "tool", "content": {"type": "function", "function": {"name": "cancel_booking"}}}
    call = {"name": "cancel_booking", "args": {"booking": "flat"}, "id": "c", "type": "tool_call"}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "content": "cancelled", "tool_call_id": "c"}
    observations = [
        generation(1, [ASKED, tool], called),
        generation(2, [ASKED, called, result, tool], {"role": "assistant", "content": "Done."}),
    ]
    (conversation,) = FORMATS["langfuse"]([Document("", observations)])
    assert isinstance(conversation, Conversation)
    assert [turn.text for turn in conversation.turns] == [QUESTION, "", "cancelled", "Done."]
    assert expectations(tmp_path, observations) == [CANCELLED]


# ---- OpenTelemetry


def attribute(value: Any) -> Item:
    """A value in the form of OTLP JSON."""
    if isinstance(value, dict):
        pairs = [{"key": key, "value": attribute(inner)} for key, inner in value.items()]
        return {"kvlistValue": {"values": pairs}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [attribute(inner) for inner in value]}}
    return {"stringValue": value}


def otlp(kind: str, records: list[Item]) -> Item:
    names = {"spans": ("resourceSpans", "scopeSpans"), "logRecords": ("resourceLogs", "scopeLogs")}[kind]
    return {names[0]: [{names[1]: [{kind: records}]}]}


def span(number: int, status: Any = None, **attributes: Any) -> Item:
    pairs = [{"key": key, "value": attribute(value)} for key, value in attributes.items()]
    return {
        "traceId": "t", "spanId": f"s{number}", "startTimeUnixNano": f"{number}", "attributes": pairs,
        "status": {} if status is None else status,
    }  # fmt: skip


def chat(number: int, given: Any, answer: Any) -> Item:
    return span(number, **{"gen_ai.input.messages": given, "gen_ai.output.messages": answer})


def tool(number: int, status: Any) -> Item:
    return span(number, status, **{"gen_ai.tool.name": "cancel_booking", "gen_ai.tool.call.id": "c"})


@pytest.mark.parametrize("is_text", [True, False])
def test_messages_of_spans_are_texts_or_structures(is_text: bool, tmp_path: Path) -> None:
    given, answer = [*PARTS], [PART_CALL]
    record = (
        chat(1, json.dumps(given), json.dumps(answer))
        if is_text
        else chat(1, [json.dumps(message) for message in given], answer)
    )
    assert expectations(tmp_path, otlp("spans", [record])) == [CANCELLED]


def test_a_result_that_also_stands_as_a_text_keeps_its_id() -> None:
    """Messages as opentelemetry-instrumentation-openai-agents-v2 0.1.0 writes them."""
    result = {"role": "tool", "parts": [{"type": "text", "content": "cancelled"}, *PART_RESULT["parts"]]}
    (conversation,) = FORMATS["otel"]([Document("", chat(1, [*PARTS, PART_CALL, result], []))])
    assert isinstance(conversation, Conversation)
    assert [(turn.text, turn.id) for turn in conversation.turns if turn.role == "tool"] == [
        ("cancelled", "c")
    ]


@pytest.mark.parametrize("answer", [PART_CALL, {"role": "assistant", "parts": PARTS[0]["parts"]}])
def test_calls_that_the_messages_lack_are_noted(answer: Item, tmp_path: Path) -> None:
    """The same package writes a call of the Responses API as a text."""
    spans = [chat(1, PARTS, [answer]), span(2, **{"gen_ai.operation.name": "execute_tool"})]
    (draft,) = imported(log_of(tmp_path, otlp("spans", spans)))
    noted = [note for note in draft["draft"]["notes"] if note.startswith("The log has spans of tools")]
    assert len(noted) == (answer is not PART_CALL)


STATUSES = [{"code": 2}, {"code": "2"}, {"code": "STATUS_CODE_ERROR"}, {"status_code": "ERROR"}, "ERROR"]


@pytest.mark.parametrize("status", [*STATUSES, {"code": 1}, {"code": "STATUS_CODE_OK"}, None])
def test_a_call_whose_span_has_status_error_is_not_expected(status: Any, tmp_path: Path) -> None:
    spans = [chat(1, PARTS, [PART_CALL]), tool(2, status)]
    assert expectations(tmp_path, otlp("spans", spans)) == [UNCHANGED if status in STATUSES else CANCELLED]


def event(number: int, name: str, **body: Any) -> Item:
    return {
        "traceId": "t", "spanId": f"s{number}", "timeUnixNano": "0", "observedTimeUnixNano": f"{number}",
        "eventName": f"gen_ai.{name}", "body": attribute(body),
    }  # fmt: skip


CALL_BODY = {
    "role": "assistant",
    "tool_calls": [
        {
            "id": "c",
            "type": "function",
            "function": {"name": "cancel_booking", "arguments": '{"booking": "flat"}'},
        }
    ],
}  # fmt: skip
EVENTS = [
    event(1, "user.message", content=QUESTION),
    event(1, "choice", finish_reason="tool_calls", message=CALL_BODY),
    event(2, "user.message", content=QUESTION),
    event(2, "assistant.message", tool_calls=CALL_BODY["tool_calls"]),
    event(2, "tool.message", id="c", content="cancelled"),
    event(2, "choice", finish_reason="stop", message={"role": "assistant", "content": "Done."}),
]


def test_log_events_give_the_same_drafts_with_their_spans_and_without(tmp_path: Path) -> None:
    logs, spans = otlp("logRecords", EVENTS), otlp("spans", [span(1), span(2)])
    drafts = []
    for values in ([logs], [logs, spans], [spans, logs]):
        (tmp_path / "out.yaml").unlink(missing_ok=True)
        (draft,) = imported(log_of(tmp_path, *values))
        assert draft["expect"] == CANCELLED
        drafts.append({**draft, "draft": draft["draft"]["digest"]})
    assert drafts[0] == drafts[1] == drafts[2]


def test_log_events_without_ids_of_spans_are_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(tmp_path, otlp("logRecords", [{**item, "spanId": ""} for item in EVENTS]))
    assert main(["import", str(log), "--out", "-"]) == 2
    assert "holds a log record without a span id" in capsys.readouterr().err


# Events of strands-agents 1.62.0: content blocks of Bedrock as JSON.
BLOCK_CALL = [{"toolUse": {"toolUseId": "c", "name": "cancel_booking", "input": {"booking": "flat"}}}]
BLOCK_RESULT = {"toolUseId": "c", "status": "success", "content": [{"text": "cancelled"}]}
STRANDS_OLD = [
    ("user.message", {"content": json.dumps([{"text": QUESTION}])}),
    ("assistant.message", {"content": json.dumps(BLOCK_CALL)}),
    ("tool.message", {"content": json.dumps([{"toolResult": BLOCK_RESULT}])}),
    ("choice", {"finish_reason": "end_turn", "message": json.dumps([{"text": "Done."}])}),
]
STRANDS_NEW = [
    (
        "client.inference.operation.details",
        {
            "gen_ai.input.messages": json.dumps(
                [*PARTS, PART_CALL, {"role": "user", "parts": [{
                    "type": "tool_call_response", "id": "c", "response": [{"text": "cancelled"}],
                }]}]
            )
        },
    ),
    (
        "client.inference.operation.details",
        {
            "gen_ai.output.messages": json.dumps(
                [{"role": "assistant", "parts": [{"type": "text", "content": "Done."}]}]
            )
        },
    ),
]  # fmt: skip
STRANDS_TOOL = [
    ("tool.message", {"role": "tool", "id": "c", "content": '{"booking": "flat"}'}),
    ("choice", {"id": "c", "message": json.dumps([{"text": "cancelled"}])}),
]


def span_with_events(number: int, operation: str, events: list[tuple[str, Item]], **fields: Any) -> Item:
    """A span in the form of the SDK's console exporter."""
    return {
        "name": operation, "context": {"trace_id": "0x1", "span_id": f"0x{number}"},
        "start_time": f"{number}",
        "attributes": {"gen_ai.operation.name": operation, "gen_ai.tool.call.id": "c"},
        "events": [{"name": f"gen_ai.{name}", "attributes": attributes} for name, attributes in events],
        "status": {"status_code": "OK"}, **fields,
    }  # fmt: skip


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("events", [STRANDS_OLD, STRANDS_NEW])
def test_spans_of_strands_are_the_conversation_of_its_model_calls(
    events: list[tuple[str, Item]], failed: bool, tmp_path: Path
) -> None:
    status = {"status": {"status_code": "ERROR"}} if failed else {}
    spans = [span_with_events(1, "execute_tool", STRANDS_TOOL, **status), span_with_events(2, "chat", events)]
    (conversation,) = FORMATS["otel"]([Document("", spans)])
    assert isinstance(conversation, Conversation)
    call, result = conversation.turns[1:3]
    assert [(turn.role, turn.text) for turn in conversation.turns] == [
        ("user", QUESTION),
        ("assistant", ""),
        ("tool", "cancelled"),
        ("assistant", "Done."),
    ]
    assert call.calls[0].arguments == {"booking": "flat"}
    assert call.calls[0].id == result.id == "c"
    assert expectations(tmp_path, *spans) == [UNCHANGED if failed else CANCELLED]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"json": {"state": "cancelled"}}, '{"state": "cancelled"}'),
        ({"image": {"format": "png"}}, "[image]"),
        ({"document": {"name": "bill"}}, "[document]"),
        ({"cachePoint": {"type": "default"}}, ""),
        ({"reasoningContent": {"reasoningText": {"text": "why"}}}, ""),
    ],
)
def test_other_blocks_of_bedrock(block: Item, text: str) -> None:
    call, result = {"content": BLOCK_CALL}, {"toolResult": {**BLOCK_RESULT, "content": [block]}}
    messages = [ASKED, {"role": "assistant", **call}, {"role": "user", "content": [result]}]
    (conversation,) = FORMATS["openai"]([Document("", messages)])
    assert isinstance(conversation, Conversation)
    assert [turn.text for turn in conversation.turns] == [QUESTION, "", text]


@pytest.mark.parametrize("text", ["[]", '[{"type": "visa"}]', '[{"id": 1}]', '{"text": "x"}'])
def test_a_result_that_is_json_stays_as_it_is(text: str) -> None:
    events = [*STRANDS_OLD[:2], ("tool.message", {"id": "c", "content": text}), STRANDS_OLD[3]]
    (conversation,) = FORMATS["otel"]([Document("", span_with_events(1, "chat", events))])
    assert isinstance(conversation, Conversation)
    assert conversation.turns[2].text == text


# ---- repeated conversations, and standard output


def sample(number: int, epoch: int, answer: str = "Done.") -> Item:
    messages = [ASKED, {"role": "assistant", "content": answer}]
    return {
        "id": number,
        "epoch": epoch,
        "input": QUESTION,
        "messages": messages,
        "uuid": f"{number}-{epoch}",
    }


def test_epochs_of_a_sample_are_one_draft(tmp_path: Path) -> None:
    samples = [sample(1, 1), sample(2, 1, "No."), sample(1, 2), sample(1, 3, "Later."), sample(2, 2, "No.")]
    assert len(expectations(tmp_path, {"eval": {}, "plan": {}, "samples": samples})) == 2


def test_a_conversation_that_a_log_holds_twice_is_one_draft(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(expectations(tmp_path, RESPONSES["items"], RESPONSES["items"])) == 1
    assert "left out: 1 conversations that repeat another" in capsys.readouterr().out


def test_drafts_go_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = log_of(tmp_path, RESPONSES["items"])
    expected = imported(log)
    capsys.readouterr()
    assert main(["import", str(log), "--out", "-"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out) == expected
    assert printed.err.startswith("standard output: 1 drafts of format openai")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "out.yaml"]


UNKNOWN: dict[str, Any] = {
    "item": {"type": "new_thing", "content": "x"},
    "role": {"role": "boss", "content": "x"},
    "part": {"role": "user", "content": [{"text": 5}]},
    "call": {"type": "function_call", "call_id": "c", "arguments": "{}"},
    "value": 7,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_item_is_one_line_and_the_rest_of_the_log_stays(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(
        tmp_path, RESPONSES["items"], {"input": [ASKED, UNKNOWN[name]], "response": ANSWER}, CHAIN[1]
    )
    assert main(["import", str(log), "--out", str(tmp_path / "out.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ": line 2: message 2 " in line
    assert "--skip-damaged" in line
    assert len(imported(log, "--skip-damaged")) == 2
