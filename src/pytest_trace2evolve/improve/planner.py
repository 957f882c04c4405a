"""Makes the plan of an evolution, and validates all options before training or a run starts."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from pytest_trace2evolve.engine.live import is_model_folder
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, LockError, PolicyError
from pytest_trace2evolve.evidence.results import ResultsFile, read_results
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY
from pytest_trace2evolve.improve.plan import EvolutionPlan
from pytest_trace2evolve.project.candidates import ADAPTER_SEPARATOR, DEFAULT_CANDIDATE
from pytest_trace2evolve.project.lock import RENEW_REMEDY
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.verdict import Estimand, Goal
from pytest_trace2evolve.serving.folder import ModelFolder, expand_home, folder_digest, read_model
from pytest_trace2evolve.session.comparability import check_comparable, check_unedited
from pytest_trace2evolve.session.evidence_sources import (
    expand_run_folders,
    file_provenance,
    find_run,
    mode_of,
)
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.plan import Options, Plan
from pytest_trace2evolve.session.planner import Resources, make_plan
from pytest_trace2evolve.session.settings import Context, check_not_empty, read_judge, read_options
from pytest_trace2evolve.session.verdicts import gated_splits
from pytest_trace2evolve.training.recipe import check_count, read_recipe
from pytest_trace2evolve.training.train import check_packages
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.files import real_path
from pytest_trace2evolve.utils.option_types import MAX_SEED
from pytest_trace2evolve.utils.reading import parse_toml, read_text
from pytest_trace2evolve.utils.resources import embedded_model

GATE_OFF_PROBLEM = "only the gate's verdict can promote an adapter"


def plan_evolution(
    arguments: argparse.Namespace,
    values: SimpleNamespace,
    resources: Resources,
    environments: Environments,
    context: Context,
) -> EvolutionPlan:
    """Validate the options of `trace2evolve evolve`, and make a plan from them.

    `values` contains the options of each run, as returned by `run_values`.

    Raises:
        ConfigError: a value is invalid, the run is unknown or unsuitable, no environment has the tools of the
            run's world, or no adapter could be promoted.
        CandidateError: the candidate does not exist.
        ModelFolderError: the base is not a model folder.
        MissingExtraError: a package that training needs is not installed.
        ResultsError: the run is damaged, was edited, or is not comparable with runs of its adapters.
    """
    project = resources.project
    _check_numbers(arguments)
    check_not_empty(values)
    values = SimpleNamespace(**vars(values))
    if values.t2e_user_model and is_model_folder(values.t2e_user_model, context.base_folder):
        values.t2e_user_model = str(real_path(context.base_folder / expand_home(Path(values.t2e_user_model))))
    recipe = read_recipe(arguments.preset, arguments.config, steps=arguments.steps)
    check_packages()
    source = (
        None
        if arguments.from_run is None
        else read_source_run(find_run(arguments.from_run, project, context.base_folder))
    )
    if source is not None:
        for origin in source.origins:
            environments.require_tools_of(f"run {arguments.from_run}", (origin.provider, origin.domain))
    candidate = arguments.candidate or (DEFAULT_CANDIDATE if source is None else source.candidate)
    if ADAPTER_SEPARATOR in candidate:
        base_candidate = candidate.partition(ADAPTER_SEPARATOR)[0]
        raise ConfigError(
            f"candidate {candidate!r} uses an adapter, but adapters are trained on the base model alone; "
            f"evolve {base_candidate!r} instead"
        )
    _ = project.candidates[candidate]
    base = read_model(
        embedded_model()
        if arguments.base is None
        else real_path(context.base_folder / expand_home(arguments.base))
    )
    if source is not None:
        source.check_origins(candidate, base)
        values.t2e_suite = source.select_suites(values.t2e_suite)
    if arguments.base is not None:
        values.t2e_model = str(base.path)
    else:
        _check_agent(project, values, context)
    options = read_options(values, context)
    check_gate_can_promote(options, project.root, has_own_gate=values.t2e_gate is not None)
    judge = read_judge(values)
    baseline = None if source is None else str(source.folder.resolve())
    plan = make_plan(
        replace(options, candidate=candidate, baseline=baseline),
        resources,
        suite_names=project.suite_names,
        judge=judge,
    )
    _check_suites(plan, environments, is_new=source is None)
    if source is not None:
        source.check_tasks(plan)
        source.check_evidence(plan)
    # With one training run more than cores, the last one does not run alone while other cores are idle.
    default_parallel = (
        min(arguments.max_adapters, (os.cpu_count() or 1) + 1) if arguments.preset == "pocket" else 1
    )
    return EvolutionPlan(
        candidate=candidate,
        run=None if source is None else source.folder,
        base=base,
        recipe=recipe,
        preset=arguments.preset,
        options=options,
        suites=tuple(plan.suites),
        judge=judge,
        values=values,
        content_digest=_content_digest(plan, environments, source),
        simulations=sum(len(suite.lock.tasks) * suite.trials for suite in plan.suites.values()),
        max_fresh_simulations=0 if plan.confirmation is None else plan.confirmation.budget,
        max_adapters=arguments.max_adapters,
        heldout_scenarios=arguments.heldout,
        heldout_rollouts=arguments.heldout_rollouts,
        max_parallel=arguments.parallel or default_parallel,
        max_rollouts=arguments.max_rollouts,
        max_minutes=arguments.max_minutes,
    )


def _check_numbers(arguments: argparse.Namespace) -> None:
    check_count("--max-adapters", arguments.max_adapters, 1)
    check_count("--heldout", arguments.heldout, 2)
    check_count("--max-rollouts", arguments.max_rollouts, 1, MAX_SEED)
    if arguments.max_minutes is not None and arguments.max_minutes <= 0:
        raise ConfigError(f"--max-minutes {arguments.max_minutes:g}: must be more than 0")


def _check_agent(project: Project, values: SimpleNamespace, context: Context) -> None:
    """Check that no setting names an agent other than the embedded model."""
    agent_settings = (
        [f"t2e_agent = {context.agent} in the pytest settings of {project.root}"] if context.agent else []
    )
    for name in values.t2e_suite or project.suite_names:
        if agent := project.suite(name).default_agent:
            agent_settings.append(f"{project.suite_path(name)}: default_agent = {agent}")
    if agent_settings:
        raise ConfigError(
            f"{agent_settings[0]}: the runs would use this agent, but adapters are trained for the "
            "embedded model; remove the setting, or name the folder of a base model, which the runs then "
            "use (--base DIR; with pytest --t2e-model ./DIR)"
        )


def check_gate_can_promote(options: Options, root: Path, *, has_own_gate: bool) -> None:
    """Check that the gate can promote an adapter."""
    if options.goal is Goal.NO_REGRESSION:
        raise ConfigError(
            f"--t2e-goal={options.goal.value}: an evolution keeps only what the gate promotes, but this "
            "goal proves nothing; use improve or hold"
        )
    if options.gate == "off" and has_own_gate:
        raise ConfigError(f"--t2e-gate=off: {GATE_OFF_PROBLEM}; remove the option")
    if options.gate == "off":
        raise ConfigError(
            f"t2e_gate = off in the pytest settings of {root}: {GATE_OFF_PROBLEM}; name a policy, for "
            "example "
            f"--t2e-gate {DEFAULT_POLICY}"
        )


def _check_suites(plan: Plan, environments: Environments, *, is_new: bool) -> None:
    """Check that adapters can be trained for the suites of a run, and that these suites can judge them."""
    project, suites = plan.project, plan.suites
    if is_new and len({planned.suite.mode for planned in suites.values()}) > 1:
        names = ", ".join(f"{name} ({planned.suite.mode.short_text})" for name, planned in suites.items())
        raise ConfigError(
            f"the suites to run cover several domains: {names}; an evolution learns from one domain: name "
            f"its suites, for example --t2e-suite {next(iter(suites))}"
        )
    for name, planned in suites.items():
        environments.require_tools_of(f"suite {name}", (planned.suite.provider, planned.suite.domain))
        if unknown := sorted(planned.lock.splits.keys() - project.splits.keys()):
            raise LockError(
                f"{planned.path}: split {unknown[0]!r} is in {project.lock_path.name} but not in any "
                "registry; "
                f"{RENEW_REMEDY}"
            )
    locks = {name: planned.lock for name, planned in suites.items()}
    if not any(not is_guard for lock in locks.values() for _, is_guard in gated_splits(project, lock.splits)):
        names = ", ".join(f"{name} ({', '.join(lock.splits)})" for name, lock in locks.items())
        raise ConfigError(
            f"no suite to run has a split that decides: {names or 'there are no suites'}; name a suite "
            "with a held-out or a development split"
        )


def _content_digest(plan: Plan, environments: Environments, source: "SourceRun | None") -> str:
    """Return the digest of the content on which the identity of an evolution depends."""
    assert plan.policy is not None
    policy_parts = [plan.policy.name]
    path = plan.project.policies_folder / f"{plan.policy.name}.toml"
    if path.is_file():
        policy_parts.append(digest(parse_toml(read_text(path, PolicyError))))
    policy_parts += [
        f"{name} {Estimand.SUITE}"
        for name, planned in plan.suites.items()
        if (suite_policy := plan.policy_of(planned)) and suite_policy.estimand is Estimand.SUITE
    ]
    files = [] if source is None else source.files
    runs = [
        [file_provenance(file).run_id or "", *sorted(simulation.id for simulation in file.simulations)]
        for file in files
    ]
    return digest(
        {
            "candidate": plan.candidate.digest,
            "run": sorted(runs),
            "suites": {name: planned.lock.digest for name, planned in plan.suites.items()},
            "environments": {
                name: environments.generator(name, EASIEST).digest for name in environments.names
            },
            "gate": policy_parts,
        }
    )


@dataclass(frozen=True)
class SourceRun:
    """A run from whose failures an evolution learns."""

    folder: Path
    files: Sequence[ResultsFile]

    @property
    def origins(self) -> list[Provenance]:
        """The provenance of the run's files."""
        return [file_provenance(file) for file in self.files]

    @property
    def candidate(self) -> str:
        """The run's candidate.

        Raises:
            ConfigError: the run has no candidate, or several.
        """
        candidates = {origin.candidate.id for origin in self.origins if origin.candidate is not None}
        if len(candidates) != 1:
            raise ConfigError(
                f"{self.folder}: contains {len(candidates)} candidates; name one with --candidate"
            )
        return candidates.pop()

    def select_suites(self, requested: Sequence[str] | None) -> list[str] | None:
        """Return the suites on which adapters are judged: the requested suites, or else all of the run.

        Raises:
            ConfigError: the run does not contain a requested suite.
        """
        run_suites = sorted({origin.suite for origin in self.origins if origin.suite is not None})
        for name in requested or ():
            if run_suites and name not in run_suites:
                raise ConfigError(
                    f"--t2e-suite {name}: run {self.folder.name} contains only {', '.join(run_suites)}, "
                    "and adapters are compared with that run; name suites of the run, or none"
                )
        return list(requested or run_suites) or None

    def check_origins(self, candidate: str, base: ModelFolder) -> None:
        """Check that the run belongs to this candidate and used the base as the agent's model.

        Raises:
            ConfigError: the run has a different candidate or a different model.
        """
        for origin in self.origins:
            run_candidate = origin.candidate.id if origin.candidate else None
            if run_candidate != candidate:
                raise ConfigError(
                    f"run {self.folder.name} has candidate {run_candidate!r}, but the candidate to evolve "
                    f"is {candidate!r}; name the run's candidate, or a different run"
                )
            run_digest, base_digest = (origin.agent.arguments or {}).get("weights"), folder_digest(base.path)
            if run_digest != base_digest:
                raise ConfigError(
                    f"run {self.folder.name} used model {origin.agent.model!r} ({str(run_digest)[:12]}), "
                    f"but the base is {base.name!r} ({base_digest[:12]}), so the failures are not the "
                    "base's; name the folder of the run's model with --base"
                )

    def check_tasks(self, plan: Plan) -> None:
        """Check that the run contains every task that decides about adapters, including tasks of guards.

        Raises:
            ConfigError: the run lacks a task.
        """
        for name, planned in plan.suites.items():
            simulated_ids = {
                simulation.task_id
                for file in self.files
                if file_provenance(file).suite in (None, name)
                for simulation in file.simulations
            }
            for split, _ in gated_splits(plan.project, planned.lock.splits):
                tasks = planned.lock.splits[split]
                if missing_count := len(tasks.keys() - simulated_ids):
                    raise ConfigError(
                        f"run {self.folder.name} lacks {missing_count} of {len(tasks)} tasks of "
                        f"{name}::{split}, which decide about its adapters; run the whole suite, without "
                        "options that select tasks and with sufficient budgets"
                    )

    def check_evidence(self, plan: Plan) -> None:
        """Check that the run's traces were not edited, and that runs of adapters can be compared with it.

        `plan` is the plan of a run of the same candidate with this run as the baseline.

        Raises:
            ResultsError: the run was edited, or is not comparable.
        """
        for planned in plan.suites.values():
            if planned.baseline is not None:
                check_comparable(plan, planned)
        for _ in check_unedited(plan, ProjectLedger(plan.project)):
            pass  # only a note; the runs of the adapters report it again


def read_source_run(run: Path) -> SourceRun:
    """Read a run to learn from.

    Raises:
        ConfigError: the run covers several domains.
        ResultsError: the run contains no results, or one of its files is damaged.
    """
    files = [read_results(path) for path in expand_run_folders([run])]
    if len({mode_of(file) for file in files}) > 1:
        names = ", ".join(sorted(f"{file.path.name} ({mode_of(file).short_text})" for file in files))
        raise ConfigError(
            f"run {run.name} covers several domains: {names}; an evolution learns from one domain: name "
            f"the folder of one suite, for example --from-run {files[0].path}"
        )
    return SourceRun(run, files)
