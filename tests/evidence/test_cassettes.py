"""The text of a cassette: it survives its file, and a cut or a change is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import CassetteError
from pytest_trace2evolve.evidence.answer_store import read_cassette, render_cassette
from pytest_trace2evolve.records.completion import Answer, Completion, RequestedCall, Usage
from pytest_trace2evolve.records.evidence import CandidateRef, Settings

texts = st.text(st.characters(exclude_categories=["Cs"]))
calls = st.builds(RequestedCall, id=texts, name=texts, arguments=texts)
completions = st.builds(
    Completion,
    content=st.none() | texts,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    finish_reason=st.none() | texts,
    usage=st.builds(Usage, prompt_tokens=st.integers(0, 1 << 53), cost=st.none() | st.floats(0, 1e9)),
    seconds=st.floats(0, 1e6),
)
answers = st.builds(
    Answer,
    trial=st.integers(0, 9),
    side=st.sampled_from(["agent", "user"]),
    model=texts,
    completion=completions,
) | st.builds(Answer, trial=st.just(0), side=st.just("agent"), model=texts, context_window=texts)

HEADER = {
    "candidate": CandidateRef(id="v0", digest="d"),
    "suites": {"desk": "d"},
    "agent": Settings(implementation="chat", model="m", arguments={"temperature": 0.0}),
    "user": Settings(implementation="chat", model="m"),
}


@given(kept=st.dictionaries(texts, answers, max_size=5), partial=texts)
def test_a_cassette_says_what_it_was_told(
    kept: dict[str, Answer], partial: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "law.jsonl"
    path.write_text(render_cassette({**HEADER, "partial": partial}, kept.items()), encoding="utf-8")
    cassette = read_cassette(path)
    assert (cassette.header.partial, cassette.header.agent) == (partial, HEADER["agent"])
    assert list(cassette.answers) == list(kept)
    for key, answer in kept.items():
        expected = answer.completion and answer.completion.model_copy(update={"seconds": 0.0})
        assert cassette.answers[key] == answer.model_copy(update={"completion": expected})


@given(data=st.data())
def test_no_cut_or_changed_cassette_is_read(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [
        (f"k{n}", Answer(trial=0, side="user", model="m", completion=Completion(content=f"é{n}")))
        for n in range(3)
    ]
    whole = render_cassette(HEADER, lines).encode()
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
