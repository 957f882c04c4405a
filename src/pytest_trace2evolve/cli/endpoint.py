"""`check --model`: tries out what a run needs from an endpoint."""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trace2evolve.models.settings import ModelSettings
    from pytest_trace2evolve.records.completion import Completion

HISTORY_TURNS = 120
HISTORY_TURN = "This is turn {}: the guest asks for a room with a view of the sea and with breakfast."
"""The turns of the long history, of about 20 tokens each."""

MIN_HISTORY_TOKENS = HISTORY_TURNS * 12
"""The least number of tokens of the long history in any tokenizer. A shorter prompt lacks turns."""

MAX_ANSWER_TOKENS = 2048
"""The limit of an answer in tokens, which suffices for a short answer after reasoning."""

FEATURES = (
    ("plain", "Reply with one word.", "", "no usage: the tokens and the cost of a run stay unknown"),
    ("tools", "What is the weather in Oslo? Use the tool.", "auto", "no call: check the parser of calls"),
    ("forced tool", "Say hello.", "required", "suites with solo = true need it"),
    ("two calls at once", "Call the tool for Oslo and for Rome at once.", "auto", "tasks take more turns"),
    ("long history", "Reply with one word.", "auto", "messages are dropped silently"),
    ("seed", "Write a sentence about the sea.", "", "--t2e-seed does not make runs repeatable"),
)
"""Each feature with its request, the tool choice, and the meaning if the endpoint ignores it."""


def check_endpoint(options: argparse.Namespace) -> int:
    """Print a line for each feature. The status is 0 if a run can use the endpoint with tools, else 1."""
    from pytest_trace2evolve.models.settings import ModelSettings, Retries

    settings = ModelSettings(
        options.model,
        base_url=options.base_url,
        api_key_env=options.api_key_env,
        retries=Retries(attempts=3),
        url_option="--base-url",
        max_answer_tokens=MAX_ANSWER_TOKENS,
    )
    settings.require_url()
    return asyncio.run(_try_all(settings))


async def _try_all(settings: "ModelSettings") -> int:
    from pytest_trace2evolve.errors import Trace2EvolveError
    from pytest_trace2evolve.models.chat import ChatModel
    from pytest_trace2evolve.records.protocols import ToolSchema

    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [ToolSchema(name="get_weather", description="Return a city's weather.", parameters=parameters)]
    roles = ("user", "assistant")
    turns = [{"role": roles[n % 2], "content": HISTORY_TURN.format(n)} for n in range(HISTORY_TURNS)]
    plain, seeded = ChatModel(settings), ChatModel(replace(settings, seed=7, temperature=1.0))
    statuses: dict[str, str] = {}
    try:
        for name, text, choice, meaning in FEATURES:
            messages = [*(turns if name == "long history" else ()), {"role": "user", "content": text}]
            model, count = (seeded, 2) if name == "seed" else (plain, 1)
            try:
                answers = [
                    await model.complete(messages, tools if choice else (), tool_choice=choice)
                    for _ in range(count)
                ]
                statuses[name] = "works" if _is_supported(name, answers) else "ignored"
            except Trace2EvolveError as error:
                statuses[name], meaning = "refused", str(error)
            shown_meaning = "" if statuses[name] == "works" else meaning
            print(f"{name:<18} {statuses[name]:<8} {shown_meaning}".rstrip())
            if statuses["plain"] == "refused":
                break
    finally:
        await plain.close()
        await seeded.close()
    return 0 if statuses.get("tools") == "works" else 1


def _is_supported(name: str, answers: "Sequence[Completion]") -> bool:
    match name:
        case "plain":
            return answers[0].usage.tokens > 0
        case "seed":
            return answers[0].content == answers[1].content
        case "long history":
            return answers[0].usage.prompt_tokens not in range(1, MIN_HISTORY_TOKENS)
    return len(answers[0].tool_calls) > (name == "two calls at once")
