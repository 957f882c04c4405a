"""What the pytest sessions of an evolution come to: their suites and simulations, who talks, who decides."""

from collections.abc import Sequence

from pytest_trace2evolve.errors import ConfigError, PolicyError
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY, POLICIES
from pytest_trace2evolve.improve.options import GATE, NO_GATE, OFF, SUITE, number_of, values_of
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import ini_value
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.reading import parse_toml, read_text


def refuse_other_agent(project: Project, suites: Sequence[Suite]) -> None:
    """See that the embedded model talks in sessions that name nobody.

    Raises:
        ConfigError: the project's settings or a suite name an agent.
    """
    where = [
        f"{project.suite_path(one.name)}: default_agent = {one.default_agent}"
        for one in suites
        if one.default_agent
    ]
    if own := ini_value(project.root, "t2e_agent"):
        where.insert(0, f"t2e_agent = {own} in the pytest settings of {project.root}")
    if where:
        raise ConfigError(
            f"{where[0]}: that agent would talk, and adapters are of the embedded model; remove it, or name "
            "a base in a folder, which talks then (--base DIR; with pytest --t2e-model ./DIR)"
        )


def gate_of(project: Project, session: Sequence[str]) -> str:
    """The name of the policy by which the sessions are judged.

    Raises:
        ConfigError: the project's pytest settings turn the gate off.
    """
    if given := values_of(session, GATE):
        return given[-1]
    own = ini_value(project.root, "t2e_gate")
    if own == OFF:
        raise ConfigError(
            f"t2e_gate = {OFF} in the pytest settings of {project.root}: {NO_GATE}; name one, as in "
            f"--t2e-gate {DEFAULT_POLICY} (behind the -- of trace2evolve evolve)"
        )
    return own or DEFAULT_POLICY


def policy_told(project: Project, name: str) -> list[str]:
    """A policy as far as an evolution must know whether it is still the same: its name, and what its file
    sets."""
    path = project.policies_folder / f"{name}.toml"
    if not path.is_file():
        return [name]
    text = read_text(path, PolicyError)
    try:
        return [name, digest(parse_toml(text))]
    except (ValueError, TypeError):  # the sessions refuse it, and say why
        return [name, digest_text(text)]


def fresh_of(project: Project, session: Sequence[str]) -> int:
    """Fresh simulations by which one session may confirm falls, at most.

    Raises:
        ConfigError: the gate is off, or the number is none.
        PolicyError: there is no such policy.
    """
    name, given = gate_of(project, session), number_of(session, "--t2e-confirm", 0)
    try:
        policy = find_policy(name, project)
    except PolicyError:
        if not (project.policies_folder / f"{name}.toml").is_file():
            raise
        # A plugin may bring checks that its file names, and only pytest knows those.
        policy = POLICIES[DEFAULT_POLICY]
    if not policy.confirms:
        return 0
    return policy.confirm if given is None else given


def suites_of(project: Project, session: Sequence[str]) -> list[Suite]:
    """The locked suites that one session runs: those that are named; else all whose customers follow a
    script, and the others too where a base was named: the embedded model talks to no others.

    Raises:
        SuiteError: a suite is unknown or broken.
    """
    named, spoken = values_of(session, SUITE), values_of(session, "--t2e-model")
    found = [project.suite(name) for name in dict.fromkeys(named or project.suite_names)]
    return [one for one in found if one.name in project.lock.suites and (named or spoken or one.scripted)]


def simulations_of(project: Project, session: Sequence[str]) -> int:
    """Simulations of one session.

    Raises:
        SuiteError: a suite is unknown or broken.
        ConfigError: the number of trials is none.
    """
    trials = number_of(session, "--t2e-trials", 1)
    return sum(
        len(project.lock.suites[one.name].tasks) * (trials or one.trials)
        for one in suites_of(project, session)
    )


def refuse_several_domains(suites: Sequence[Suite]) -> None:
    """See that the failures of a session can be held against its successes.

    Raises:
        ConfigError: the suites are of several domains.
    """
    if len({one.mode for one in suites}) > 1:
        told = ", ".join(f"{one.name} ({one.mode.brief})" for one in suites)
        raise ConfigError(
            f"suites of several domains would be run: {told}; capabilities are learnt from one: name its "
            f"suites, as in --t2e-suite {suites[0].name} (behind the -- of trace2evolve evolve)"
        )
