"""Rollouts have exactly the tokens that the server renders for the same messages and tools."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.agents.reference import CaseOracle
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.models.api import request_body
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import Completion
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Content, script_of
from pytest_trace2evolve.serving.chat_format import ChatFormat
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.serving.loading import load_tokenizer
from pytest_trace2evolve.serving.request import ChatRequest
from pytest_trace2evolve.training.chat_encoding import ChatEncoder, read_end_tokens
from pytest_trace2evolve.utils.resources import embedded_model
from tests.training.toy import PROMPT, SCHEMAS

ENVIRONMENTS = Environments()


class Recorder:
    """A model that keeps its last request."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {}

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> Completion:
        self.body = request_body(ModelSettings(model="m", base_url=""), messages, tools, trial, tool_choice)
        return Completion(content="x")


def served(
    chat_format: ChatFormat, prompt: str, tools: Sequence[ToolSchema], trace: Sequence[Message]
) -> list[int]:
    """The prompt as the server makes it of what `ChatAgent` sends."""
    model = Recorder()
    asyncio.run(ChatAgent(model, prompt, tools).respond(trace))
    return list(chat_format.prompt(ChatRequest.parse(json.dumps(model.body).encode())).tokens)


def written(tokenizer: Any, message: Message) -> list[int]:
    """An answer as the embedded model writes it, with the token that ends it."""
    text = message.content or ""
    for call in message.tool_calls or ():
        expected = {"name": call.name, "arguments": call.arguments}
        text += f"<tool_call>{json.dumps(expected, ensure_ascii=False)}</tool_call>"
    return list(tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("name", ENVIRONMENTS.names)
@pytest.mark.parametrize("difficulty", [1, 5])
def test_a_rollouts_tokens_are_those_that_the_server_renders(name: str, difficulty: int) -> None:
    folder = read_model(embedded_model())
    tokenizer = load_tokenizer(folder)
    ends = read_end_tokens(folder, tokenizer)
    world = ENVIRONMENTS.world(name)
    prompt, tools = system_prompt(world.policy()), world.tools("assistant")
    encoder, chat_format = ChatEncoder(tokenizer, ends, {name: (prompt, tools)}), ChatFormat(tokenizer, ends)
    environment = ENVIRONMENTS.environment(name, difficulty, Content.TRAIN, ends_early=False)
    turns, customers = 0, 0
    for seed in range(2):
        history = environment.reset(seed)
        script = script_of(environment.task)
        assert script is not None
        writes = [tool for tool, kind in world.tool_types().items() if kind is ToolType.WRITE]
        expert = CaseOracle(environment.task, script, writes)
        ids = encoder.prompt(name, history)
        while True:
            assert ids == served(chat_format, prompt, tools, environment.trace)
            message = expert.reply(environment.trace)
            answer = written(tokenizer, message)
            read = encoder.parse(ids, answer, name)
            assert read is not None
            assert (read.text, [one.arguments for one in read.tool_calls or ()]) == (
                message.text,
                [one.arguments for one in message.tool_calls or ()],
            )
            reaction = environment.step(read)
            if reaction.done:
                break
            ids += answer + encoder.continuation(read, reaction.messages, has_end_token=True)
            turns += 1
            customers += reaction.messages[-1].role == "user"
    assert turns >= 2  # each scenario takes one at least
    # What this one pays for is one figure, told at once: the customer has nothing more to say.
    assert customers > 0 or difficulty == 1 or name == "conditional_detail_retrieval"


def test_qwens_own_template_puts_tools_and_customers_where_it_renders_them(base: Path) -> None:
    trl = pytest.importorskip("trl")
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    folder = read_model(base)
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    encoder = ChatEncoder(tokenizer, read_end_tokens(folder, tokenizer), {"toy": (PROMPT, SCHEMAS)})
    history = [Message(role="user", content="Look at W2 and W3.")]
    calls = [ToolCall(id=f"c{place}", name="look", arguments={"id": f"W{place}"}) for place in (2, 3)]
    said = Message(role="assistant", content=None, tool_calls=calls)
    back = [Message(role="tool", id=one.id, content=f"{one.arguments['id']} is open") for one in calls]
    whole = encoder.prompt("toy", [*history, said, *back])
    suffix = encoder.continuation(said, back, has_end_token=False)
    assert whole[-len(suffix) :] == suffix
    text = tokenizer.decode(suffix)
    assert text.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>")
    assert text.count("<tool_response>") == 2
    assert '"parameters"' in tokenizer.decode(whole), "this template writes whole schemas"
    said = Message(role="assistant", content="Both are open.")
    suffix = encoder.continuation(said, [Message(role="user", content="And?")], has_end_token=True)
    assert tokenizer.decode(suffix) == "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
