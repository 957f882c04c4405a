"""Makes the plan of an evolution, and validates all options before any training or run starts."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from pytest_trace2evolve.engine.live import names_folder
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, LockError, PolicyError
from pytest_trace2evolve.evidence.integrity import edits_in_run
from pytest_trace2evolve.evidence.results import ResultsFile, read_results
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY
from pytest_trace2evolve.improve.plan import EvolutionPlan
from pytest_trace2evolve.project.candidates import DEFAULT_CANDIDATE, WITH
from pytest_trace2evolve.project.lock import RENEW
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.ledger import Evaluation
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.serving.folder import ModelFolder, expanded, folder_digest, read_model
from pytest_trace2evolve.session.comparability import check_comparable, check_unedited
from pytest_trace2evolve.session.evidence_sources import expand, mode_of, provenance
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.plan import Options, Plan
from pytest_trace2evolve.session.planner import Resources, make_plan
from pytest_trace2evolve.session.settings import Context, check_values, read_judge, read_options
from pytest_trace2evolve.session.traces import find_run
from pytest_trace2evolve.session.verdicts import gated_splits
from pytest_trace2evolve.training.recipe import check_count, read_recipe
from pytest_trace2evolve.training.train import check_packages
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.option_types import MOST_SEED
from pytest_trace2evolve.utils.reading import parse_toml, read_text
from pytest_trace2evolve.utils.resources import embedded_model

GATE_OFF = "an adapter is promoted by the gate's verdict alone"


def plan_evolution(
    asked: argparse.Namespace,
    values: SimpleNamespace,
    resources: Resources,
    environments: Environments,
    context: Context,
) -> EvolutionPlan:
    """Validate the options of `trace2evolve evolve`, and make a plan from them.

    `values` holds the options of each run, as returned by `run_values`.

    Raises:
        ConfigError: a value is invalid, the run is unknown or unsuitable, no environment has the tools of the
            run's world, or no adapter could be promoted.
        CandidateError: the candidate does not exist.
        ModelFolderError: the base is not the folder of a model.
        MissingExtraError: a package that training needs is not installed.
        ResultsError: the run is damaged, was edited, or is not comparable with runs of its adapters.
    """
    project = resources.project
    _check_numbers(asked)
    check_values(values)
    values = SimpleNamespace(**vars(values))
    if values.t2e_user_model and names_folder(values.t2e_user_model, context.here):
        values.t2e_user_model = str((context.here / expanded(Path(values.t2e_user_model))).resolve())
    recipe = read_recipe(asked.preset, asked.config, seed=asked.seed, steps=asked.steps)
    check_packages()
    source = None if asked.from_run is None else read_source(find_run(asked.from_run, project, context.here))
    if source is not None:
        for origin in source.origins:
            environments.require_tools_of(f"run {asked.from_run}", (origin.provider, origin.domain))
    candidate = asked.candidate or (DEFAULT_CANDIDATE if source is None else source.candidate)
    if WITH in candidate:
        text = candidate.partition(WITH)[0]
        raise ConfigError(
            f"candidate {candidate!r} talks with an adapter, and adapters are trained on the base alone: "
            f"evolve {text!r}"
        )
    _ = project.candidates[candidate]
    base = read_model(
        embedded_model() if asked.base is None else (context.here / expanded(asked.base)).resolve()
    )
    if source is not None:
        source.check_origins(candidate, base)
        values.t2e_suite = source.suites(values.t2e_suite)
    if asked.base is not None:
        values.t2e_model = str(base.path)
    else:
        _check_agent(project, values, context)
    options = read_options(values, context)
    _check_promotes(options, project.root, has_own_gate=values.t2e_gate is not None)
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
    # With one more training than cores, no core is idle while the last training runs alone.
    at_once = min(asked.max_adapters, (os.cpu_count() or 1) + 1) if asked.preset == "pocket" else 1
    return EvolutionPlan(
        candidate=candidate,
        run=None if source is None else source.folder,
        base=base,
        recipe=recipe,
        preset=asked.preset,
        options=options,
        suites=tuple(plan.suites),
        judge=judge,
        values=values,
        content=_content(plan, environments, source),
        simulations=sum(len(suite.lock.tasks) * suite.trials for suite in plan.suites.values()),
        fresh=0 if plan.confirm is None else plan.confirm.budget,
        max_adapters=asked.max_adapters,
        heldout=asked.heldout,
        rollouts=asked.heldout_rollouts,
        parallel=asked.parallel or at_once,
        max_rollouts=asked.max_rollouts,
        max_minutes=asked.max_minutes,
    )


def _check_numbers(asked: argparse.Namespace) -> None:
    check_count("--max-adapters", asked.max_adapters, 1)
    check_count("--heldout", asked.heldout, 2)
    check_count("--heldout-rollouts", asked.heldout_rollouts, 1)
    check_count("--parallel", asked.parallel, 1)
    check_count("--max-rollouts", asked.max_rollouts, 1, MOST_SEED)
    if asked.max_minutes is not None and asked.max_minutes <= 0:
        raise ConfigError(f"--max-minutes {asked.max_minutes:g}: must be more than 0")


def _check_agent(project: Project, values: SimpleNamespace, context: Context) -> None:
    """Check that no setting names a different agent than the embedded model."""
    where = [f"t2e_agent = {context.agent} in the pytest settings of {project.root}"] if context.agent else []
    for name in values.t2e_suite or project.suite_names:
        if agent := project.suite(name).default_agent:
            where.append(f"{project.suite_path(name)}: default_agent = {agent}")
    if where:
        raise ConfigError(
            f"{where[0]}: that agent would talk, and adapters are of the embedded model; remove it, or name "
            "a base in a folder, which talks then (--base DIR; with pytest --t2e-model ./DIR)"
        )


def _check_promotes(options: Options, root: Path, *, has_own_gate: bool) -> None:
    """Check that the gate can promote an adapter."""
    if options.goal is Goal.NO_REGRESSION:
        raise ConfigError(
            f"--t2e-goal={options.goal.value}: an evolution keeps what the gate promotes, and this goal "
            "shows nothing; use improve or hold"
        )
    if options.gate == "off" and has_own_gate:
        raise ConfigError(f"--t2e-gate=off: {GATE_OFF}; leave it out")
    if options.gate == "off":
        raise ConfigError(
            f"t2e_gate = off in the pytest settings of {root}: {GATE_OFF}; name a policy, as in "
            f"--t2e-gate {DEFAULT_POLICY}"
        )


def _check_suites(plan: Plan, environments: Environments, *, is_new: bool) -> None:
    """Check that adapters can be trained for the suites of a run, and that these suites can judge them."""
    project, suites = plan.project, plan.suites
    if is_new and len({planned.suite.mode for planned in suites.values()}) > 1:
        names = ", ".join(f"{name} ({planned.suite.mode.brief})" for name, planned in suites.items())
        raise ConfigError(
            f"suites of several domains would be run: {names}; capabilities are learnt from one: name its "
            f"suites, as in --t2e-suite {next(iter(suites))}"
        )
    for name, planned in suites.items():
        environments.require_tools_of(f"suite {name}", (planned.suite.provider, planned.suite.domain))
        if unknown := sorted(planned.lock.splits.keys() - project.splits.keys()):
            raise LockError(
                f"{planned.path}: split {unknown[0]!r} is in {project.lock_path.name} and in no registry; "
                f"{RENEW}"
            )
    locks = {name: planned.lock for name, planned in suites.items()}
    if not any(not is_guard for lock in locks.values() for _, is_guard in gated_splits(project, lock.splits)):
        names = ", ".join(f"{name} ({', '.join(lock.splits)})" for name, lock in locks.items())
        raise ConfigError(
            f"no split decides in the suites that would be run: {names or 'there are none'}; name one that "
            "has a held-out or a development split"
        )


def _content(plan: Plan, environments: Environments, source: "Source | None") -> str:
    """Digest of the content that an evolution works on; different content means a different evolution."""
    assert plan.policy is not None
    policy = [plan.policy.name]
    path = plan.project.policies_folder / f"{plan.policy.name}.toml"
    if path.is_file():
        policy.append(digest(parse_toml(read_text(path, PolicyError))))
    files = [] if source is None else source.files
    runs = [
        [provenance(file).run_id or "", *sorted(simulation.id for simulation in file.simulations)]
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
            "gate": policy,
        }
    )


@dataclass(frozen=True)
class Source:
    """A run from whose failures an evolution learns."""

    folder: Path
    files: Sequence[ResultsFile]

    @property
    def origins(self) -> list[Provenance]:
        """The provenance of the run's files."""
        return [provenance(file) for file in self.files]

    @property
    def candidate(self) -> str:
        """The run's candidate.

        Raises:
            ConfigError: the run has no candidate, or several.
        """
        found = {origin.candidate.id for origin in self.origins if origin.candidate is not None}
        if len(found) != 1:
            raise ConfigError(f"{self.folder}: is of {len(found)} candidates; name one with --candidate")
        return found.pop()

    def suites(self, named: Sequence[str] | None) -> list[str] | None:
        """The suites on which adapters are judged: the named suites, or else all suites of the run.

        Raises:
            ConfigError: the run does not contain a named suite.
        """
        held = sorted({origin.suite for origin in self.origins if origin.suite is not None})
        for name in named or ():
            if held and name not in held:
                raise ConfigError(
                    f"--t2e-suite {name}: run {self.folder.name} is of {', '.join(held)}, and with that an "
                    "adapter is compared; name those, or none"
                )
        return list(named or held) or None

    def check_origins(self, candidate: str, base: ModelFolder) -> None:
        """Check that the run belongs to this candidate and used the base as the agent's model.

        Raises:
            ConfigError: the run has a different candidate or a different model.
        """
        for origin in self.origins:
            named = origin.candidate.id if origin.candidate else None
            if named != candidate:
                raise ConfigError(
                    f"run {self.folder.name} is of candidate {named!r}, and {candidate!r} is to evolve; name "
                    "that one, or another run"
                )
            weights, own = (origin.agent.arguments or {}).get("weights"), folder_digest(base.path)
            if weights != own:
                raise ConfigError(
                    f"in run {self.folder.name} model {origin.agent.model!r} ({str(weights)[:12]}) talked, "
                    f"and the base is {base.name!r} ({own[:12]}): the failures are not the base's; name that "
                    "model's folder with --base"
                )

    def check_tasks(self, plan: Plan) -> None:
        """Check that the run contains every task that decides about adapters, including tasks of guards.

        Raises:
            ConfigError: the run lacks a task.
        """
        for name, planned in plan.suites.items():
            held = {
                simulation.task_id
                for file in self.files
                if provenance(file).suite in (None, name)
                for simulation in file.simulations
            }
            for split, _ in gated_splits(plan.project, planned.lock.splits):
                tasks = planned.lock.splits[split]
                if count := len(tasks.keys() - held):
                    raise ConfigError(
                        f"run {self.folder.name} lacks {count} of {len(tasks)} tasks of {name}::{split}, by "
                        "which its adapters would be judged; run the whole suite, without options that "
                        "narrow it and with budgets that suffice"
                    )

    def check_evidence(self, plan: Plan) -> None:
        """Check that the run was not edited, and that runs of adapters can be compared with it.

        `plan` is the plan of a run of the same candidate with this run as the baseline.

        Raises:
            ResultsError: the run was edited, or is not comparable.
        """
        ledger, runs = ProjectLedger(plan.project), {origin.run_id for origin in self.origins}
        entries = [entry for entry in ledger.entries if isinstance(entry, Evaluation) and entry.run in runs]
        for edit in edits_in_run(self.folder, entries):
            raise edit
        for planned in plan.suites.values():
            if planned.baseline is not None:
                check_comparable(plan, planned)
        for _ in check_unedited(plan, ledger):
            pass  # only a note; the runs of the adapters report it again


def read_source(run: Path) -> Source:
    """Read a run to learn from.

    Raises:
        ConfigError: the run covers several domains.
        ResultsError: the run holds no results, or one of its files is damaged.
    """
    files = [read_results(path) for path in expand([run])]
    if len({mode_of(file) for file in files}) > 1:
        names = ", ".join(sorted(f"{file.path.name} ({mode_of(file).brief})" for file in files))
        raise ConfigError(
            f"run {run.name} is of several domains: {names}; capabilities are learnt from one: give the "
            f"folder of its suite, as in --from-run {files[0].path}"
        )
    return Source(run, files)
