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
from pytest_trace2evolve.evidence.answers import AnswerFile
from pytest_trace2evolve.models.answers import KeyedRequests, PlayedModel, StoredModel, answer_key
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import Answer, Completion, Usage, from_completion
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


def ask(model: StoredModel | PlayedModel, text: str = "Hello", trial: int = 0) -> Completion:
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
        KeyedRequests(one).key(ASK, [TOOL], 0) for one in (SETTINGS, dataclasses.replace(SETTINGS, **change))
    }
    assert len(keys) == 2


def test_secrets_are_in_no_key_and_endpoints_only_in_those_of_caches() -> None:
    one = KeyedRequests(SETTINGS)
    other = KeyedRequests(
        dataclasses.replace(
            SETTINGS, base_url="http://me:secret@other/v1", extra_body={"top_k": 1, "api_key": "other"}
        )
    )
    key = one.key(ASK, [TOOL], 0)
    assert key == other.key(ASK, [TOOL], 0)
    assert one.at_endpoint(key) != other.at_endpoint(key)
    without_user = dataclasses.replace(SETTINGS, base_url="http://other/v1")
    assert KeyedRequests(without_user).at_endpoint(key) == other.at_endpoint(key)
    assert len({one.key(ASK, [TOOL], 0), one.key(ASK, [], 0), one.key([], [TOOL], 0)}) == 3


def test_recorded_settings_survive_a_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    nowhere = ModelSettings("m", temperature=None)
    kept = [(one, one.recorded()) for one in (SETTINGS, nowhere)]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere/v1")
    for one, recorded in kept:
        again = ModelSettings.from_recorded(one.model, recorded)
        assert again.recorded() == recorded
        assert KeyedRequests(again).key(ASK, [TOOL], 3) == KeyedRequests(one).key(ASK, [TOOL], 3)
    for wrong in ({"seed": "1"}, {"seed": True}, {"extra_body": []}, {"endpoint": 1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: not a "):
            ModelSettings.from_recorded("m", wrong)
    with pytest.raises(ValueError, match="model: a name is missing"):
        ModelSettings.from_recorded(None, {})


def test_a_cached_answer_is_marked(store: AnswerFile) -> None:
    model = ScriptedModel(say("one"), say("two"))
    stored = StoredModel(model, SETTINGS, "agent", cache=store)
    first, second, other = ask(stored), ask(stored), ask(stored, trial=1)
    assert (first.content, second.content, other.content) == ("one", "one", "two")
    assert (first.cached, second.cached, other.cached) == (False, True, False)
    assert second == first.model_copy(update={"cached": True})
    assert from_completion(second, "assistant").model_dump()["cached"] is True
    assert "cached" not in from_completion(first, "assistant").model_dump()


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


def test_the_first_recorded_answer_is_used(store: AnswerFile, tmp_path: Path) -> None:
    """Two processes make the same request at once: the later one continues with the earlier one's answer."""
    ours = StoredModel(ScriptedModel(say("ours")), SETTINGS, "user", record=store)
    theirs = AnswerFile(store.path, "")
    key = KeyedRequests(SETTINGS).key([{"role": "user", "content": "Hello"}], [TOOL], 0)

    class Slow(ScriptedModel):
        async def complete(self, *args: Any, **kwargs: Any) -> Completion:
            theirs.put(key, Answer(trial=0, side="user", model="m", completion=say("theirs")))
            return await super().complete(*args, **kwargs)

    slow = StoredModel(Slow(say("late")), SETTINGS, "user", record=store)
    assert ask(slow).content == "theirs"
    assert ask(ours).content == "theirs"
    assert [answer.completion for _, answer in store.items()] == [say("theirs")]
    theirs.close()


def test_recordings_include_full_contexts(store: AnswerFile) -> None:
    stored = StoredModel(ScriptedModel(ContextWindowError("too long")), SETTINGS, "agent", record=store)
    for _ in range(2):
        with pytest.raises(ContextWindowError, match="too long"):
            ask(stored)
    ((key, answer),) = store.items()
    played = PlayedModel(SETTINGS, "agent", {key: answer}, "cassette c")
    with pytest.raises(ContextWindowError, match="too long"):
        ask(played)
    with pytest.raises(InfrastructureError) as caught:
        ask(played, "something else", trial=2)
    assert str(caught.value) == (
        "cassette c holds no answer of the agent's model 'm' in trial 2 to these 1 messages; "
        "record it again with --t2e-record"
    )


def _write(path: Path, worker: int, count: int) -> None:
    store = AnswerFile(path, "")
    for number in range(count):
        answer = Answer(trial=worker, side="agent", model="m", completion=say(f"{number} by {worker}"))
        store.put(f"k{number}", answer)
    store.close()


def test_many_processes_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "answers.sqlite"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, worker, 200)) for worker in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 3
    store = AnswerFile(path, "")
    kept = dict(store.items())
    store.close()
    assert len(kept) == 200
    assert all(
        (answer.completion or say("")).content == f"{key[1:]} by {answer.trial}"
        for key, answer in kept.items()
    )
    remove(path)
    assert list(path.parent.iterdir()) == []


def test_a_killed_writer_loses_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    seen = 0
    for _ in range(2):
        writer = multiprocessing.get_context("spawn").Process(target=_write, args=(path, 0, 100_000))
        writer.start()
        reader = AnswerFile(path, "")
        while writer.is_alive() and len(list(reader.items())) <= seen:
            time.sleep(0.001)
        seen = len(list(reader.items()))
        writer.kill()
        writer.join()
        assert len(list(reader.items())) >= seen > 0
        reader.close()
    AnswerFile(path, "").close()


def test_unusable_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    path.write_bytes(b"nothing of the kind" * 99)
    with pytest.raises(
        ConfigError, match=r"answers\.sqlite: damaged or not readable \(file is not a database\); do"
    ):
        AnswerFile(path, "do this")
    path.unlink()
    AnswerFile(path, "").close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(ConfigError, match=r"answers\.sqlite: format 9 is not 1; do this"):
        AnswerFile(path, "do this")
    with pytest.raises(ConfigError, match="cannot be opened"):
        AnswerFile(path / "below", "do this")


def test_a_damaged_answer_is_an_infrastructure_error(store: AnswerFile) -> None:
    with sqlite3.connect(store.path) as connection:
        connection.execute("INSERT INTO answers VALUES ('k', '{\"trial\": 0}')")
    connection.close()
    with pytest.raises(InfrastructureError, match=r"answer k: side: Field required\); delete it"):
        store.get("k")
    store.close()


HEADER = {
    "candidate": CandidateRef(id="v0", digest="d"),
    "suites": {"desk": "d"},
    "agent": Settings(implementation="chat", model="m", arguments={"temperature": 0.0}),
    "user": Settings(implementation="chat", model="m"),
}


@given(kept=st.dictionaries(texts, answers, max_size=5), partial=texts)
def test_cassettes_survive_a_round_trip(
    kept: dict[str, Answer], partial: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "law.jsonl"
    path.write_text(render({**HEADER, "partial": partial}, kept.items()), encoding="utf-8")
    cassette = read_cassette(path)
    assert (cassette.header.partial, cassette.header.agent) == (partial, HEADER["agent"])
    assert list(cassette.answers) == list(kept)
    for key, answer in kept.items():
        expected = answer.completion and answer.completion.model_copy(update={"seconds": 0.0})
        assert cassette.answers[key] == answer.model_copy(update={"completion": expected})


@given(data=st.data())
def test_damaged_cassettes_are_rejected(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [(f"k{n}", Answer(trial=0, side="user", model="m", completion=say(f"é{n}"))) for n in range(3)]
    whole = render(HEADER, lines).encode()
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    if data.draw(st.booleans()):
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    else:
        at = data.draw(st.integers(whole.index(b"\n") + 1, len(whole) - 1))
        # Another way to end a line is no damage: checkouts of git may do it.
        bytes_ = st.integers(0, 255).filter(lambda byte: byte not in (whole[at], ord("\r")))
        changed = data.draw(bytes_)
        path.write_bytes(whole[:at] + bytes([changed]) + whole[at + 1 :])
    with pytest.raises(CassetteError, match=r"cassette .*cut\.jsonl:"):
        read_cassette(path)
