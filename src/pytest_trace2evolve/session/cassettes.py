"""Records live runs in cassettes, and plays cassettes back."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.engine.live import EXTRA_INSTRUCTION_VAR, LiveSettings
from pytest_trace2evolve.errors import CassetteError, InfrastructureError
from pytest_trace2evolve.evidence.answer_store import AnswerFile
from pytest_trace2evolve.evidence.cassettes import Cassette, read_cassette, render_cassette
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import ADAPTER_SEPARATOR, ROUTED, Candidate
from pytest_trace2evolve.project.project import LockedSuite
from pytest_trace2evolve.records.evidence import SCRIPTED_USER, Settings
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.import_path import is_own_agent


def playback_settings(path: Path, environment_instruction: str) -> LiveSettings:
    """Return the settings of a run that plays a cassette back, as the cassette recorded them.

    Args:
        path: The cassette.
        environment_instruction: The extra instruction from the environment; if empty, the recorded one
            is used.

    Raises:
        CassetteError: the cassette is invalid, or was recorded with a different extra instruction.
    """
    cassette = read_cassette(path)
    agent, recorded_instruction = cassette.header.agent, _recorded_instruction(cassette)
    if environment_instruction and environment_instruction != recorded_instruction:
        raise CassetteError(
            f"{EXTRA_INSTRUCTION_VAR} differs from the instruction that cassette {path} was recorded with "
            f"({repr(recorded_instruction[:60]) if recorded_instruction else 'none'}); unset it, or record "
            "again with --t2e-record"
        )
    return LiveSettings(
        agent=_model_settings(cassette, agent),
        user=_model_settings(cassette, cassette.header.user),
        extra_instruction=recorded_instruction,
        uses_scripts=cassette.header.scripts,
        cassette=cassette,
    )


def cassette_gap_notes(
    cassette: Cassette, candidate: Candidate, suites: Sequence[LockedSuite]
) -> tuple[str, ...]:
    """Return the reasons why a cassette may lack answers for this run, one note each."""
    header, name = cassette.header, cassette.path.name
    notes = []
    if header.partial:
        notes.append(f"cassette {name} is partial: {header.partial}")
    if header.candidate.digest != candidate.digest:
        notes.append(
            f"cassette {name} was recorded with candidate {header.candidate.id!r}, whose instruction "
            f"differs from that of {candidate.id!r}"
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
    recorded_candidate = cassette.header.candidate
    if candidate.adapter == ROUTED:
        raise CassetteError(
            f"--t2e-playback {cassette.path}: a cassette holds the answers of one model, but candidate "
            f"{candidate.id!r} uses several; omit it"
        )
    if (
        candidate.adapter or ADAPTER_SEPARATOR in recorded_candidate.id
    ) and recorded_candidate.digest != candidate.digest:
        weights_text = (
            "with different weights or a different text"
            if recorded_candidate.id == candidate.id
            else f"with {recorded_candidate.id!r}"
        )
        raise CassetteError(
            f"--t2e-playback {cassette.path}: was recorded {weights_text}, so it lacks the answers of "
            f"candidate {candidate.id!r}; record them with --t2e-record"
        )


def recording_path(run_folder: Path) -> Path:
    """Return the file in which the processes of a run collect answers."""
    return run_folder / "answers.sqlite"


def check_recordable(path: Path) -> None:
    """Check that a cassette can be written to a path.

    Raises:
        CassetteError: the path exists, or no file can be created there.
    """
    if path.exists():
        raise CassetteError(f"--t2e-record {path} exists; delete it, or choose a different name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CassetteError(f"--t2e-record {path} cannot be written: {error.strerror}") from None


def export_cassette(
    live: LiveSettings, candidate: Candidate, suites: Sequence[LockedSuite], source: Path, partial_reason: str
) -> str:
    """Write the cassette of a run to `live.record`, and return a line about it.

    Args:
        live: The run's settings.
        candidate: The run's candidate.
        suites: The run's suites.
        source: The file of answers from `recording_path`.
        partial_reason: The reason why answers may be missing; empty if the recording is complete.

    Raises:
        CassetteError: the cassette could not be written, or nothing was recorded; `source` stays unchanged.
    """
    assert live.record is not None
    path = live.record
    header = {
        "partial": partial_reason,
        "candidate": candidate.to_ref(),
        "suites": {suite.name: suite.lock.digest for suite in sorted(suites, key=lambda suite: suite.name)},
        "agent": live.agent_settings(),
        "user": live.user_settings(),
        "scripts": live.uses_scripts,
    }
    try:
        with contextlib.closing(AnswerFile(source, "record again")) as file:
            answers = list(file.items())
        if not answers:
            raise CassetteError(f"cassette {path} was not written: no model answered")
        write_atomic(path, render_cassette(header, answers), exclusive=True)
    except FileExistsError:
        raise CassetteError(
            f"cassette {path} was not written: another run wrote it first; the answers are in {source}"
        ) from None
    except (OSError, InfrastructureError) as error:
        raise CassetteError(
            f"cassette {path} was not written ({error}); the answers are in {source}"
        ) from None
    line = f"cassette {path}: {len(answers)} answers"
    return f"{line}, partial: {partial_reason}" if partial_reason else line


def _recorded_instruction(cassette: Cassette) -> str:
    instruction = (cassette.header.agent.arguments or {}).get("extra_instruction", "")
    return instruction if isinstance(instruction, str) else ""


def _model_settings(cassette: Cassette, settings: Settings) -> ModelSettings:
    name = settings.implementation or ""
    if settings.model is None and (is_own_agent(name) or name == SCRIPTED_USER):
        # A project's own agent may choose its models itself, and a scripted user has none.
        return ModelSettings(model="", base_url=str((settings.arguments or {}).get("endpoint", "")))
    try:
        return ModelSettings.from_record(settings.model, settings.arguments or {})
    except ValueError as error:
        raise CassetteError(f"cassette {cassette.path}:1: damaged at {error}") from None
