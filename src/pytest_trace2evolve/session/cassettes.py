"""Recording a live run and playing it back: what settings a cassette brings, what file a run leaves."""

from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.engine.live import EXTRA_INSTRUCTION_VAR, LiveSettings
from pytest_trace2evolve.errors import CassetteError, InfrastructureError
from pytest_trace2evolve.evidence.answers import AnswerFile
from pytest_trace2evolve.evidence.cassettes import Cassette, read_cassette, render
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import ROUTED, WITH, Candidate
from pytest_trace2evolve.project.project import LockedSuite
from pytest_trace2evolve.records.evidence import Settings
from pytest_trace2evolve.utils.files import write_atomic


def played(path: Path, environment: str) -> LiveSettings:
    """The settings of a run that plays a cassette back: those that it was recorded with.

    Args:
        path: The cassette.
        environment: The extra instruction that the environment adds now; empty where it adds none, and then
            the cassette's own is taken.

    Raises:
        CassetteError: the cassette cannot be trusted, or was recorded with another extra instruction.
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


def differences(cassette: Cassette, candidate: Candidate, suites: Sequence[LockedSuite]) -> tuple[str, ...]:
    """Why answers of a cassette may be missing in this run, a note each."""
    header, name = cassette.header, cassette.path.name
    notes = []
    if header.partial:
        notes.append(f"cassette {name} is partial: {header.partial}")
    if header.candidate.digest != candidate.digest:
        notes.append(
            f"cassette {name} was recorded with candidate {header.candidate.id!r}, whose instruction is not "
            f"that of {candidate.id!r}"
        )
    for one in suites:
        if header.suites[one.name] != one.lock.digest:
            notes.append(f"cassette {name} was recorded before suite {one.name!r} changed")
    return tuple(notes)


def refuse_other_weights(cassette: Cassette, candidate: Candidate) -> None:
    """Hold a cassette against a candidate, where either talks with an adapter: requests name no weights, and
    so every answer of another candidate with the same instruction would be found.

    Raises:
        CassetteError: the cassette holds what another candidate said.
    """
    recorded = cassette.header.candidate
    if candidate.adapter == ROUTED:
        raise CassetteError(
            f"--t2e-playback {cassette.path}: a cassette holds the answers of one model, and candidate "
            f"{candidate.id!r} asks several: leave it out"
        )
    if (candidate.adapter or WITH in recorded.id) and recorded.digest != candidate.digest:
        told = (
            "with other weights or another text" if recorded.id == candidate.id else f"with {recorded.id!r}"
        )
        raise CassetteError(
            f"--t2e-playback {cassette.path}: was recorded {told}, and candidate {candidate.id!r} would be "
            "given what that one said: record it with --t2e-record"
        )


def recording(run_folder: Path) -> Path:
    """The file in which the processes of a run gather what they record."""
    return run_folder / "answers.sqlite"


def refuse_record(path: Path) -> None:
    """Refuse a place where no cassette can be written.

    Raises:
        CassetteError: there is something already, or no file can be made there.
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
    """Write the cassette of a run; returns a line about it.

    Args:
        live: The run's settings, which say where to write.
        candidate: The run's candidate.
        suites: The run's suites.
        source: What its processes recorded; see `recording`.
        partial: Why not everything may have been recorded; empty where it was.

    Raises:
        CassetteError: it could not be written, or nothing was recorded; what was recorded stays where it is.
    """
    assert live.record is not None
    path = live.record
    header = {
        "partial": partial,
        "candidate": candidate.ref(),
        "suites": {one.name: one.lock.digest for one in sorted(suites, key=lambda one: one.name)},
        "agent": live.agent_settings(),
        "user": live.user_settings(),
        "scripts": live.scripts,
    }
    try:
        answers = AnswerFile(source, "record again")
        try:
            everything = list(answers.items())
        finally:
            answers.close()
        if not everything:
            raise CassetteError(f"cassette {path} was not written: no model answered")
        write_atomic(path, render(header, everything), exclusive=True)
    except FileExistsError:
        raise CassetteError(
            f"cassette {path} was not written: another run wrote it first; the answers are in {source}"
        ) from None
    except (OSError, InfrastructureError) as error:
        raise CassetteError(
            f"cassette {path} was not written ({error}); the answers are in {source}"
        ) from None
    told = f"cassette {path}: {len(everything)} answers"
    return f"{told}, partial: {partial}" if partial else told


def _extra_instruction(cassette: Cassette) -> str:
    extra = (cassette.header.agent.arguments or {}).get("extra_instruction", "")
    return extra if isinstance(extra, str) else ""


def _model(cassette: Cassette, recorded: Settings) -> ModelSettings:
    try:
        return ModelSettings.from_recorded(recorded.model, recorded.arguments or {})
    except ValueError as error:
        raise CassetteError(f"cassette {cassette.path}:1: damaged at {error}") from None
