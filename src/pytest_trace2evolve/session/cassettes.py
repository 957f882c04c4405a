"""Recording of live runs in cassettes, and playback of cassettes."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.engine.live import EXTRA_INSTRUCTION_VAR, LiveSettings
from pytest_trace2evolve.errors import CassetteError, InfrastructureError
from pytest_trace2evolve.evidence.answer_store import AnswerFile
from pytest_trace2evolve.evidence.cassettes import Cassette, read_cassette, render
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import ROUTED, WITH, Candidate
from pytest_trace2evolve.project.project import LockedSuite
from pytest_trace2evolve.records.evidence import Settings
from pytest_trace2evolve.utils.files import write_atomic


def playback_settings(path: Path, environment: str) -> LiveSettings:
    """The settings of a run that plays a cassette back, which are the recorded ones.

    Args:
        path: The cassette.
        environment: The extra instruction from the environment; if empty, the cassette's own is used.

    Raises:
        CassetteError: the cassette is invalid, or was recorded with a different extra instruction.
    """
    cassette = read_cassette(path)
    agent, extra = cassette.header.agent, _extra_instruction(cassette)
    if environment and environment != extra:
        raise CassetteError(
            f"{EXTRA_INSTRUCTION_VAR} is not what cassette {path} was recorded with "
            f"({repr(extra[:60]) if extra else 'nothing'}): unset it, or record again with --t2e-record"
        )
    return LiveSettings(
        agent=_model(cassette, agent),
        user=_model(cassette, cassette.header.user),
        extra_instruction=extra,
        scripts=cassette.header.scripts,
        cassette=cassette,
    )


def possible_gaps(cassette: Cassette, candidate: Candidate, suites: Sequence[LockedSuite]) -> tuple[str, ...]:
    """The reasons why a cassette may lack answers for this run, one note each."""
    header, name = cassette.header, cassette.path.name
    notes = []
    if header.partial:
        notes.append(f"cassette {name} is partial: {header.partial}")
    if header.candidate.digest != candidate.digest:
        notes.append(
            f"cassette {name} was recorded with candidate {header.candidate.id!r}, whose instruction is not "
            f"that of {candidate.id!r}"
        )
    for suite in suites:
        if header.suites[suite.name] != suite.lock.digest:
            notes.append(f"cassette {name} was recorded before suite {suite.name!r} changed")
    return tuple(notes)


def check_weights(cassette: Cassette, candidate: Candidate) -> None:
    """Check that a cassette was recorded with a candidate's weights, if either has an adapter.

    Requests do not name weights, so playback would also find the answers of a different candidate with the
    same instruction.

    Raises:
        CassetteError: the cassette holds answers of a different candidate, or the candidate is routed.
    """
    recorded = cassette.header.candidate
    if candidate.adapter == ROUTED:
        raise CassetteError(
            f"--t2e-playback {cassette.path}: a cassette holds the answers of one model, and candidate "
            f"{candidate.id!r} asks several: leave it out"
        )
    if (candidate.adapter or WITH in recorded.id) and recorded.digest != candidate.digest:
        weights = (
            "with other weights or another text" if recorded.id == candidate.id else f"with {recorded.id!r}"
        )
        raise CassetteError(
            f"--t2e-playback {cassette.path}: was recorded {weights}, and candidate {candidate.id!r} would "
            "be given what that one said: record it with --t2e-record"
        )


def recording(run_folder: Path) -> Path:
    """The file in which the processes of a run collect answers."""
    return run_folder / "answers.sqlite"


def check_recordable(path: Path) -> None:
    """Check that a cassette can be written to a path.

    Raises:
        CassetteError: the path exists, or no file can be created there.
    """
    if path.exists():
        raise CassetteError(f"--t2e-record {path} exists: delete it, or choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CassetteError(f"--t2e-record {path} cannot be written: {error.strerror}") from None


def export(
    live: LiveSettings, candidate: Candidate, suites: Sequence[LockedSuite], source: Path, partial: str
) -> str:
    """Write the cassette of a run to `live.record`; returns a line about it.

    Args:
        live: The run's settings.
        candidate: The run's candidate.
        suites: The run's suites.
        source: The file of answers from `recording`.
        partial: The reason why answers may be missing; empty if the recording is complete.

    Raises:
        CassetteError: the cassette could not be written, or nothing was recorded; `source` stays unchanged.
    """
    assert live.record is not None
    path = live.record
    header = {
        "partial": partial,
        "candidate": candidate.ref(),
        "suites": {suite.name: suite.lock.digest for suite in sorted(suites, key=lambda suite: suite.name)},
        "agent": live.agent_settings(),
        "user": live.user_settings(),
        "scripts": live.scripts,
    }
    try:
        with contextlib.closing(AnswerFile(source, "record again")) as file:
            answers = list(file.items())
        if not answers:
            raise CassetteError(f"cassette {path} was not written: no model answered")
        write_atomic(path, render(header, answers), exclusive=True)
    except FileExistsError:
        raise CassetteError(
            f"cassette {path} was not written: another run wrote it first; the answers are in {source}"
        ) from None
    except (OSError, InfrastructureError) as error:
        raise CassetteError(
            f"cassette {path} was not written ({error}); the answers are in {source}"
        ) from None
    line = f"cassette {path}: {len(answers)} answers"
    return f"{line}, partial: {partial}" if partial else line


def _extra_instruction(cassette: Cassette) -> str:
    extra = (cassette.header.agent.arguments or {}).get("extra_instruction", "")
    return extra if isinstance(extra, str) else ""


def _model(cassette: Cassette, recorded: Settings) -> ModelSettings:
    try:
        return ModelSettings.from_recorded(recorded.model, recorded.arguments or {})
    except ValueError as error:
        raise CassetteError(f"cassette {cassette.path}:1: damaged at {error}") from None
