"""From a family's sketch to a case: the expert finds the gold actions, and all becomes one τ² task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve._canonical import digest
from pytest_trace2evolve.cases.expert import Expert, Handled, Wish
from pytest_trace2evolve.cases.scene import Scene
from pytest_trace2evolve.records.script import SCRIPT, After, Replies, Request, Script, Turn
from pytest_trace2evolve.records.task import Task

ID_DIGITS = 10
"""Digits of a case's digest in its id."""


@dataclass(frozen=True)
class Spoken:
    """One turn of the customer, as a family writes it."""

    says: str
    wishes: Sequence[Wish]
    insists: tuple[str, ...] = ()
    after: After = After.ANYTHING


@dataclass(frozen=True)
class Sketch:
    """A scene and the customer's turns on it."""

    scene: Scene
    turns: Sequence[Spoken]


def assemble(family: str, sketch: Sketch) -> Task:
    """The τ² task of a sketch, its customer's script inside."""
    scene = sketch.scene
    tables = scene.store.tables
    expert = Expert(tables, scene.user["user_id"], by_email=scene.by_email)
    handled = [[expert.handle(wish) for wish in spoken.wishes] for spoken in sketch.turns]
    script = Script(
        family=family,
        content=scene.content,
        identity=scene.identity(),
        turns=tuple(_turn(scene, spoken, done) for spoken, done in zip(sketch.turns, handled, strict=True)),
        replies=Replies.model_validate(
            {name: scene.store.words.phrases[name] for name in Replies.model_fields}
        ),
    )
    actions = [action for turn in handled for one in turn for action in one.actions]
    answers = [wish.answer for spoken in sketch.turns for wish in spoken.wishes if wish.answer]
    record: dict[str, Any] = {
        "description": {"purpose": family.replace("_", " "), "relevant_policies": None, "notes": None},
        "user_scenario": {
            "persona": None,
            "instructions": instructions(script),
            SCRIPT: script.model_dump(mode="json"),
        },
        "initial_state": {
            "initialization_data": {"agent_data": tables, "user_data": None},
            "initialization_actions": None,
            "message_history": None,
        },
        "evaluation_criteria": {
            "actions": [
                {"action_id": str(place), "name": action.name, "arguments": action.arguments}
                for place, action in enumerate(actions)
            ],
            "env_assertions": None,
            "communicate_info": answers,
            "nl_assertions": None,
            "reward_basis": ["DB", "COMMUNICATE"],
        },
    }
    return Task.model_validate({"id": f"{family}-{digest(record)[:ID_DIGITS]}", **record})


def _turn(scene: Scene, spoken: Spoken, handled: Sequence[Handled]) -> Turn:
    requests = tuple(
        Request(
            about=_about(scene, wish),
            details=dict(wish.details),
            answer=wish.answer,
            refused=bool(one.refusal),
        )
        for wish, one in zip(spoken.wishes, handled, strict=True)
    )
    return Turn(
        says=spoken.says,
        requests=requests,
        insists=spoken.insists,
        after=spoken.after,
        actions=sum(len(one.actions) for one in handled),
    )


def _about(scene: Scene, wish: Wish) -> tuple[str, ...]:
    """The ids that may occur when an agent asks for a yes: the order, what is in it, and what is wanted."""
    ids = [scene.user["user_id"], wish.order_id, *wish.looks]
    if order := scene.store.tables["orders"].get(wish.order_id):
        ids += [item["item_id"] for item in order["items"]]
        ids += [item["product_id"] for item in order["items"]]
    ids += list(wish.arguments.get("new_item_ids", ()))
    return tuple(dict.fromkeys(one for one in ids if one))


def instructions(script: Script) -> dict[str, str]:
    """The script in words, for a simulated user that is a model."""
    requests = [one for turn in script.turns for one in turn.requests]
    told = [f"If asked: {text}" for one in requests for text in one.details.values()]
    insisted = [f"When refused, say: {text}" for turn in script.turns for text in turn.insists]
    later = [f"{_WHEN[turn.after]}, say: {turn.says}" for turn in script.turns[1:]]
    return {
        "domain": "support",
        "reason_for_call": script.turns[0].says,
        "known_info": " ".join(script.identity.values()),
        "unknown_info": "Anything that is not written here.",
        "task_instructions": "\n".join(
            [*dict.fromkeys(told), *insisted, *later, "Confirm with a clear yes what you asked for."]
        ),
    }


_WHEN = {After.ANYTHING: "Then", After.DONE: "When that is done", After.REFUSED: "When that is refused"}
