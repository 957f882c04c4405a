"""Confirmation of regressions by fresh trials: their budget, and the party that reruns the baseline."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_trace2evolve.engine.live import LiveSettings, Party
from pytest_trace2evolve.errors import AdapterError, CandidateError, ConfigError, ModelFolderError
from pytest_trace2evolve.gate.protocols import Policy
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.adapters import Adapters
from pytest_trace2evolve.project.candidates import Candidate, Candidates, source_of
from pytest_trace2evolve.records.evidence import (
    CHAT,
    CandidateRef,
    Code,
    Identity,
    Settings,
    code_differences,
)
from pytest_trace2evolve.session.baselines import Baseline
from pytest_trace2evolve.session.candidate_models import models_of
from pytest_trace2evolve.session.plan import (
    AS_THE_AGENT,
    FIRST_FRESH_TRIAL,
    SCRIPTED,
    Confirm,
    Endpoint,
    PlannedSuite,
)
from pytest_trace2evolve.utils.secrets import REMOVED


class _CannotRunError(Exception):
    """The baseline's side cannot be rerun; the message says why."""


@dataclass(frozen=True)
class BaselineSides:
    """Finds the party that reruns the baseline of a suite.

    Attributes:
        live: The model settings of this run; None if its agent comes from a plugin.
        plain: The model settings before the candidate's adapter is applied.
        adapters: The project's adapters.
        candidates: The project's candidates.
        endpoint: The endpoint of the baseline's model.
        prices: Prices by model.
        priced: Whether the run has a dollar budget, which requires a price for every model.
    """

    live: LiveSettings | None
    plain: LiveSettings | None
    adapters: Adapters
    candidates: Candidates
    endpoint: Endpoint
    prices: Mapping[str, Price]
    priced: bool

    def find(
        self,
        baselines: Mapping[str, Baseline],
        agents: Mapping[str, str],
        identities: Mapping[str, Identity],
        budget: int,
    ) -> Confirm:
        """Return how a run confirms regressions; `agents` and `identities` are those of its suites."""
        sides: dict[str, Party] = {}
        refused: dict[str, str] = {}
        for suite, baseline in baselines.items():
            try:
                sides[suite] = self._party(baseline, agents[suite], identities[suite])
            except _CannotRunError as reason:
                refused[suite] = str(reason)
        return Confirm(budget, sides, refused)

    def _party(self, baseline: Baseline, agent: str, identity: Identity) -> Party:
        if self.live is not None and self.live.cassette is not None:
            raise _CannotRunError("the run plays a cassette back")
        if self.live is not None and self.live.record is not None:
            raise _CannotRunError("the run records a cassette, and no playback of it could confirm either")
        if agent in SCRIPTED:
            raise _CannotRunError(f"agent {agent!r} makes no fresh trials")
        origin = baseline.evidence.provenance
        candidate = self._candidate(baseline.name, origin.candidate)
        if origin.agent.implementation != agent:
            raise _CannotRunError(
                f"baseline {baseline.name!r} was measured with agent {origin.agent.implementation!r}, "
                f"and this run's is {agent!r}"
            )
        if agent == CHAT:
            return Party(candidate, self._settings(origin.agent, candidate))
        self._require_same_code(baseline.name, origin.agent.code, identity.agent.code)
        return Party(candidate, None)

    @staticmethod
    def _require_same_code(baseline: str, recorded: Code | None, current: Code | None) -> None:
        """Check that the agent's current code is the code that measured the baseline."""
        if recorded is None or recorded.unknown or current is None or current.unknown:
            raise _CannotRunError(f"it is not known whether today's code measured baseline {baseline!r}")
        if changed := list(code_differences(recorded, current)):
            raise _CannotRunError(
                f"the agent's code changed since baseline {baseline!r} was saved ({_some(changed)}), and "
                "only today's code can be run"
            )

    def _candidate(self, baseline: str, recorded: CandidateRef | None) -> Candidate:
        if recorded is None:
            raise _CannotRunError(f"baseline {baseline!r} does not say which candidate it measured")
        if recorded.id not in self.candidates:
            raise _CannotRunError(f"its candidate {recorded.id!r} is not in candidates/")
        try:
            candidate = self.candidates[recorded.id]
        except (CandidateError, AdapterError) as error:
            raise _CannotRunError(str(error)) from None
        if candidate.digest != recorded.digest:
            raise _CannotRunError(f"{source_of(recorded.id)} changed since baseline {baseline!r} was saved")
        return candidate

    def _settings(self, recorded: Settings, candidate: Candidate) -> LiveSettings:
        """This run's settings with the model and request settings that the baseline recorded."""
        endpoint = self.endpoint
        assert self.live is not None
        if recorded == self.live.agent_settings() and endpoint == AS_THE_AGENT:
            return self.live
        try:
            live = models_of(candidate, self.plain, self.adapters) if candidate.adapter else self.live
        except (ConfigError, AdapterError, ModelFolderError) as error:
            raise _CannotRunError(str(error)) from None
        assert live is not None
        if recorded == live.agent_settings() and endpoint == AS_THE_AGENT:
            return live
        arguments = dict(recorded.arguments or {})
        extra = arguments.pop("extra_instruction", "")
        weights = arguments.get("weights")
        # A baseline measured without this run's adapter uses the same model folder.
        as_here = weights == live.agent.weights
        if endpoint.url is None and not (as_here or (weights and weights == live.agent.base_weights)):
            raise _CannotRunError(
                f"its model {recorded.model!r} was another than this run's: a local folder of other content, "
                "or none: give --t2e-baseline-base-url"
            )
        there, here = arguments.get("endpoint"), live.agent.recorded().get("endpoint")
        if endpoint.url is None and there != here:
            raise _CannotRunError(
                f"its model {recorded.model!r} was asked at {there or 'the default endpoint'}, and this run "
                f"asks {here or 'the default endpoint'}: give --t2e-baseline-base-url"
            )
        if REMOVED in json.dumps(arguments):
            raise _CannotRunError(
                f"its model {recorded.model!r} was asked with a secret in --t2e-extra-body, which is not kept"
            )
        try:
            model = ModelSettings.from_recorded(recorded.model, arguments)
        except ValueError as error:
            raise _CannotRunError(f"its agent is not recorded whole: {error}") from None
        local = endpoint.url is None and model.weights is not None
        price = live.agent.price if local else self.prices.get(model.model)
        if self.priced and price is None:
            raise _CannotRunError(f"--t2e-max-cost needs the price of its model {model.model!r}")
        agent = replace(
            live.agent,
            model=self._name(live.agent, as_here) if local else model.model,
            base_url=live.agent.base_url if endpoint.url is None else endpoint.url,
            url_option=live.agent.url_option if endpoint.url is None else "--t2e-baseline-base-url",
            api_key_env=endpoint.api_key_env or live.agent.api_key_env,
            temperature=model.temperature,
            seed=model.seed,
            reasoning_effort=model.reasoning_effort,
            extra_body=model.extra_body,
            price=price,
            folder=live.agent.folder if local else None,
            adapter=live.agent.adapter if local and as_here else None,
            weights=model.weights,
        )
        return replace(
            live,
            agent=agent,
            extra_instruction=extra if isinstance(extra, str) else "",
            routes=live.routes if local and as_here else None,
        )

    @staticmethod
    def _name(agent: ModelSettings, as_here: bool) -> str:
        """The name of the baseline's model at the server of the agent's folder."""
        return agent.model if as_here or agent.folder is None else agent.folder.name


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def how_to_confirm(
    policy: Policy | None, given: int | None, sides: BaselineSides, suites: Mapping[str, PlannedSuite]
) -> Confirm | None:
    """Return how a run confirms regressions; None without a policy that confirms them.

    Args:
        policy: The gate's policy; None if the gate is off.
        given: The user's budget of fresh simulations; None if not given.
        sides: Finds the parties that rerun the baselines.
        suites: The run's suites.

    Raises:
        ConfigError: a budget is given although nothing is confirmed, or a suite's trial numbers overlap
            those of fresh trials.
    """
    if policy is None or not policy.confirms:
        if given:
            why = "the gate is off" if policy is None else f"policy {policy.name!r} confirms no falls"
            raise ConfigError(f"--t2e-max-reruns {given} has no effect: {why}")
        return None
    confirm = sides.find(
        {name: suite.baseline for name, suite in suites.items() if suite.baseline is not None},
        {name: suite.agent for name, suite in suites.items()},
        {name: suite.identity for name, suite in suites.items()},
        policy.confirm if given is None else given,
    )
    first = min(FIRST_FRESH_TRIAL.values())
    for name in confirm.sides if confirm.possible else ():
        if suites[name].trials > first:
            raise ConfigError(
                f"suite {name!r} has {suites[name].trials} trials a task, and fresh trials are numbered from "
                f"{first}: run fewer, or give --t2e-max-reruns 0"
            )
    return confirm
