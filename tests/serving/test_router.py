"""A router next to its base: it names a label for a conversation, with any adapters."""

import math
from pathlib import Path

import pytest

from pytest_trace2evolve.agents.probe import POOLED_LAYERS
from pytest_trace2evolve.serving.folder import read_adapter, read_model
from pytest_trace2evolve.serving.process import LocalServer
from tests.adapter_folders import write_router
from tests.serving.conftest import Client
from tests.tiny_model import dialogue


@pytest.mark.usefixtures("forked_servers")
def test_a_router_answers_with_a_label_and_the_probabilities_of_all(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "router.safetensors"
    write_router(path, models / "base", "two")
    server = LocalServer(models / "base", {"base+router": path, "one": models / "one"})
    try:
        client = Client(server.base_url, server.token)
        fields = {"model": "base+router", "messages": dialogue(3), "max_tokens": 1}
        choice = client.choice(**fields, logprobs=True, top_logprobs=20)
        assert choice["message"]["content"] == "two"
        [token] = choice["logprobs"]["content"]
        top = {entry["token"]: entry["logprob"] for entry in token["top_logprobs"]}
        assert next(iter(top)) == token["token"] == "two"
        assert sorted(top) == ["none", "one", "two"]
        assert math.fsum(map(math.exp, top.values())) == pytest.approx(1)
        assert client.choice(**fields)["logprobs"] is None
        assert client.choice(messages=dialogue(3))["message"]["tool_calls"], "the base answers as before"
        assert client.usage(**fields)["completion_tokens"] == 1
        names = [one["id"] for one in client.http.get("/models").json()["data"]]
        assert names == ["base", "one", "base+router"]
        client.http.close()
    finally:
        server.close()


def test_the_states_are_those_of_the_base_alone(models: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    from pytest_trace2evolve.serving.loading import LoadedModel

    base = read_model(models / "base")
    with_adapter = LoadedModel(base, [read_adapter("one", models / "one", base)], device="cpu")
    tokens = with_adapter.tokenizer("W3 is open", add_special_tokens=False)["input_ids"]
    first = min(with_adapter.end_tokens)
    plain = AutoModelForCausalLM.from_pretrained(models / "base", dtype=torch.float32).eval()
    with torch.no_grad():
        states = plain(torch.tensor([[first, *tokens]]), output_hidden_states=True).hidden_states
    expected = [
        part
        for share in POOLED_LAYERS
        for layer in (states[round(share * (len(states) - 1))][0, 1:],)
        for part in (layer.mean(0), layer.amax(0), layer[-1])
    ]
    found = with_adapter.read_states(tokens)
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=1e-4)
    assert with_adapter.read_states([]).shape == found.shape, "a customer who says nothing"
