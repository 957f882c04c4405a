"""The options of an evolution's pytest sessions: which they take, and which change what comes of it."""

import re
from collections.abc import Mapping, Sequence

from pytest_trace2evolve.errors import ConfigError, nearest

NO_GATE = "an adapter is promoted by the gate's verdict alone"
"""Why no evolution goes without a gate."""

_OWN = "an evolution gives its sessions this option itself; leave it out"
_NO_BASE = "nobody could talk with an adapter of the base then; leave it out"
_ONE_RUN = "an evolution runs several sessions, and only one of them could write it; leave it out"
_A_PART = "a session that leaves tests out gives no verdict that counts; leave it out"

NARROWING = (
    "-k",
    "-m",
    "--deselect",
    "--ignore",
    "--ignore-glob",
    "--lf",
    "--last-failed",
    "-x",
    "--exitfirst",
    "--maxfail",
    "--sw",
    "--stepwise",
    "--sw-skip",
    "--stepwise-skip",
    "--sw-reset",
    "--stepwise-reset",
    "--co",
    "--collect-only",
)
"""Options of pytest by which a session leaves tests out."""

_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("--candidate", "--t2e-candidate", "--t2e-run-folder", "--t2e-baseline"), _OWN),
    "--t2e-evolve": "a session of an evolution begins no other one; leave it out",
    "--t2e-model": "the sessions of an evolution talk with its base; name that with --base",
    **dict.fromkeys(
        ("--t2e-agent", "--t2e-replay", "--t2e-playback", "--t2e-base-url", "--t2e-adapter"), _NO_BASE
    ),
    **dict.fromkeys(
        ("--t2e-record", "--t2e-save-baseline", "--t2e-baseline-mode", "--t2e-summary"), _ONE_RUN
    ),
    "--t2e-evolve-options": "it is for the session that evolves, and none of these does; leave it out",
    "--t2e-freeze": "it writes cases, and an evolution's stay as they are; leave it out",
    "--t2e-stages": "a run that may stop early is no baseline of the adapters' sessions; leave it out",
    "--t2e-cache": "it keeps the answers of one model, and the routed candidate asks several; leave it out",
    "--t2e-route": "it says nothing in sessions that route to nobody, and most are such; leave it out",
    **dict.fromkeys(NARROWING, _A_PART),
}
"""Options that an evolution's sessions may not be given, and why; of others that are no `TAKEN` it is only
told that they are none."""

SUITE, GATE, GOAL = "--t2e-suite", "--t2e-gate", "--t2e-goal"

DECIDING = (
    SUITE,
    "--t2e-trials",
    GATE,
    GOAL,
    "--t2e-user-model",
    "--t2e-user-base-url",
    "--t2e-temperature",
    "--t2e-seed",
    "--t2e-reasoning-effort",
    "--t2e-extra-body",
    "--t2e-judge",
    "--t2e-judge-base-url",
    "--t2e-confirm",
)
"""Options of sessions that change what comes of them: about what, who talks and how, who decides."""

PACING = (
    "--t2e-key-var",
    "--t2e-user-key-var",
    "--t2e-concurrency",
    "--t2e-call-timeout",
    "--t2e-requests-per-minute",
    "--t2e-max-cost",
    "--t2e-max-tokens",
    "--t2e-max-minutes",
)
"""Options of sessions that change how fast they come to it, or whether they do."""

_WORKERS = ("-n", "--numprocesses", "--maxprocesses", "--dist")
_OF_PYTEST = (*_WORKERS, "--tb", "--color", "-p", "-W", "-r")
_ALONE = re.compile(r"-[qv]+|--quiet|--verbose|--no-header|--no-summary")

TAKEN = (*DECIDING, *PACING, *_OF_PYTEST)
"""Options with a value that sessions take, beside those that only say how much they print."""

OFF = "off"
"""The gate of a session that gives no verdict."""

NO_CLAIM = "no-regression"
"""The goal that claims nothing."""


def read_session(given: Sequence[str]) -> list[str]:
    """The options of sessions, each as `--option=value`, in one order however they were written.

    Raises:
        ConfigError: there is one with which no evolution could come to an end, or none that sessions take,
            or its value is missing.
    """
    found = []
    left = list(given)
    while left:
        one = left.pop(0)
        if _ALONE.fullmatch(one):
            found.append(one)
            continue
        name, value = parted(one)
        if why := refused(name):
            raise ConfigError(f"{one}: {why}")
        if name not in TAKEN:
            raise ConfigError(_not_taken(one, name))
        if value is None:
            if not left:
                raise ConfigError(f"{name}: needs a value")
            value = left.pop(0)
        found.append(f"{name}={value}" if name.startswith("--") else f"{name}{value}")
    if NO_CLAIM in values_of(found, GOAL)[-1:]:
        raise ConfigError(
            f"{GOAL}={NO_CLAIM}: an evolution keeps what the gate promotes, and this goal shows nothing; "
            "use improve or hold"
        )
    if OFF in values_of(found, GATE)[-1:]:
        raise ConfigError(f"{GATE}={OFF}: {NO_GATE}; leave it out")
    # Of one option the order counts: the last value, or the last word on a plugin.
    return sorted(found, key=lambda one: one.partition("=")[0] if one.startswith("--") else one[:2])


def refused(name: str) -> str | None:
    """Why no session of an evolution may have an option; None where it may, or is not known."""
    return _REFUSED.get(name)


def parted(one: str) -> tuple[str, str | None]:
    """An option's name and its value, where that stands in the same word."""
    if one.startswith("--") or len(one) < 3:
        name, is_given, value = one.partition("=")
        return name, value if is_given else None
    return (one[:2], one[2:]) if one.startswith("-") else (one, None)


def _not_taken(one: str, name: str) -> str:
    if not one.startswith("-"):
        return f"{one}: sessions of an evolution run suites, named by --t2e-suite; leave it out"
    mend = nearest(name, TAKEN) if name.startswith("--t2e-") else "what every session needs can be in addopts"
    return f"{one}: no option that the sessions of an evolution take; {mend}"


def decided_by(session: Sequence[str]) -> dict[str, list[str]]:
    """What of the options changes what comes of sessions, however it is written: 1 is 1.0, and of one that
    is given twice the last counts, but for suites."""
    found = {name: [_number(value) for value in values_of(session, name)] for name in DECIDING}
    return {name: sorted(set(values)) if name == SUITE else values[-1:] for name, values in found.items()}


def _number(text: str) -> str:
    try:
        return str(float(text))
    except ValueError:
        return text


def number_of(session: Sequence[str], option: str, least: int, most: int = 1_000_000) -> int | None:
    """The number that an option is given; None where it is not given.

    Raises:
        ConfigError: it is no whole number, too small, or too large.
    """
    for text in values_of(session, option)[-1:]:
        if not text.isascii() or not text.isdigit() or len(text) > 18 or not least <= int(text) <= most:
            raise ConfigError(f"{option} {text}: must be a whole number from {least} to {most}")
        return int(text)
    return None


def without_workers(session: Sequence[str]) -> list[str]:
    """The options of a session that runs in one process, and that nobody reads."""
    return [one for one in session if not (one.startswith(_WORKERS) or _ALONE.fullmatch(one))]


def values_of(session: Sequence[str], option: str) -> list[str]:
    """What an option is given, in order; options are as `read_session` gives them."""
    return [one.partition("=")[2] for one in session if one.startswith(f"{option}=")]
