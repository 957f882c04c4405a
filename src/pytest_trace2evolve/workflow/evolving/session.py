"""The options of an evolution's pytest sessions: which cannot be, and what the others come to."""

from collections.abc import Iterator, Mapping, Sequence

from pytest_trace2evolve._canonical import digest_text
from pytest_trace2evolve.errors import ConfigError, PolicyError
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY, POLICIES
from pytest_trace2evolve.suites import Suite
from pytest_trace2evolve.workflow.policies import find_policy
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.pytest_ini import ini_value

_OWN = "an evolution gives its sessions this option itself; leave it out"
_NO_BASE = "nobody could talk with an adapter of the base then; leave it out"
_ONE_RUN = "an evolution runs several sessions, and only one of them could write it; leave it out"
_A_PART = "a session that leaves tests out gives no verdict that counts; leave it out"

_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("--candidate", "--t2e-candidate", "--t2e-run-folder", "--t2e-baseline", "--t2e-evolve"), _OWN
    ),
    "--t2e-model": "the sessions of an evolution talk with its base; name that with --base",
    **dict.fromkeys(
        ("--t2e-agent", "--t2e-replay", "--t2e-playback", "--t2e-base-url", "--t2e-adapter"), _NO_BASE
    ),
    **dict.fromkeys(("--t2e-record", "--t2e-save-baseline", "--t2e-baseline-mode"), _ONE_RUN),
    "--t2e-stages": "a run that may stop early is no baseline of the adapters' sessions; leave it out",
    "--t2e-cache": "it keeps the answers of one model, and the routed candidate asks several; leave it out",
    "--t2e-route": "it says nothing in sessions that route to nobody, and most are such; leave it out",
    **dict.fromkeys(
        (
            "-k",
            "--deselect",
            "--lf",
            "--last-failed",
            "-x",
            "--exitfirst",
            "--maxfail",
            "--co",
            "--collect-only",
        ),
        _A_PART,
    ),
}
"""Options that an evolution's sessions may not be given, and why."""

OFF = "off"
"""The gate of a session that gives no verdict."""


def refuse_given(session: Sequence[str]) -> None:
    """Refuse options with which no evolution could come to an end.

    Raises:
        ConfigError: there is one; says why.
    """
    for one in session:
        if why := _REFUSED.get(one.partition("=")[0]):
            raise ConfigError(f"{one}: {why}")
    if OFF in values_of(session, "--t2e-gate")[-1:]:
        raise ConfigError(f"--t2e-gate={OFF}: {_NO_GATE}; leave it out")


_NO_GATE = "an adapter is promoted by the gate's verdict alone"


def gate_of(project: Project, session: Sequence[str]) -> str:
    """The name of the policy by which the sessions are judged.

    Raises:
        ConfigError: the project's pytest settings turn the gate off.
    """
    if given := values_of(session, "--t2e-gate"):
        return given[-1]
    own = ini_value(project.root, "t2e_gate")
    if own == OFF:
        raise ConfigError(
            f"t2e_gate = {OFF} in the pytest settings of {project.root}: {_NO_GATE}; name one, as in "
            f"--t2e-gate {DEFAULT_POLICY}"
        )
    return own or DEFAULT_POLICY


def policy_told(project: Project, name: str) -> list[str]:
    """A policy as far as an evolution must know whether it is still the same: its name, and its file."""
    path = project.policies_folder / f"{name}.toml"
    return [name, digest_text(path.read_text(encoding="utf-8")) if path.is_file() else ""]


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
    script, and the others too where a model was named that can play them.

    Raises:
        SuiteError: a suite is unknown or broken.
    """
    named = values_of(session, "--t2e-suite")
    spoken = any(values_of(session, option) for option in ("--t2e-user-model", "--t2e-model"))
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
            f"suites, as in -- --t2e-suite {suites[0].name}"
        )


def without_workers(session: Sequence[str]) -> list[str]:
    """The options without the number of workers, which changes nothing that comes of them."""
    found: list[str] = []
    for place, one in enumerate(session):
        if one.startswith("-n") or (place and session[place - 1] == "-n"):
            continue
        found.append(one)
    return found


def number_of(session: Sequence[str], option: str, least: int) -> int | None:
    """The number that an option is given; None where it is not given.

    Raises:
        ConfigError: it is no whole number, or too small.
    """
    for text in values_of(session, option)[-1:]:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise ConfigError(f"{option} {text}: must be a whole number of {least} or more")
        return int(text)
    return None


def values_of(session: Sequence[str], option: str) -> list[str]:
    """What an option is given, in order, as `--option value` or `--option=value`."""
    return list(_values(session, option))


def _values(session: Sequence[str], option: str) -> Iterator[str]:
    for place, one in enumerate(session):
        if one == option:
            yield from session[place + 1 : place + 2]
        elif one.startswith(f"{option}="):
            yield one.partition("=")[2]
