"""Runs single cases, for tests that search for cases on which an agent fails.

Agents are noisy, but a search for the smallest failing case needs stable outcomes. So every outcome is stored
by agent, case and a seed derived from the case.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pytest_trace2evolve.cases.case import Case
from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.engine.conversation import Assignment, Limits, simulate
from pytest_trace2evolve.engine.engine import Engine, Job, StorageLocation, as_storage_error
from pytest_trace2evolve.engine.factories import open_answer_stores
from pytest_trace2evolve.engine.function_agent import make_factory
from pytest_trace2evolve.engine.loop import LoopThread
from pytest_trace2evolve.errors import (
    ConfigError,
    InfrastructureError,
    Trace2EvolveError,
)
from pytest_trace2evolve.evidence.draws import DrawStore, simulation_key
from pytest_trace2evolve.project.candidates import AgentFactory
from pytest_trace2evolve.records.evidence import SCRIPTED_USER, Settings
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.score import Score, Status
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.invariants import breaches_in
from pytest_trace2evolve.scoring.metrics import SUCCESS
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.session.candidate_models import recording_path
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.worlds.registry import Worlds

LIMITS = Limits(max_steps=60, timeout=900.0)
"""Limits of one simulation."""

MAX_MESSAGE_LENGTH = 200
"""Maximum characters that a failure shows of a message."""


class CaseFailed(AssertionError):  # noqa: N818 - an outcome, not a program error
    """An agent failed on a case. Only `Outcome.require` and `Outcome.require_invariants` raise this error."""

    __module__ = "trace2evolve"  # a short name leaves room for the case in pytest's summary

    def __init__(self, case: Case, text: str) -> None:
        super().__init__(text)
        self.case = case


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case: the conversation, its score by τ²'s rules, and its breaches of invariants."""

    case: Case
    simulation: Simulation
    score: Score
    violations: tuple[Finding, ...] = ()

    @property
    def reward(self) -> float | None:
        """The reward; None if it was not measured."""
        return self.score.reward

    @property
    def passed(self) -> bool:
        """Whether the agent solved the case without breaking an invariant."""
        return (self.reward or 0.0) >= SUCCESS and not self.violations

    def require(self) -> None:
        """Require that the case passed.

        Raises:
            CaseFailed: the case did not pass; the message holds the reason and the conversation.
        """
        __tracebackhide__ = True
        if not self.passed:
            raise CaseFailed(self.case, self.explain())

    def require_invariants(self) -> None:
        """Require that no invariant was broken, whether or not the case was solved.

        Raises:
            CaseFailed: an invariant was broken; the message holds the reason and the conversation.
        """
        __tracebackhide__ = True
        if self.violations:
            raise CaseFailed(self.case, self.explain())

    def explain(self) -> str:
        """Return several lines that say why the case did not pass, followed by the conversation."""
        missed_components = [
            name.value for name in self.score.basis if self.score.components.get(name, 1.0) < 1.0
        ]
        reasons = [
            f"{violation.invariant.value}: message {violation.message}: {violation.why}"
            for violation in self.violations
        ]
        if (self.reward or 0.0) < SUCCESS:
            components_text = f" (below 1: {', '.join(missed_components)})" if missed_components else ""
            termination_reason = self.simulation.termination_reason
            reasons.insert(0, f"reward {self.reward}{components_text}, ended by {termination_reason}")
        if (error := self.simulation.agent_error) is not None:
            verb = "raised" if error.frames else "failed:"
            reasons.append(f"the agent {verb} {error.text}\n{error.frames}".rstrip())
        lines = [f"case {self.case.id}", *reasons]
        for index, message in enumerate(self.simulation.trace):
            calls = [f"{call.name}({call.arguments})" for call in message.tool_calls or ()]
            content = " ".join([*([message.text] if message.text else []), *calls])
            lines.append(f"  [{index}] {message.role}: {content[:MAX_MESSAGE_LENGTH]}")
        return "\n".join(lines)


class CaseRunner:
    """Runs cases for the tests of one process.

    Args:
        plan: The run's plan, with its candidate and models.
        worlds: Opens worlds.
        agents: The registered agents by name, except agent `chat`.
        account: The account of a live run's budget.
    """

    def __init__(
        self, plan: Plan, worlds: Worlds, agents: Mapping[str, AgentFactory], account: Account | None
    ) -> None:
        self._plan = plan
        self._worlds = worlds
        self._exit_stack = contextlib.ExitStack()
        self._loop = LoopThread(1)
        self._exit_stack.callback(self._loop.close)
        self._outcomes: dict[str, Outcome] = {}
        self._simulation_count = 0
        self._engine = None
        if account is not None:
            self._engine = Engine(self._loop, account, plan.project.finished_folder, self._simulate)
        try:
            self._name, self._factory = self._make_agent_factory(agents, account)
        except ConfigError:
            self.close()
            raise

    @property
    def made_simulations(self) -> int:
        """The number of simulations made so far, not counting stored ones."""
        return self._simulation_count

    def has_outcome(self, case: Case, provider: str, domain: str) -> bool:
        """Return whether the outcome of a case is stored."""
        key = self._simulation_key(case, self._worlds.open(provider, domain))
        return key in self._outcomes or self._stored_simulation(key) is not None

    def run(self, case: Case, provider: str, domain: str) -> Outcome:
        """Return the stored outcome of a case, or make a simulation.

        Raises:
            EndpointError: the endpoint rejects a request that every further simulation would make too.
            BudgetError: the run's budget is spent.
            InfrastructureError: the simulation was lost, or its reward could not be measured.
        """
        world = self._worlds.open(provider, domain)
        key = self._simulation_key(case, world)
        if key not in self._outcomes:
            simulation = self._stored_simulation(key)
            if simulation is None:
                simulation = self._make_simulation(case, world, key)
            self._outcomes[key] = self._score_case(case, world, simulation)
        outcome = self._outcomes[key]
        if outcome.case is not case:
            # Hypothesis may make an equal case again; the outcome then refers to the new object.
            outcome = self._outcomes[key] = replace(outcome, case=case)
        return outcome

    def close(self) -> None:
        """Close the event loop and its resources."""
        self._exit_stack.close()

    def _make_simulation(self, case: Case, world: World, key: str) -> Simulation:
        assignment = Assignment(case.task, world, self._factory, self._plan.candidate, seed_of(case), LIMITS)
        try:
            if self._engine is None:
                simulation = self._loop.run(self._simulate(assignment))
            else:
                store = self._store
                location = None if store is None else StorageLocation(store, store.draw_key(key))
                self._engine.forget_lost()
                job = Job(assignment, declare=lambda: None, location=location)
                simulation = self._loop.run(self._engine.make(job))
        except InfrastructureError as error:
            if isinstance(error.__cause__, Trace2EvolveError):
                raise error.__cause__ from None
            raise InfrastructureError(f"case {case.id!r} was lost: {error}") from error
        except Trace2EvolveError:
            raise
        except Exception as error:
            # An error in the code of the user or the world says nothing about the agent.
            raise InfrastructureError(
                f"case {case.id!r} was lost: {type(error).__name__}: {error}"
            ) from error
        if simulation.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR:
            raise InfrastructureError(
                f"case {case.id!r} was lost: {simulation.error_text or 'no reason is known'}"
            )
        return simulation

    async def _simulate(self, *arguments: Any) -> Simulation:
        self._simulation_count += 1
        return await simulate(*arguments)

    def _score_case(self, case: Case, world: World, simulation: Simulation) -> Outcome:
        result = score(simulation, case.task, world, self._plan.judge)
        if result.status is not Status.MEASURED:
            raise InfrastructureError(f"case {case.id!r} was not measured: {result.note}")
        violations = breaches_in(simulation, result, world) or ()
        return Outcome(case, simulation, result, violations)

    @cached_property
    def _store(self) -> DrawStore | None:
        """The store of simulations, which keeps the first simulation of each case.

        None for fresh runs, and for agents without a model, which have no settings to identify them.

        The store's account is separate from the accounts of suites, which name digests of the conditions. The
        key of a case holds the conditions instead.
        """
        plan = self._plan
        if plan.live is None or plan.is_fresh:
            return None
        record = plan.live.agent_settings().model_dump(mode="json")
        # Nothing can prove that the project's own agent still behaves as in an earlier run.
        agent = digest(record if plan.live.function is None else [record, plan.run_id])
        identity = (plan.candidate.digest, agent, "pressure tests")
        return DrawStore(plan.project.finished_folder, plan.project.draws_folder, identity, plan.run_id)

    def _stored_simulation(self, key: str) -> Simulation | None:
        """Return the stored simulation of a case.

        Raises:
            StorageError: the stored simulation was changed or deleted, or cannot be read.
        """
        if self._store is None:
            return None
        with as_storage_error(self._store.path):
            return self._store.get(self._store.draw_key(key))

    def _simulation_key(self, case: Case, world: World) -> str:
        live = self._plan.live
        agent = Settings(implementation=self._name) if live is None else live.agent_settings()
        is_unknown = agent.code is not None and bool(agent.code.unknown)
        user = Settings(implementation=SCRIPTED_USER)
        if live is not None and not live.uses_scripts:
            guidelines = digest_text(world.guidelines())
            user = live.user_settings().model_copy(update={"guidelines": guidelines})
        return simulation_key(
            {
                "candidate": self._plan.candidate.digest,
                "case": case.digest,
                "world": [world.provider, world.domain, world.policy(), world.data_digest()],
                "code": self._worlds.code(world.provider, world.domain).digest or self._plan.run_id,
                "agent": agent.model_dump(mode="json"),
                "user": user.model_dump(mode="json"),
                "seed": seed_of(case),
                **({"agent_run": self._plan.run_id} if is_unknown else {}),
                **({"cassette": live.cassette.header.digest} if live and live.cassette else {}),
                "budgets": [LIMITS.max_steps, LIMITS.max_errors, LIMITS.timeout],
            }
        )

    def _make_agent_factory(
        self, agents: Mapping[str, AgentFactory], account: Account | None
    ) -> tuple[str, AgentFactory]:
        if self._plan.live is not None:
            assert account is not None
            cache, record = self._plan.project.answers_cache, recording_path(self._plan.run_folder)
            stores = self._exit_stack.enter_context(open_answer_stores(self._plan.live, cache, record))
            live = self._plan.live
            return live.agent_name, make_factory(live, self._loop.on_close, account, **stores)
        name = self._plan.agent
        if name is None:
            raise ConfigError(
                "no agent for 'run_case': give --t2e-agent or --t2e-model, or the ini key t2e_agent"
            )
        return name, agents[name]


def seed_of(case: Case) -> int:
    """Return a case's seed, from the first six hexadecimal digits of its digest."""
    return int(case.digest[:6], 16)
