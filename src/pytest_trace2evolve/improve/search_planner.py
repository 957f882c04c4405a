"""Makes the plan of a search, and rejects a search that could not promote anything."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from pytest_trace2evolve.engine.live import is_model_folder
from pytest_trace2evolve.environments.generators.whole_tasks import FAMILY_NAMES
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.gate.alpha_spending import alpha_share
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY, policy_version
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.gate.tallies import Tally
from pytest_trace2evolve.improve.adapters import AdapterProposer
from pytest_trace2evolve.improve.arguments import search_values
from pytest_trace2evolve.improve.gepa import GepaProposer
from pytest_trace2evolve.improve.proposers import (
    AblateProposer,
    ParametersProposer,
    Proposer,
    TableProposer,
    rules_of,
)
from pytest_trace2evolve.improve.reflect import ReflectProposer, reflect_settings
from pytest_trace2evolve.improve.search import DEFAULT_RULES, HOLD_RULES
from pytest_trace2evolve.improve.search_sessions import STATE_FILE, SearchBudgets, SearchPlan
from pytest_trace2evolve.models.prices import PRICES_NAME, read_prices
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import ADAPTER_SEPARATOR, Candidate
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.serving.folder import expand_home, read_model
from pytest_trace2evolve.session.ledger import ProjectLedger, split_histories
from pytest_trace2evolve.session.plan import Options, Plan, PlannedSuite
from pytest_trace2evolve.session.planner import Resources, make_plan
from pytest_trace2evolve.session.provenance import agent_settings
from pytest_trace2evolve.session.settings import Context, check_not_empty, read_judge, read_options
from pytest_trace2evolve.session.traces import SEALED_ROLES
from pytest_trace2evolve.session.verdicts import gated_splits
from pytest_trace2evolve.training.recipe import read_recipe
from pytest_trace2evolve.training.train import check_packages
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.files import real_path
from pytest_trace2evolve.utils.optional import check_installed
from pytest_trace2evolve.utils.resources import embedded_model

REFLECTORS = ("reflect", "gepa")
"""The proposers that ask a model about conversations."""

_GATE_OFF_PROBLEM = "only the gate's verdict can promote a candidate"


def plan_search(
    arguments: argparse.Namespace, values: SimpleNamespace, resources: Resources, context: Context
) -> SearchPlan:
    """Validate the options of `trace2evolve improve`, and make a plan from them.

    Raises:
        ConfigError: an option is invalid, or the search could not promote anything.
        ResultsError: the given baseline is damaged, was edited, or is not comparable.
    """
    project = resources.project
    check_not_empty(values)
    if ADAPTER_SEPARATOR in arguments.candidate:
        raise ConfigError(
            f"candidate {arguments.candidate!r} uses an adapter, which a candidate's file cannot add; name "
            f"{arguments.candidate.partition(ADAPTER_SEPARATOR)[0]!r}"
        )
    root = project.candidates[arguments.candidate]
    values = SimpleNamespace(**{**vars(values), "t2e_suite": [arguments.suite]})
    proposer = _make_proposer(arguments, root, project, context, values)
    options = read_options(values, context)
    _check_gate_can_promote(options, project.root, has_own_gate=values.t2e_gate is not None)
    judge = read_judge(values)
    plan = make_plan(
        replace(options, candidate=root.id, baseline=arguments.baseline),
        resources,
        suite_names=(arguments.suite,),
        judge=judge,
    )
    if arguments.suite not in plan.suites:
        raise ConfigError(
            f"--suite {arguments.suite}: its customers need a model; name one with --t2e-user-model"
        )
    for model in () if plan.live is None or arguments.max_cost is None else plan.live.models:
        # An agent of the project may choose its model itself.
        if model.price is None and model.model:
            raise _price_error(model.model, project)
    planned = plan.suites[arguments.suite]
    tasks = project.world(planned.suite, resources.worlds).tasks()
    groups = {
        task: next(iter(tasks[task].tags), "")
        for split, ids in planned.lock.splits.items()
        if project.splits[split].role is Role.REPORT
        for task in ids
    }
    if arguments.proposer == "adapters" and not set(FAMILY_NAMES) & set(groups.values()):
        raise ConfigError(
            f"--proposer adapters: suite {arguments.suite!r} has no tasks of the built-in families, and only "
            "these have training tasks; name suite support, or use a different proposer"
        )
    gated = [
        task for split, _ in gated_splits(project, planned.lock.splits) for task in planned.lock.splits[split]
    ]
    _check_splits(plan, planned, groups)
    if arguments.baseline is not None:
        _check_baseline(planned, arguments, groups)
    rules = replace(DEFAULT_RULES if options.goal is Goal.IMPROVE else HOLD_RULES, plateau=arguments.plateau)
    budgets = SearchBudgets(
        proposals=arguments.max_proposals,
        simulations=arguments.max_simulations,
        minutes=arguments.max_minutes,
        cost=arguments.max_cost,
    )
    _check_simulations(budgets, planned, len(groups), len(gated), has_baseline=arguments.baseline is not None)
    identity = digest(
        {
            "candidate": [root.id, root.digest],
            "suite": planned.lock.digest,
            "agent": agent_settings(planned, plan.live).model_dump(mode="json"),
            "proposer": proposer.identity,
            "options": search_values(values),
            "policy": None if plan.policy is None else policy_version(plan.policy),
            "baseline": arguments.baseline,
        }
    )
    search_plan = SearchPlan(
        root=root.id,
        suite=arguments.suite,
        identity=identity,
        proposer=proposer,
        options=options,
        budgets=budgets,
        baseline=arguments.baseline,
        groups=groups,
        gated_tasks=tuple(gated),
        trials=planned.trials,
        judge=judge,
        rules=rules,
    )
    if not (search_plan.folder(project) / STATE_FILE).exists():  # else its own tests lowered the level
        _check_decidable(plan, planned)
    return search_plan


def _make_proposer(
    arguments: argparse.Namespace,
    root: Candidate,
    project: Project,
    context: Context,
    values: SimpleNamespace,
) -> Proposer:
    needed = {"table": ("--table FILE", arguments.table)}
    needed |= dict.fromkeys(REFLECTORS, ("--reflect-model MODEL", arguments.reflect_model))
    flag, value = needed.get(arguments.proposer, ("", ""))
    if value is None:
        raise ConfigError(f"--proposer {arguments.proposer} needs {flag}")
    for name, (other_flag, value) in needed.items():
        if other_flag != flag and value is not None:
            raise ConfigError(f"{other_flag.split()[0]} has no effect without --proposer {name}")
    if arguments.proposer == "adapters":
        return _adapter_proposer(arguments, project, context, values)
    if arguments.proposer == "table":
        return TableProposer.read(context.base_folder / arguments.table)
    if arguments.proposer == "ablate":
        if not rules_of(root.instruction):
            raise ConfigError(
                f"candidate {root.id!r} has no instruction, so --proposer ablate has nothing to drop; name "
                "a candidate with an instruction"
            )
        return AblateProposer()
    if arguments.proposer == "parameters":
        return ParametersProposer()
    price = read_prices(project.root / PRICES_NAME).get(arguments.reflect_model)
    if price is None and arguments.max_cost is not None:
        raise _price_error(arguments.reflect_model, project)
    settings = ModelSettings(
        model=arguments.reflect_model,
        base_url=arguments.reflect_base_url,
        url_option="t2e_reflect_base_url",
        api_key_env=arguments.reflect_api_key_env,
        temperature=1.0,
        max_connections=1,
        price=price,
    )
    settings.key()
    settings.require_url()
    if arguments.proposer == "gepa":
        check_installed("gepa", extra="gepa")
        return GepaProposer(settings)
    return ReflectProposer(reflect_settings(settings))


def _adapter_proposer(
    arguments: argparse.Namespace, project: Project, context: Context, values: SimpleNamespace
) -> AdapterProposer:
    """Return the proposer of adapters, if the agent is the embedded model or a model in a folder.

    Raises:
        ConfigError: a different agent is named.
        MissingExtraError: a package that training needs is not installed.
    """
    check_packages()
    model = values.t2e_model
    others = {"--t2e-base-url": values.t2e_base_url, "--t2e-agent": values.t2e_agent or context.agent}
    if model is not None and not is_model_folder(model, context.base_folder):
        others["--t2e-model"] = model
    if other := next((f"{flag} {value}" for flag, value in others.items() if value), ""):
        raise ConfigError(
            f"{other}: --proposer adapters trains a model in a folder; use --t2e-model ./FOLDER, or none for "
            "the embedded model"
        )
    folder = embedded_model() if model is None else real_path(context.base_folder / expand_home(Path(model)))
    recipe = read_recipe(arguments.preset, arguments.config, threads=1 if arguments.adapters > 1 else None)
    return AdapterProposer(project.root, read_model(folder), recipe, arguments.adapters)


def _price_error(model: str, project: Project) -> ConfigError:
    return ConfigError(
        f"--max-cost needs the price of model {model!r}: add it to {project.root / PRICES_NAME}"
    )


def _check_gate_can_promote(options: Options, root: Path, *, has_own_gate: bool) -> None:
    """Check that the gate can promote a candidate."""
    if options.goal is Goal.NO_REGRESSION:
        raise ConfigError(
            f"--t2e-goal={options.goal.value}: a search keeps only what the gate promotes, but this "
            "goal proves nothing; use improve or hold"
        )
    if options.gate == "off" and has_own_gate:
        raise ConfigError(f"--t2e-gate=off: {_GATE_OFF_PROBLEM}; remove the option")
    if options.gate == "off":
        raise ConfigError(
            f"t2e_gate = off in the pytest settings of {root}: {_GATE_OFF_PROBLEM}; name a policy, for "
            "example "
            f"--t2e-gate {DEFAULT_POLICY}"
        )


def _check_splits(plan: Plan, planned: PlannedSuite, groups: Mapping[str, str]) -> None:
    """Check that the suite has tasks to learn from and tasks that decide, and that they differ."""
    name, splits, project = planned.name, planned.lock.splits, plan.project
    if not groups:
        raise ConfigError(
            f"suite {name!r} has no split to learn from, only {', '.join(splits)}; add a split discovery"
        )
    if not any(not is_guard for _, is_guard in gated_splits(project, splits)):
        raise ConfigError(
            f"suite {name!r} has no split that decides, only {', '.join(splits)}; add a split heldout"
        )
    learned = {planned.lock.tasks[task]: task for task in groups}
    for split, tasks in splits.items():
        if project.splits[split].role not in SEALED_ROLES:
            continue
        for task, task_digest in tasks.items():
            if twin := learned.get(task_digest):
                raise ConfigError(
                    f"suite {name!r}: task {task!r} of split {split!r} has the content of {twin!r}, "
                    "from which proposals are made; remove one of them"
                )


def _check_baseline(planned: PlannedSuite, arguments: argparse.Namespace, groups: Mapping[str, str]) -> None:
    baseline = planned.baseline
    if baseline is None:
        raise ConfigError(f"--baseline {arguments.baseline}: holds no evidence of suite {planned.name!r}")
    owner = baseline.evidence.provenance.candidate
    if owner is None or owner.id != arguments.candidate:
        raise ConfigError(
            f"--baseline {arguments.baseline}: holds runs of {owner.id if owner else 'no candidate'!r}, not "
            f"of {arguments.candidate!r}; name a baseline of the candidate to improve"
        )
    measured = {record.task_id for record in baseline.evidence.simulations}
    if missing := groups.keys() - measured:
        raise ConfigError(
            f"--baseline {arguments.baseline}: lacks {len(missing)} of {len(groups)} discovery tasks of "
            f"{planned.name!r}; omit it to measure {arguments.candidate!r}"
        )
    if arguments.proposer in REFLECTORS and (baseline.path is None or not baseline.path.is_dir()):
        raise ConfigError(
            f"--baseline {arguments.baseline}: a saved baseline holds no conversations, which --proposer "
            f"{arguments.proposer} reads; name the folder of a run, or omit it"
        )


def _check_decidable(plan: Plan, planned: PlannedSuite) -> None:
    """Check that the next test could promote a candidate that passes all tasks that a middling parent fails.

    Raises:
        ConfigError: not even such a candidate would be promoted.
    """
    policy = plan.policy_of(planned)
    assert policy is not None
    histories = split_histories(plan.project, ProjectLedger(plan.project), planned.name)
    numbers = {history.split: history.next_test for history in histories}
    for split, is_guard in gated_splits(plan.project, planned.lock.splits):
        if is_guard:
            continue
        count = len(planned.lock.splits[split])
        number = numbers.get(split) or 1
        half = (np.arange(count) % 2 * planned.trials)[None, :]
        all_passed = np.full((1, count), planned.trials)
        sides = [Tally.of_successes(passes, planned.trials) for passes in (half, all_passed)]
        is_numbered = plan.goal is Goal.IMPROVE
        question = Question(
            plan.goal,
            share=alpha_share(number, 1) if is_numbered else 1.0,
            next_share=alpha_share(number, 2) if is_numbered else 1.0,
        )
        rank = int(decision_ranks(policy, Comparisons(sides[0], sides[1]), question)[0])
        if rank != Decision.PROMOTE.rank:
            raise ConfigError(
                f"split {split!r} of {planned.name!r} has {count} tasks, too few to decide: at test "
                f"{number}, not even a candidate that passes all of them would be promoted over one that "
                "passes half; add tasks"
            )


def _check_simulations(
    budgets: SearchBudgets, planned: PlannedSuite, discovery: int, gated: int, *, has_baseline: bool
) -> None:
    """Check that the simulations allow the controls and one whole proposal."""
    if budgets.simulations is None:
        return
    root = 0 if has_baseline else discovery + gated
    needed = planned.trials * (root + discovery + discovery + gated)
    if needed > budgets.simulations:
        raise ConfigError(
            f"--max-simulations {budgets.simulations}: one proposal needs {needed} simulations: the parent "
            f"{root * planned.trials}, the null arm {discovery * planned.trials}, and the proposal "
            f"{(discovery + gated) * planned.trials}; allow more"
        )
