"""A model endpoint whose bot fails by chance: each conversation is decided by a coin of its own."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any

from pytest_trace2evolve.testing import ChatRequest, ChatServer, Fault, FaultPlan, Misbehaviour, Reply
from pytest_trace2evolve.testing.server import Script
from tests.hotel import hotel_script

SKILLED = "- book\n- cancel\n- move\n- price"
REFUSAL = "Please ask our front desk about that. They are happy to help."


@dataclass
class Coin(FaultPlan):
    """Decides conversations, and what the endpoint does to those that are about to fail.

    The coin falls with the agent's first answer, which shows the outcome: whoever fails refuses. From then
    on the conversation keeps it. Until then it keeps it until the next session, however often its requests
    are repeated. The outcomes of different sessions, prompts, tasks and seeds are independent, and none
    depends on the order of requests.

    Attributes:
        seed: Equal seeds give equal outcomes.
        rate: The chance of success.
        rates: Other chances, by a text that the prompt of those candidates holds.
        session: The number of the session.
        on_failure: The fault that ends a conversation that has shown that it fails; None lets it fail.
        unseen: The number of failing conversations of a session that end in a fault before their first
            answer, so that the next session tosses them again.
        broken: Those conversations of this session.
        decided: The outcomes of this session's conversations.
        shown: Those of them that have shown that they fail.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    rate: float = 0.2
    session: int = 0
    on_failure: Fault | None = None
    unseen: int = 0
    broken: set[str] = field(default_factory=set)
    decided: dict[str, bool] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Nothing is drawn from a sequence: see `outcome`."""

    def next_session(self) -> None:
        """Toss anew from now on."""
        self.session += 1
        self.decided, self.shown, self.broken = {}, set(), set()

    def outcome(self, record: Mapping[str, Any]) -> bool | None:
        """Whether a request's conversation succeeds; None if the guest is asked before the agent answered."""
        system, opening, answers = spoken(record)
        if not opening or (is_guests(system) and not answers):
            return None
        named = json.dumps([opening, record.get("seed")])
        if answers:
            self.decided[named] = outcome = REFUSAL not in answers
            if not outcome:
                self.shown.add(named)
            return outcome
        # The bytes of the digest are independent of the prompt's meaning: only `rates` looks at that.
        conversation = json.dumps([self.seed, self.session, system, opening, record.get("seed")])
        tossed = int.from_bytes(sha256(conversation.encode()).digest()[:8]) / 2**64
        rate = next((rate for text, rate in self.rates.items() if text in system), self.rate)
        return self.decided.setdefault(named, tossed < rate)

    def misbehaviour(self, record: Mapping[str, Any]) -> Misbehaviour | None:
        """What the endpoint does to a request. A first answer fails only if `unseen` says so."""
        system, opening, answers = spoken(record)
        if self.unseen and opening and not answers and not is_guests(system) and not self.outcome(record):
            named = json.dumps([opening, record.get("seed")])
            if named in self.broken or len(self.broken) < self.unseen:
                self.broken.add(named)
                return Misbehaviour(Fault.SERVER_ERROR)
        if self.on_failure is None or not spoken(record)[2] or self.outcome(record) is not False:
            return None
        return Misbehaviour(self.on_failure)


def spoken(record: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """The system prompt of a request, the guest's first words, and the agent's messages after them."""
    system, opening = "", ""
    answers: list[str] = []
    for message in record["messages"]:
        if message["role"] == "system":
            system = str(message["content"])
        elif message["role"] == ("assistant" if is_guests(system) else "user"):
            opening = opening or str(message["content"])
        elif opening and message["role"] != "tool":
            answers.append(str(message["content"]))
    return system, opening, answers


def is_guests(system: str) -> bool:
    """Whether a system prompt is the guest's."""
    return "<scenario>" in system


class CoinServer(ChatServer):
    """Serves the hotel's bot and guest on loopback, as `coin` decides."""

    def __init__(self, coin: Coin) -> None:
        self.coin = coin
        super().__init__(coin_script(coin), faults=coin)
        coin.draw = lambda: coin.misbehaviour(self.requests[-1])  # type: ignore[method-assign]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of a session that talks to this endpoint."""
        return ("--t2e-model=hotel-model", f"--t2e-base-url={self.base_url}")


def coin_script(coin: Coin) -> Script:
    """The hotel's script for conversations that succeed; one that fails is referred to the front desk."""
    hotel = cached_script()

    def reply(request: ChatRequest) -> Reply:
        if is_guests(request.system):
            return hotel(request)
        if coin.outcome(request.body) is False:
            return Reply(REFUSAL)
        messages = [item for item in request.messages if item["role"] != "system"]
        return hotel(
            ChatRequest(request.model, [{"role": "system", "content": SKILLED}, *messages], [], request.body)
        )

    return reply


@cache
def cached_script() -> Script:
    """The hotel's script: it imports the project's modules, which takes a while."""
    return hotel_script()
