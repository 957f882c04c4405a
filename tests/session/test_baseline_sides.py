"""Who makes the baseline's fresh trials: with which candidate, settings and endpoint, or why nobody."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from pytest_trace2evolve.engine.factories import BUILT_IN_AGENTS
from pytest_trace2evolve.engine.live import CandidateSetup, LiveSettings
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.adapters import Adapters
from pytest_trace2evolve.project.candidates import Candidates
from pytest_trace2evolve.records.budget import Budgets
from pytest_trace2evolve.records.evidence import (
    CHAT,
    CandidateRef,
    Code,
    Evidence,
    Identity,
    Provenance,
    Settings,
)
from pytest_trace2evolve.session import confirmation as confirm
from pytest_trace2evolve.session.baselines import Baseline
from pytest_trace2evolve.session.plan import AGENT_ENDPOINT, Confirmation, Endpoint, Options
from pytest_trace2evolve.utils.secrets import REMOVAL_MARK
from tests.gate_helpers import write_candidate

HERE, THERE = "http://here/v1", "http://there/v1"
AGENT = ModelSettings("m", base_url=HERE, seed=3, extra_body={"api_key": "sk-0123456789", "top_k": 5})
NOWHERE = Path("adapters")
PRICE = Price(input=1.0, output=2.0)
LIVE = LiveSettings(agent=AGENT, user=ModelSettings("u", base_url=HERE), extra_instruction="Be brief.")


@pytest.fixture
def candidates(tmp_path: Path) -> Candidates:
    write_candidate(tmp_path, "v0", text="Be kind.")
    return Candidates(tmp_path)


def asked(
    candidates: Candidates,
    candidate: CandidateRef | None,
    recorded: Settings,
    *,
    agent: str = CHAT,
    code: Code | None = None,
    live: LiveSettings | None = LIVE,
    endpoint: Endpoint = AGENT_ENDPOINT,
    prices: Mapping[str, Price] = MappingProxyType({}),
    needs_prices: bool = False,
) -> Confirmation:
    """How the baseline of suite `desk` is rerun."""
    budgets = Budgets(cost=1.0 if needs_prices else None)
    options = Options(live=live, baseline_endpoint=endpoint, budgets=budgets)
    project: Any = SimpleNamespace(adapters=Adapters(NOWHERE), candidates=candidates, root=NOWHERE)
    finder = confirm._BaselineSetupFinder(options, LIVE, project)
    vars(finder)["prices"] = prices
    provenance = Provenance(domain="d", provider="p", candidate=candidate, agent=recorded)
    baseline = Baseline("old", Evidence(provenance=provenance, simulations=()))
    identity = Identity(agent=Settings(code=code))
    suite: Any = SimpleNamespace(name="desk", baseline=baseline, agent=agent, identity=identity)
    return finder.find([suite], 640)


def found(candidates: Candidates, recorded: Settings, **changes: Any) -> CandidateSetup | str:
    """The baseline's side, or why there is none."""
    result = asked(candidates, candidates["v0"].to_ref(), recorded, **changes)
    assert (len(result.sides), len(result.refusal_reasons)) in ((1, 0), (0, 1))
    return result.sides["desk"] if result.sides else result.refusal_reasons["desk"]


def recorded(settings: LiveSettings, **arguments: object) -> Settings:
    own = settings.agent_settings()
    kept = {key: value for key, value in {**(own.arguments or {}), **arguments}.items() if value is not None}
    return own.model_copy(update={"arguments": kept})


def test_the_same_agent_is_asked_as_it_is_with_what_is_secret(candidates: Candidates) -> None:
    assert found(candidates, recorded(LIVE)) == CandidateSetup(candidates["v0"], LIVE)


def test_other_settings_are_those_that_were_recorded(candidates: Candidates) -> None:
    old = Settings(
        implementation=CHAT,
        model="n",
        arguments={
            "temperature": 0.7,
            "endpoint": HERE,
            "extra_body": {"top_k": 1},
            "reasoning_effort": "low",
        },
    )
    party = found(candidates, old, prices={"n": PRICE}, needs_prices=True)
    assert isinstance(party, CandidateSetup)
    assert party.live is not None
    assert party.live.agent_settings() == old
    assert (party.live.user, party.live.agent.price) == (LIVE.user, PRICE)
    assert party.live.agent.timeout == AGENT.timeout


def test_an_endpoint_that_was_named_is_asked_whatever_was_recorded(candidates: Candidates) -> None:
    for endpoint in (HERE, "http://elsewhere/v1"):
        old = Settings(implementation=CHAT, model="m", arguments={"endpoint": endpoint})
        party = found(candidates, old, endpoint=Endpoint(THERE, "OLD_KEY"))
        assert isinstance(party, CandidateSetup)
        assert party.live is not None
        assert (party.live.agent.base_url, party.live.agent.api_key_env) == (THERE, "OLD_KEY")


@pytest.mark.parametrize(
    ("old", "changes", "reason"),
    [
        (
            recorded(LIVE, endpoint=THERE),
            {},
            f"its model 'm' ran at {THERE}, but this run uses {HERE}; give t2e_baseline_base_url",
        ),
        (
            recorded(LIVE, endpoint=None),
            {},
            f"its model 'm' ran at the default endpoint, but this run uses {HERE}; give *",
        ),
        (
            recorded(LIVE, temperature=0.5),
            {},
            "its model 'm' used a secret in t2e_extra_body, which is not stored",
        ),
        (
            Settings(implementation=CHAT, model="n", arguments={"endpoint": HERE}),
            {"needs_prices": True},
            "--t2e-max-cost needs the price of its model 'n'",
        ),
        (
            Settings(implementation=CHAT, arguments={"endpoint": HERE}),
            {},
            "its agent is not recorded completely: model: missing name",
        ),
        (
            Settings(implementation=CHAT, model="n", arguments={"endpoint": HERE, "seed": "x"}),
            {},
            "its agent is not recorded completely: seed: not a int",
        ),
        (Settings(), {}, "baseline 'old' was measured with agent None, but this run's agent is 'chat'"),
        (
            Settings(implementation="other"),
            {"agent": "mine", "live": None},
            "baseline 'old' was measured with agent 'other', but this run's agent is 'mine'",
        ),
        (recorded(LIVE), {"agent": "nop", "live": None}, "agent 'nop' makes no fresh trials"),
    ],
)
def test_why_nobody_can(candidates: Candidates, old: Settings, changes: dict[str, Any], reason: str) -> None:
    message = found(candidates, old, **changes)
    assert isinstance(message, str)
    assert message == reason or (reason.endswith("*") and message.startswith(reason[:-1]))


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (None, "baseline 'old' does not record its candidate"),
        (CandidateRef(id="v9", digest="0"), "its candidate 'v9' is not in candidates/"),
    ],
)
def test_an_unknown_candidate_is_a_reason(
    candidates: Candidates, candidate: CandidateRef | None, reason: str
) -> None:
    assert asked(candidates, candidate, recorded(LIVE)).refusal_reasons == {"desk": reason}


def test_a_broken_candidate_is_a_reason_and_no_error(candidates: Candidates, tmp_path: Path) -> None:
    old = candidates["v0"].to_ref()
    (tmp_path / "v0.md").write_text("no front matter")
    refused = asked(Candidates(tmp_path), old, recorded(LIVE)).refusal_reasons["desk"]
    assert "v0.md: line 1 must be" in refused


def test_a_plugins_agent_is_the_same_on_both_sides(candidates: Candidates) -> None:
    code = Code(files={"bot.py": "a", "plan.py": "b"})
    old = Settings(implementation="mine", code=code)
    party = found(candidates, old, agent="mine", live=None, code=code)
    assert party == CandidateSetup(candidates["v0"], None)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            Code(files={"bot.py": "a", "plan.py": "b"}),
            Code(files={"bot.py": "a", "plan.py": "c"}),
            "the agent's code changed since baseline 'old' was saved (plan.py), *",
        ),
        (None, Code(), "it is unknown whether the current code measured baseline 'old'"),
        (Code(), Code(unknown="no source"), "it is unknown whether the current code measured baseline 'old'"),
    ],
)
def test_other_code_cannot_run_the_baselines_side(
    candidates: Candidates, old: Code | None, new: Code, reason: str
) -> None:
    recorded = Settings(implementation="mine", code=old)
    message = found(candidates, recorded, agent="mine", live=None, code=new)
    assert isinstance(message, str)
    assert message == reason or (reason.endswith("*") and message.startswith(reason[:-1]))


def test_every_agent_that_ships_has_nothing_to_confirm() -> None:
    assert set(BUILT_IN_AGENTS) <= confirm.SCRIPTED_AGENTS


def test_fresh_trials_are_possible_where_there_is_a_side_and_a_budget(candidates: Candidates) -> None:
    sides = {"desk": CandidateSetup(candidates["v0"], LIVE)}
    assert Confirmation(16, sides).is_possible
    assert not Confirmation(0, sides).is_possible
    assert not Confirmation(16, {}, {"desk": "gone"}).is_possible


def test_what_marks_a_removed_secret_is_what_is_looked_for() -> None:
    assert REMOVAL_MARK in str(AGENT.to_record()["extra_body"])


def test_a_local_model_is_asked_where_this_run_serves_the_same_folder(candidates: Candidates) -> None:
    agent = replace(AGENT, base_url="", folder=Path("here"), weights="w1", price=PRICE).with_server(
        HERE, "token"
    )
    live = replace(LIVE, agent=agent)
    old = Settings(implementation=CHAT, model="m", arguments={"temperature": 1.0, "weights": "w1"})
    party = found(candidates, old, live=live, needs_prices=True)
    assert isinstance(party, CandidateSetup)
    assert party.live is not None
    asked = party.live.agent
    assert (asked.endpoint(), asked.key(), asked.price) == (HERE, "token", PRICE)
    assert asked.to_record() == {"temperature": 1.0, "weights": "w1"}
    for arguments in ({"weights": "w2"}, {"endpoint": THERE}):
        other = Settings(implementation=CHAT, model="m", arguments=arguments)
        assert "differs from this run's model" in str(found(candidates, other, live=live))
