"""Keys of answers, and the models that store or play them."""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ContextWindowError, InfrastructureError
from pytest_trace2evolve.evidence.answer_store import AnswerFile
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.models.stored_answers import PlaybackModel, RequestKeys, StoredModel, answer_key
from pytest_trace2evolve.records.completion import Completion, Usage
from pytest_trace2evolve.records.protocols import ToolSchema

ASK = [{"role": "user", "content": "Hello"}]
TOOL = ToolSchema(name="look", description="Look.", parameters={"type": "object", "properties": {}})
SETTINGS = ModelSettings("m", base_url="http://host/v1", seed=1, extra_body={"top_k": 1, "api_key": "k" * 20})


class ScriptedModel:
    """Gives its answers in turn, and counts requests."""

    def __init__(self, *answers: Completion | Exception) -> None:
        self.answers = list(answers)
        self.requests = 0

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> Completion:
        answer = self.answers[self.requests % len(self.answers)]
        self.requests += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


def say(text: str, **fields: Any) -> Completion:
    return Completion(
        content=text, finish_reason="stop", usage=Usage(prompt_tokens=3, cost=0.5), seconds=2.0, **fields
    )


def ask(model: StoredModel | PlaybackModel, text: str = "Hello", trial: int = 0) -> Completion:
    return asyncio.run(model.complete([{"role": "user", "content": text}], [TOOL], trial=trial))


@pytest.fixture
def store(tmp_path: Path) -> AnswerFile:
    return AnswerFile(tmp_path / "answers.sqlite", "delete it")


@given(
    st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()), max_size=5),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_keys_depend_on_content_and_trial(request: dict[str, Any], trial: int, other: int) -> None:
    turned = dict(reversed(request.items()))
    assert (answer_key(request, trial) == answer_key(turned, other)) is (trial == other)
    assert answer_key({**request, "more": 1}, trial) != answer_key({**request, "more": "1"}, trial)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"temperature": 0.5},
        {"temperature": None},
        {"seed": 2},
        {"seed": None},
        {"reasoning_effort": "low"},
        {"extra_body": {"top_k": 2}},
    ],
)
def test_everything_a_model_sees_is_in_its_key(change: dict[str, Any]) -> None:
    keys = {
        RequestKeys(item).key(ASK, [TOOL], 0) for item in (SETTINGS, dataclasses.replace(SETTINGS, **change))
    }
    assert len(keys) == 2


def test_secrets_are_in_no_key_and_endpoints_only_in_those_of_caches() -> None:
    item = RequestKeys(SETTINGS)
    other = RequestKeys(
        dataclasses.replace(
            SETTINGS, base_url="http://me:secret@other/v1", extra_body={"top_k": 1, "api_key": "other"}
        )
    )
    key = item.key(ASK, [TOOL], 0)
    assert key == other.key(ASK, [TOOL], 0)
    assert item.endpoint_key(key) != other.endpoint_key(key)
    without_user = dataclasses.replace(SETTINGS, base_url="http://other/v1")
    assert RequestKeys(without_user).endpoint_key(key) == other.endpoint_key(key)
    assert len({item.key(ASK, [TOOL], 0), item.key(ASK, [], 0), item.key([], [TOOL], 0)}) == 3


@pytest.mark.parametrize(
    "bad",
    [
        say("cut").model_copy(update={"finish_reason": "length"}),
        say("cut").model_copy(update={"finish_reason": "content_filter"}),
        say(" "),
        Completion(finish_reason="stop"),
        ContextWindowError("too long"),
        InfrastructureError("lost"),
    ],
)
def test_only_complete_answers_are_cached(store: AnswerFile, bad: Completion | Exception) -> None:
    model = ScriptedModel(bad, say("good"))
    stored = StoredModel(model, SETTINGS, "agent", cache=store)
    if isinstance(bad, Exception):
        with pytest.raises(type(bad), match=str(bad)):
            ask(stored)
    else:
        assert ask(stored) == bad
    assert [ask(stored).content, ask(stored).content] == ["good", "good"]
    assert model.requests == 2


def test_recordings_include_full_contexts(store: AnswerFile) -> None:
    stored = StoredModel(ScriptedModel(ContextWindowError("too long")), SETTINGS, "agent", record=store)
    for _ in range(2):
        with pytest.raises(ContextWindowError, match="too long"):
            ask(stored)
    ((key, answer),) = store.items()
    played = PlaybackModel(SETTINGS, "agent", {key: answer}, "cassette c")
    with pytest.raises(ContextWindowError, match="too long"):
        ask(played)
    with pytest.raises(InfrastructureError) as caught:
        ask(played, "something else", trial=2)
    assert str(caught.value) == (
        "cassette c has no answer of the agent's model 'm' in trial 2 to these 1 messages; "
        "record it again with --t2e-record"
    )
