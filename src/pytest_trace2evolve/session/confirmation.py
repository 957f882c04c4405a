"""Plans how fresh trials confirm regressions: their budget, and the setup that reruns the baseline."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pytest_trace2evolve.engine.live import AgentFunction, CandidateSetup, LiveSettings
from pytest_trace2evolve.errors import AdapterError, CandidateError, ConfigError, ModelFolderError
from pytest_trace2evolve.gate.protocols import Policy
from pytest_trace2evolve.models.prices import PRICES_NAME, Price, read_prices
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import Candidate, describe_source
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import (
    CandidateRef,
    Code,
    Identity,
    Settings,
    code_differences,
    split_texts,
)
from pytest_trace2evolve.session.baselines import Baseline
from pytest_trace2evolve.session.candidate_models import models_of
from pytest_trace2evolve.session.gate_plan import read_inventory
from pytest_trace2evolve.session.plan import (
    AGENT_ENDPOINT,
    FIRST_FRESH_TRIAL,
    SCRIPTED_AGENTS,
    Confirmation,
    Options,
    PlannedSuite,
    first_names,
)
from pytest_trace2evolve.utils.git import checked_out, git_text
from pytest_trace2evolve.utils.import_path import project_paths
from pytest_trace2evolve.utils.secrets import REMOVAL_MARK

MAX_PAST_COMMITS = 10
"""The maximum number of commits that are searched for the code of a baseline."""


class _CannotRunError(Exception):
    """The baseline's side cannot be rerun; the message says why."""


@dataclass(frozen=True)
class _BaselineSetupFinder:
    """Finds the setup that reruns the baseline of a suite.

    `live_without_adapter` are the model settings before the candidate's adapter is applied.
    """

    options: Options
    live_without_adapter: LiveSettings | None
    project: Project

    @property
    def live(self) -> LiveSettings | None:
        """The model settings of this run; None if its agent comes from a plugin."""
        return self.options.live

    @cached_property
    def prices(self) -> Mapping[str, Price]:
        return read_prices(self.project.root / PRICES_NAME)

    def find(self, suites: Iterable[PlannedSuite], budget: int) -> Confirmation:
        """Return how a run confirms regressions."""
        sides: dict[str, CandidateSetup] = {}
        reasons: dict[str, str] = {}
        for suite in suites:
            if suite.baseline is None:
                continue
            try:
                sides[suite.name] = self._find_setup(suite.baseline, suite.agent, suite.identity)
            except _CannotRunError as reason:
                reasons[suite.name] = str(reason)
        return Confirmation(budget, sides, reasons)

    def _find_setup(self, baseline: Baseline, agent: str, identity: Identity) -> CandidateSetup:
        if self.live is not None and self.live.cassette is not None:
            raise _CannotRunError("the run plays a cassette back")
        if self.live is not None and self.live.record is not None:
            raise _CannotRunError("the run records a cassette, whose playback could not confirm regressions")
        if agent in SCRIPTED_AGENTS:
            raise _CannotRunError(f"agent {agent!r} makes no fresh trials")
        origin = baseline.evidence.provenance
        candidate = self._find_candidate(baseline.name, origin.candidate)
        # Each candidate may name its own agent function, so the names may differ.
        is_own = self.live is not None and self.live.function is not None
        if origin.agent.implementation != agent and not is_own:
            raise _CannotRunError(
                f"baseline {baseline.name!r} was measured with agent {origin.agent.implementation!r}, "
                f"but this run's agent is {agent!r}"
            )
        if self.live is not None:
            recorded_settings, recorded_texts = split_texts(origin.agent)
            self._check_same_texts(baseline.name, recorded_texts, split_texts(identity.agent)[1])
            return CandidateSetup(candidate, self._live_settings(baseline.name, recorded_settings, candidate))
        self._check_same_code(baseline.name, origin.agent.code, identity.agent.code)
        return CandidateSetup(candidate, None)

    @staticmethod
    def _check_same_texts(
        baseline: str, recorded_texts: Mapping[str, str], current_texts: Mapping[str, str]
    ) -> None:
        """Check that the candidate's texts of the world have not changed since the baseline was measured."""
        names = sorted(recorded_texts.keys() | current_texts.keys())
        if changed := [name for name in names if recorded_texts.get(name) != current_texts.get(name)]:
            raise _CannotRunError(
                f"the texts of the world changed since baseline {baseline!r} was saved "
                f"({first_names(changed)}), but only the current texts can be used"
            )

    @staticmethod
    def _check_same_code(baseline: str, recorded_code: Code | None, current_code: Code | None) -> None:
        """Check that the agent's code has not changed since the baseline was measured."""
        if recorded_code is None or recorded_code.unknown or current_code is None or current_code.unknown:
            raise _CannotRunError(f"it is unknown whether the current code measured baseline {baseline!r}")
        if changed_files := list(code_differences(recorded_code, current_code)):
            raise _CannotRunError(
                f"the agent's code changed since baseline {baseline!r} was saved "
                f"({first_names(changed_files)}), but only the current code can be run"
            )

    def _find_candidate(self, baseline: str, recorded_candidate: CandidateRef | None) -> Candidate:
        if recorded_candidate is None:
            raise _CannotRunError(f"baseline {baseline!r} does not record its candidate")
        if recorded_candidate.id not in self.project.candidates:
            raise _CannotRunError(f"its candidate {recorded_candidate.id!r} is not in candidates/")
        try:
            candidate = self.project.candidates[recorded_candidate.id]
        except (CandidateError, AdapterError) as error:
            raise _CannotRunError(str(error)) from None
        if candidate.digest != recorded_candidate.digest:
            raise _CannotRunError(
                f"{describe_source(recorded_candidate.id)} changed since baseline {baseline!r} was saved"
            )
        return candidate

    def _live_settings(
        self, baseline: str, recorded_settings: Settings, candidate: Candidate
    ) -> LiveSettings:
        """Return this run's settings with the model and request settings that the baseline recorded."""
        endpoint = self.options.baseline_endpoint
        assert self.live is not None
        is_own = self.live.function is not None
        if not is_own and recorded_settings == self.live.agent_settings() and endpoint == AGENT_ENDPOINT:
            return self.live
        try:
            candidate_live = models_of(
                candidate, self.live_without_adapter, self.project.adapters, self.prices
            )
        except (ConfigError, CandidateError, AdapterError, ModelFolderError) as error:
            raise _CannotRunError(str(error)) from None
        assert candidate_live is not None
        if is_own:
            return self._own_agent_settings(baseline, recorded_settings, candidate_live)
        if recorded_settings == candidate_live.agent_settings() and endpoint == AGENT_ENDPOINT:
            return candidate_live
        live = candidate_live if candidate.adapter or candidate.settings else self.live
        arguments = dict(recorded_settings.arguments or {})
        instruction = arguments.pop("extra_instruction", "")
        weights = arguments.get("weights")
        # A baseline measured without this run's adapter uses the same model folder.
        has_same_weights = weights == live.agent.weights
        if endpoint.url is None and not (
            has_same_weights or (weights and weights == live.agent.base_weights)
        ):
            raise _CannotRunError(
                f"its model {recorded_settings.model!r} differs from this run's model: it was a different "
                "folder, or served at an endpoint; give t2e_baseline_base_url"
            )
        baseline_url, run_url = arguments.get("endpoint"), live.agent.to_record().get("endpoint")
        if endpoint.url is None and baseline_url != run_url:
            raise _CannotRunError(
                f"its model {recorded_settings.model!r} ran at {baseline_url or 'the default endpoint'}, "
                f"but this run uses {run_url or 'the default endpoint'}; give t2e_baseline_base_url"
            )
        if REMOVAL_MARK in json.dumps(arguments):
            raise _CannotRunError(
                f"its model {recorded_settings.model!r} used a secret in t2e_extra_body, which is not stored"
            )
        try:
            model = ModelSettings.from_record(recorded_settings.model, arguments)
        except ValueError as error:
            raise _CannotRunError(f"its agent is not recorded completely: {error}") from None
        is_local = endpoint.url is None and model.weights is not None
        price = live.agent.price if is_local else self.prices.get(model.model)
        if self.options.budgets.cost is not None and price is None:
            raise _CannotRunError(f"--t2e-max-cost needs the price of its model {model.model!r}")
        folder = live.agent.folder
        name_at_server = live.agent.model if has_same_weights or folder is None else folder.name
        agent = replace(
            live.agent,
            model=name_at_server if is_local else model.model,
            base_url=live.agent.base_url if endpoint.url is None else endpoint.url,
            url_option=live.agent.url_option if endpoint.url is None else "t2e_baseline_base_url",
            api_key_env=endpoint.api_key_env or live.agent.api_key_env,
            temperature=model.temperature,
            seed=model.seed,
            reasoning_effort=model.reasoning_effort,
            extra_body=model.extra_body,
            parameters=model.parameters,
            price=price,
            folder=folder if is_local else None,
            adapter=live.agent.adapter if is_local and has_same_weights else None,
            weights=model.weights,
        )
        return replace(
            live,
            agent=agent,
            extra_instruction=instruction if isinstance(instruction, str) else "",
            routes=live.routes if is_local and has_same_weights else None,
        )

    def _own_agent_settings(
        self, baseline: str, recorded_settings: Settings, live: LiveSettings
    ) -> LiveSettings:
        """Return the settings of the project's own agent if they are those that the baseline recorded."""
        assert live.function is not None
        current_settings = live.agent_settings()
        if recorded_settings.implementation != current_settings.implementation:
            raise _CannotRunError(
                f"baseline {baseline!r} was measured with agent {recorded_settings.implementation!r}, but "
                f"its candidate and this run's options name {current_settings.implementation!r}"
            )
        try:
            self._check_same_code(baseline, recorded_settings.code, current_settings.code)
        except _CannotRunError:
            function = _past_function(live.function, recorded_settings.code, self.project.root)
            if function is None:
                raise
            live = replace(live, function=function)
            current_settings = live.agent_settings()
        if recorded_settings != current_settings or self.options.baseline_endpoint != AGENT_ENDPOINT:
            raise _CannotRunError(
                f"baseline {baseline!r} was measured with a different model or other parameters than those "
                "of its candidate and of this run's options"
            )
        assert self.live is not None
        assert self.live.function is not None
        assert live.function is not None
        return replace(live, function=replace(live.function, log_folder=self.live.function.log_folder))


def _past_function(function: AgentFunction, code: Code | None, root: Path) -> AgentFunction | None:
    """Return the function with the code of the latest commit that has the recorded code; None without one.

    These are the last commit, and those before a commit that changed one of the files that differ.
    """
    if code is None or code.unknown or function.code.distributions != code.distributions:
        return None
    paths = [f":(glob)**/{name}" for name in code_differences(code, function.code)]
    commits = git_text(root, "rev-list", "-n", str(MAX_PAST_COMMITS), "HEAD", "--", *paths) or ""
    for ref in ("HEAD", *(f"{commit}^" for commit in commits.split())):
        try:
            folder, _ = checked_out(root, ref)
            inventory = read_inventory(folder)
        except ConfigError:
            continue
        if any(code.files.items() <= files.items() for files in inventory.values()):
            folders = project_paths(root, folder)
            return replace(function, folder=folder, import_folders=folders, is_commit=True, code=code)
    return None


def plan_confirmation(
    policy: Policy | None,
    options: Options,
    live_without_adapter: LiveSettings | None,
    project: Project,
    suites: Mapping[str, PlannedSuite],
) -> Confirmation | None:
    """Return how a run confirms regressions; None without a policy that confirms them.

    Raises:
        ConfigError: a budget is given although nothing is confirmed, or a suite's trial numbers overlap
            those of fresh trials.
    """
    max_reruns = options.max_reruns
    if policy is None or not policy.confirms_regressions:
        if max_reruns:
            reason = (
                "the gate is off"
                if policy is None
                else f"policy {policy.name!r} does not confirm regressions"
            )
            raise ConfigError(f"t2e_max_reruns {max_reruns} has no effect: {reason}")
        return None
    finder = _BaselineSetupFinder(options, live_without_adapter, project)
    budget = policy.max_fresh_simulations if max_reruns is None else max_reruns
    confirmation = finder.find(suites.values(), budget)
    first_fresh_trial = min(FIRST_FRESH_TRIAL.values())
    for name in confirmation.sides if confirmation.is_possible else ():
        if suites[name].trials > first_fresh_trial:
            raise ConfigError(
                f"suite {name!r} has {suites[name].trials} trials per task, but fresh trials are numbered "
                f"from {first_fresh_trial}; run fewer, or give t2e_max_reruns 0"
            )
    return confirmation
