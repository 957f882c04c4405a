"""What an evolution is asked for: its options are validated before anything is run."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from pytest_trace2evolve.engine.live import names_folder
from pytest_trace2evolve.environments.generators.scenario import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, PolicyError, nearest
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY
from pytest_trace2evolve.improve.order import EvolveOrder, budget_of, budget_text, refuse_impossible
from pytest_trace2evolve.improve.runs import refuse_undecided
from pytest_trace2evolve.project.candidates import DEFAULT_CANDIDATE, WITH
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.serving.folder import expanded, read_model
from pytest_trace2evolve.session.option_table import OPTIONS
from pytest_trace2evolve.session.plan import Options
from pytest_trace2evolve.session.planner import Resources
from pytest_trace2evolve.session.settings import Context, check_values, read_judge, read_options
from pytest_trace2evolve.session.sides import expand, mode_of, provenance
from pytest_trace2evolve.session.traces import find_run
from pytest_trace2evolve.training.recipe import MOST, read_recipe
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.optional import require_installed
from pytest_trace2evolve.utils.reading import parse_toml, read_text
from pytest_trace2evolve.utils.resources import embedded_model

OFF = "off"
"""The gate of a run that gives no verdict."""

NO_GATE = "an adapter is promoted by the gate's verdict alone"
"""Why no evolution goes without a gate."""

DECIDING = (
    "suite",
    "trials",
    "gate",
    "goal",
    "user-model",
    "user-base-url",
    "temperature",
    "seed",
    "reasoning-effort",
    "extra-body",
    "judge",
    "judge-base-url",
    "confirm",
)
"""Options that change the results of an evolution's runs: another value is another evolution."""

PACING = (
    "key-var",
    "user-key-var",
    "concurrency",
    "call-timeout",
    "requests-per-minute",
    "max-cost",
    "max-tokens",
    "max-minutes",
)
"""Options that change how fast the runs are, or whether they end."""

_OWN = "an evolution sets this option of its runs itself; leave it out"
_NO_BASE = "the base model would not talk, and adapters are of the base; leave it out"
_ONE_RUN = "an evolution makes several runs, and only one of them could write it; leave it out"

_REJECTED: Mapping[str, str] = {
    **dict.fromkeys(("candidate", "run-folder", "baseline"), _OWN),
    "evolve": "a run of an evolution starts no other evolution; leave it out",
    "evolve-options": "give these options to trace2evolve evolve itself",
    "model": "the base talks in the runs of an evolution; name it with --base",
    **dict.fromkeys(("agent", "replay", "playback", "base-url", "adapter"), _NO_BASE),
    **dict.fromkeys(("record", "save-baseline", "baseline-mode", "summary"), _ONE_RUN),
    "freeze": "it writes cases, and an evolution changes no case; leave it out",
    "stages": "a run that may stop early is no baseline of the adapters' runs; leave it out",
    "cache": "it keeps the answers of one model, and the routed candidate asks several; leave it out",
    "route": "it has no effect in runs without a routed candidate; leave it out",
}
"""Why the runs of an evolution do not take an option."""


def run_option_values(words: Sequence[str]) -> SimpleNamespace:
    """The options of an evolution's runs, as words of a command line, by their destinations.

    Raises:
        ConfigError: a word is no option that these runs take, or a value is wrong.
    """
    parser = _RunOptions(add_help=False, allow_abbrev=False)
    rejected: dict[str, str] = {}
    for option in OPTIONS:
        names = [name for name in (option.alias, option.flag) if name]
        parser.add_argument(*names, **option.argparse())
        if option.name not in (*DECIDING, *PACING):
            why = _REJECTED.get(option.name, "it has no effect in the runs of an evolution; leave it out")
            rejected |= dict.fromkeys(names, why)
    for word in words:
        if (reason := rejected.get(word.partition("=")[0])) is not None:
            raise ConfigError(f"{word}: {reason}")
    values, others = parser.parse_known_args(words)
    for word in others:
        name = word.partition("=")[0]
        known = [option.flag for option in OPTIONS if option.name in (*DECIDING, *PACING)]
        remedy = nearest(name, known) if name.startswith("--t2e-") else "leave it out"
        raise ConfigError(f"{word}: no option that the runs of an evolution take; {remedy}")
    return SimpleNamespace(**vars(values))


class _RunOptions(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"options of the runs: {message}")


def values_of_runs(values: Any, model: Path | None) -> SimpleNamespace:
    """The options that all runs of an evolution share; all others are as if they were not given.

    Args:
        values: An object with an attribute for each option's destination.
        model: The folder of the base; None if it is the embedded model.
    """
    found = {
        option.destination: getattr(values, option.destination, None)
        if option.name in (*DECIDING, *PACING)
        else None
        for option in OPTIONS
    }
    return SimpleNamespace(**found | {"t2e_model": None if model is None else str(model)})


def read_order(
    request: argparse.Namespace,
    values: Any,
    context: Context,
    resources: Resources,
    environments: Environments,
) -> EvolveOrder:
    """Validate what is asked for.

    Args:
        request: The options of `trace2evolve evolve`.
        values: The options of its runs: an object with an attribute for each option's destination.
        context: Where the options were given.
        resources: What the project offers.
        environments: The environments that are known.

    Raises:
        ConfigError: a value is wrong, the run is unknown or empty, no environment has the tools of its world,
            or the evolution could not end.
        CandidateError: there is no such candidate.
        ModelFolderError: the base is no model's folder.
        MissingExtraError: a package that training needs is not installed.
        ResultsError: the run is damaged.
    """
    project = resources.project
    _check_counts(request)
    # The folders of models are named by their whole paths: trainings start in the project's folder.
    base = None if request.base is None else (context.here / expanded(request.base)).resolve()
    shared = values_of_runs(values, base)
    check_values(shared)
    _check_gate(shared, context)
    options = read_options(shared, context)
    recipe = read_recipe(request.preset, request.config, seed=request.seed, steps=request.steps)
    for module, extra in (("trl", "train"), ("peft", "train"), ("matplotlib", "plot")):
        require_installed(module, extra=extra)
    run = None if request.from_run is None else find_run(request.from_run, project, context.here)
    origins = [] if run is None else _origins(run)
    for origin in origins:
        environments.require_tools_of(f"run {request.from_run}", (origin.provider, origin.domain))
    candidate = request.candidate or (DEFAULT_CANDIDATE if run is None else _candidate_of(run, origins))
    if WITH in candidate:
        text = candidate.partition(WITH)[0]
        raise ConfigError(
            f"candidate {candidate!r} talks with an adapter, and adapters are trained on the base alone: "
            f"evolve {text!r}"
        )
    _ = project.candidates[candidate]
    if run is not None:
        held = _suites_of_run(run, origins, shared.t2e_suite or ())
        shared.t2e_suite = shared.t2e_suite or held
        options = read_options(shared, context)
    suites = suites_of(project, options)
    if run is None:
        refuse_several_domains(suites)
    refuse_undecided(project, suites)
    for suite in suites:
        environments.require_tools_of(f"suite {suite.name}", (suite.provider, suite.domain))
    if base is None:
        _check_no_other_agent(project, suites, context.agent)
    # One more than cores: if three are trained on two, no core is idle while the third is.
    at_once = min(request.most, (os.cpu_count() or 1) + 1)
    return EvolveOrder(
        candidate=candidate,
        run=run,
        base=read_model(embedded_model() if base is None else base),
        recipe=recipe,
        preset=request.preset,
        content=content_of(project, environments, candidate, run, options),
        options=options,
        judge=read_judge(shared),
        deciding=_deciding(shared, context.here),
        most=request.most,
        heldout=request.heldout,
        rollouts=request.heldout_rollouts,
        parallel=request.parallel or (at_once if request.preset == "pocket" else 1),
        max_rollouts=request.max_rollouts,
        max_minutes=request.max_minutes,
    )


def checked_budget(order: EvolveOrder, resources: Resources, environments: Environments) -> str:
    """What an order takes at most, in one line.

    Raises:
        ConfigError: its budgets allow less.
    """
    budget = budget_of(
        order,
        environments.names,
        simulations_of(resources.project, order.options),
        fresh_of(resources, order.options),
    )
    refuse_impossible(order, budget)
    return budget_text(order, budget)


def _check_counts(request: argparse.Namespace) -> None:
    for option, value, least in (
        ("--most", request.most, 1),
        ("--heldout", request.heldout, 2),
        ("--heldout-rollouts", request.heldout_rollouts, 1),
        ("--parallel", request.parallel, 1),
        ("--max-rollouts", request.max_rollouts, 1),
    ):
        if value is not None and value < least:
            raise ConfigError(f"{option} {value}: must be {least} or more")
        if value is not None and value > MOST and option != "--max-rollouts":
            raise ConfigError(f"{option} {value}: must be {MOST} or less")
    if request.max_minutes is not None and not 0 < request.max_minutes < float("inf"):
        raise ConfigError(f"--max-minutes {request.max_minutes:g}: must be more than 0")


def _check_gate(values: Any, context: Context) -> None:
    """Check that the runs of an evolution can promote something."""
    if values.t2e_goal == Goal.NO_REGRESSION.value:
        raise ConfigError(
            f"--t2e-goal={values.t2e_goal}: an evolution keeps what the gate promotes, and this goal shows "
            "nothing; use improve or hold"
        )
    if values.t2e_gate == OFF:
        raise ConfigError(f"--t2e-gate={OFF}: {NO_GATE}; leave it out")
    if values.t2e_gate is None and context.gate == OFF:
        raise ConfigError(
            f"t2e_gate = {OFF} in the pytest settings of {context.root}: {NO_GATE}; name one, as in "
            f"--t2e-gate {DEFAULT_POLICY} (for trace2evolve evolve, after --)"
        )


def _check_no_other_agent(project: Project, suites: Sequence[Suite], agent: str) -> None:
    """Check that the embedded model talks in runs that name no agent.

    Raises:
        ConfigError: the project's settings or a suite name an agent.
    """
    where = [
        f"{project.suite_path(suite.name)}: default_agent = {suite.default_agent}"
        for suite in suites
        if suite.default_agent
    ]
    if agent:
        where.insert(0, f"t2e_agent = {agent} in the pytest settings of {project.root}")
    if where:
        raise ConfigError(
            f"{where[0]}: that agent would talk, and adapters are of the embedded model; remove it, or name "
            "a base in a folder, which talks then (--base DIR; with pytest --t2e-model ./DIR)"
        )


def _deciding(values: Any, here: Path) -> dict[str, Any]:
    """The values of the options that change results, independent of how they were written."""
    found = {name: getattr(values, f"t2e_{name.replace('-', '_')}") for name in DECIDING}
    found["suite"] = sorted(set(found["suite"] or ()))
    model = found["user-model"]
    if model is not None and names_folder(model, here):
        found["user-model"] = str((here / expanded(Path(model))).resolve())
    return found


def content_of(
    project: Project, environments: Environments, candidate: str, run: Path | None, options: Options
) -> str:
    """Digest of what an evolution works on: if it changes, the same command starts another evolution.

    It covers the candidate's text, the simulations of the run, the locks of the suites, the environments and
    the gate's policy.

    Raises:
        CandidateError: there is no such candidate.
        SuiteError: a suite is unknown or broken.
        ResultsError: the run is damaged.
    """
    files = [] if run is None else [read_results(path) for path in expand([run])]
    return digest(
        {
            "candidate": project.candidates[candidate].digest,
            "run": sorted(
                [provenance(file).run_id or "", *sorted(simulation.id for simulation in file.simulations)]
                for file in files
            ),
            "suites": {
                suite.name: project.lock.suites[suite.name].digest for suite in suites_of(project, options)
            },
            "environments": {
                name: environments.generator(name, EASIEST).digest for name in environments.names
            },
            "gate": _policy_content(project, options.gate or DEFAULT_POLICY),
        }
    )


def _policy_content(project: Project, name: str) -> list[str]:
    """The name of a policy, and the digest of what its file sets."""
    path = project.policies_folder / f"{name}.toml"
    if not path.is_file():
        return [name]
    text = read_text(path, PolicyError)
    try:
        return [name, digest(parse_toml(text))]
    except (ValueError, TypeError):  # the runs reject it, and say why
        return [name, digest_text(text)]


def fresh_of(resources: Resources, options: Options) -> int:
    """The largest number of fresh simulations by which one run may confirm falls.

    Raises:
        PolicyError: there is no such policy.
    """
    policy = find_policy(options.gate or DEFAULT_POLICY, resources.project, resources.checks)
    if not policy.confirms:
        return 0
    return policy.confirm if options.confirm is None else options.confirm


def suites_of(project: Project, options: Options) -> list[Suite]:
    """The locked suites of one run: those that are named; else all whose customers follow a script, and the
    others too if a base was named: the embedded model talks to no others.

    Raises:
        SuiteError: a suite is unknown or broken.
    """
    named, has_base = options.suites, options.live is not None
    found = [project.suite(name) for name in dict.fromkeys(named or project.suite_names)]
    return [
        suite
        for suite in found
        if suite.name in project.lock.suites and (named or has_base or suite.scripted)
    ]


def simulations_of(project: Project, options: Options) -> int:
    """Simulations of one run.

    Raises:
        SuiteError: a suite is unknown or broken.
    """
    return sum(
        len(project.lock.suites[suite.name].tasks) * (options.trials or suite.trials)
        for suite in suites_of(project, options)
    )


def refuse_several_domains(suites: Sequence[Suite]) -> None:
    """Check that failures can be compared with successes.

    Raises:
        ConfigError: the suites are of several domains.
    """
    if len({suite.mode for suite in suites}) > 1:
        names = ", ".join(f"{suite.name} ({suite.mode.brief})" for suite in suites)
        raise ConfigError(
            f"suites of several domains would be run: {names}; capabilities are learnt from one: name its "
            f"suites, as in --t2e-suite {suites[0].name} (for trace2evolve evolve, after --)"
        )


def _origins(run: Path) -> list[Provenance]:
    """Where the files of a run come from, in one domain."""
    files = [read_results(path) for path in expand([run])]
    if not files:
        raise ConfigError(f"{run}: holds no results: it is no run, or nothing was measured in it")
    if len({mode_of(file) for file in files}) > 1:
        names = ", ".join(sorted(f"{file.path.name} ({mode_of(file).brief})" for file in files))
        raise ConfigError(
            f"run {run.name} is of several domains: {names}; capabilities are learnt from one: give the "
            f"folder of its suite, as in --from-run {files[0].path}"
        )
    return [provenance(file) for file in files]


def _candidate_of(run: Path, origins: Sequence[Provenance]) -> str:
    found = {origin.candidate.id for origin in origins if origin.candidate is not None}
    if len(found) != 1:
        raise ConfigError(f"{run}: is of {len(found)} candidates; name one with --candidate")
    return found.pop()


def _suites_of_run(run: Path, origins: Sequence[Provenance], named: Sequence[str]) -> list[str]:
    """The suites of a run, in which the adapters are compared with it.

    Raises:
        ConfigError: a suite is named that is not one of them.
    """
    held = sorted({origin.suite for origin in origins if origin.suite is not None})
    for name in named:
        if held and name not in held:
            raise ConfigError(
                f"--t2e-suite {name}: run {run.name} is of {', '.join(held)}, and an adapter is compared "
                "with it; name those, or none"
            )
    return held
