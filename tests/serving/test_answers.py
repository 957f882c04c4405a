"""What the server answers is what transformers says when called directly, whoever else is served."""

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serving.conftest import Asking
from tests.tiny_model import CONTEXT, TOOLS, dialogue

References = list[dict[str, Any]]


def said(asking: Asking, one: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A greedy answer to a conversation of the references, with log-probabilities."""
    return asking.choice(
        model=one["model"], messages=one["messages"], logprobs=True, top_logprobs=5, **fields
    )


def require_equal(choice: dict[str, Any], one: dict[str, Any]) -> None:
    """Hold an answer against what transformers said."""
    told = choice["logprobs"]["content"]
    assert [entry["token"] for entry in told] == one["tokens"]
    assert [entry["logprob"] for entry in told] == pytest.approx(one["logprobs"], abs=1e-4)
    for entry, top in zip(told, one["top"], strict=True):
        assert [best["logprob"] for best in entry["top_logprobs"]] == pytest.approx(top, abs=1e-4)
    message = choice["message"]
    if "tool_calls" not in message:
        assert message["content"] == one["text"]
    whole = "tool_calls" if "tool_calls" in message else "stop"
    assert choice["finish_reason"] == ("length" if len(one["tokens"]) == 40 else whole)


def test_alone_every_answer_is_that_of_transformers(asking: Asking, references: References) -> None:
    for one in references:
        require_equal(said(asking, one), one)


def test_in_a_crowd_of_mixed_adapters_and_lengths_too(asking: Asking, references: References) -> None:
    crowd = references * 2
    with ThreadPoolExecutor(24) as pool:
        for choice, one in zip(pool.map(lambda one: said(asking, one), crowd), crowd, strict=True):
            require_equal(choice, one)
    assert len({one["text"] for one in references}) > 12, "the adapters say too much alike to tell anything"


def test_calls_are_read_and_the_conversation_goes_on(asking: Asking) -> None:
    messages = dialogue(3)
    message = asking.choice(messages=messages)["message"]
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"id": "W3"}'}
    assert message["content"] is None
    result = {"role": "tool", "tool_call_id": call["id"], "content": "W3 is open"}
    choice = asking.choice(messages=[*messages, message, result])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("W3 is open, all is well.", "stop")


def test_equal_requests_have_equal_ids_of_calls_and_other_turns_others(asking: Asking) -> None:
    ids = [asking.choice(messages=dialogue(n))["message"]["tool_calls"][0]["id"] for n in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]


def test_a_seed_decides_whoever_shares_the_batch(asking: Asking) -> None:
    def drawn(seed: int | None) -> str:
        fields = {"messages": [{"role": "user", "content": "Go on."}], "temperature": 1.5, "seed": seed}
        return str(asking.choice(**fields, tools=None, model="one")["message"]["content"])

    alone = [drawn(seed) for seed in range(6)]
    with ThreadPoolExecutor(12) as pool:
        crowd = list(pool.map(drawn, [*range(6), *range(100, 112), *range(6)]))
    assert crowd[:6] == alone == crowd[-6:]
    assert len(set(alone)) == 6
    assert len({drawn(None) for _ in range(4)}) == 4


def test_with_one_seed_each_prompt_draws_numbers_of_its_own() -> None:
    """Else all turns of a dialogue, and all tasks of a trial, would go by the same luck."""
    from pytest_trace2evolve.serving.engine import Job, random_of

    jobs = [Job((1, 2), seed=5), Job((1, 3), seed=5), Job((1, 2), "one", seed=5), Job((1, 2), seed=-5)]
    drawn = [random_of(job).random() for job in jobs]
    assert len(set(drawn)) == 4
    assert drawn == [random_of(job).random() for job in jobs]
    assert random_of(Job((1, 2))).random() != random_of(Job((1, 2))).random()


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.6)])
def test_tokens_are_drawn_as_often_as_they_are_likely(
    asking: Asking, temperature: float, top_p: float
) -> None:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "x"}],
        "model": "two",
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": 20,
        "temperature": temperature,
        "top_p": top_p,
    }
    with ThreadPoolExecutor(16) as pool:
        told = list(
            pool.map(lambda seed: asking.choice(**fields, seed=seed)["logprobs"]["content"][0], range(300))
        )
    table = {one["token"]: one["logprob"] for one in told[0]["top_logprobs"]}
    weights = {token: math.exp(logprob / temperature) for token, logprob in table.items()}
    total = sum(weights.values())  # the twenty likeliest hold nearly all
    kept, mass = {}, 0.0
    for token, weight in weights.items():
        if mass < top_p:
            kept[token] = weight / total
        mass += weight / total
    counts = Counter(one["token"] for one in told)
    if top_p < 1.0:
        assert set(counts) <= set(kept)
    for token, share in kept.items():
        expected = share / sum(kept.values())
        assert counts[token] / 300 == pytest.approx(expected, abs=4.5 * math.sqrt(expected / 300) + 0.03)
    # What is told is the model's own, whatever the temperature.
    assert all(
        one["logprob"] == pytest.approx(table[one["token"]], abs=1e-4)
        for one in told
        if one["token"] in table
    )


def test_labels_can_be_weighed_by_one_token(asking: Asking) -> None:
    choice = asking.choice(
        messages=[{"role": "user", "content": "Which? A, B or C"}],
        tools=None,
        max_tokens=1,
        logprobs=True,
        top_logprobs=20,
    )
    (entry,) = choice["logprobs"]["content"]
    assert len({one["token"] for one in entry["top_logprobs"]}) == 20
    assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
    assert choice["finish_reason"] in ("length", "stop")


def test_a_stop_text_ends_the_answer_and_is_no_part_of_it(asking: Asking) -> None:
    messages = dialogue(2, done=True)[:4]
    choice = asking.choice(messages=messages, stop=["never", ", all"])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("W2 is open", "stop")


def test_both_names_of_the_limit_hold(asking: Asking) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        response = asking.post(messages=dialogue(2), **{"max_tokens": None, name: 3})
        assert response.json()["usage"]["completion_tokens"] == 3
        assert response.json()["choices"][0]["finish_reason"] == "length"


def test_usage_counts_the_prompt_as_the_template_writes_it(asking: Asking, references: References) -> None:
    one = references[0]
    usage = asking.post(messages=one["messages"]).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (one["prompt_tokens"], len(one["tokens"]))
    assert usage["total_tokens"] == one["prompt_tokens"] + len(one["tokens"])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_call_that_must_be_made_is_begun_for_the_model(asking: Asking, choice: object) -> None:
    found = asking.choice(messages=dialogue(4), tool_choice=choice)
    assert found["message"]["tool_calls"][0]["function"]["name"] == "look"
    assert found["finish_reason"] == "tool_calls"


def test_none_offers_no_tools(asking: Asking) -> None:
    none = asking.post(messages=dialogue(1), tool_choice="none").json()
    assert "tool_calls" not in none["choices"][0]["message"]
    without = asking.post(messages=dialogue(1), tools=None).json()
    assert none["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"]


def test_a_call_that_cannot_be_read_stays_text(asking: Asking) -> None:
    choice = asking.choice(messages=dialogue(3), max_tokens=12)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("<tool_call>")
    assert "tool_calls" not in choice["message"]


def test_the_template_gets_its_own_settings(asking: Asking) -> None:
    plain, without = (
        asking.post(messages=dialogue(1), chat_template_kwargs=settings).json()["usage"]["prompt_tokens"]
        for settings in (None, {"enable_thinking": False})
    )
    assert without > plain


def test_arguments_that_are_no_object_and_parts_of_text_are_taken(asking: Asking) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{broken"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Look "}, {"type": "text", "text": "at W1."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Error"},
    ]
    asking.choice(messages=messages)
    told = [
        asking.post(messages=[{"role": "user", "content": content}]).json()["usage"]["prompt_tokens"]
        for content in ("Look at W1.", messages[0]["content"])
    ]
    assert told[0] == told[1]


def test_no_answer_goes_beyond_the_context(asking: Asking) -> None:
    messages = [{"role": "user", "content": "all is well " * 240}]
    usage = asking.post(messages=messages, max_tokens=5000).json()["usage"]
    assert usage["prompt_tokens"] < usage["total_tokens"] <= CONTEXT


def test_without_a_limit_the_models_own_holds(asking: Asking) -> None:
    fields = {"messages": dialogue(1), "max_tokens": None}
    assert asking.post(**fields).json()["usage"]["completion_tokens"] == 12


def test_tools_are_what_the_client_sent(asking: Asking) -> None:
    one = asking.post(messages=dialogue(1), tools=TOOLS[:1]).json()["usage"]["prompt_tokens"]
    assert one < asking.post(messages=dialogue(1)).json()["usage"]["prompt_tokens"]
