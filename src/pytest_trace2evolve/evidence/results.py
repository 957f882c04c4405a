"""Reads tau2's results files in all their forms, and rejects files that cannot be trusted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.reading import MAX_RESULTS_BYTES, first_problem, read_bytes, read_json

SIMULATIONS_KEY = "simulations"
"""The name of the field or folder that holds the simulations."""

OWN_BLOCK_KEY = "trace2evolve"
"""The key of this project's fields in tau2's `info` blocks, which allow additional keys."""


@dataclass(frozen=True)
class ResultsFile:
    """A results file: its simulations, and the embedded tasks that the simulations ran.

    `header` holds everything but tasks and simulations, unchanged from the file.
    """

    path: Path
    header: dict[str, Any]
    tasks: dict[str, Task]
    simulations: tuple[Simulation, ...]

    @property
    def info(self) -> dict[str, Any]:
        return _get_object(self.header, "info")

    @property
    def run(self) -> str:
        """The id of the run that made the file; empty if the file does not name a run."""
        return _get_text(_get_object(self.info, OWN_BLOCK_KEY), "run_id") or ""

    @property
    def domain(self) -> str | None:
        """The domain that the file names, or the common domain of all its tasks; None if there is none."""
        domain_name = _get_text(_get_object(self.info, "environment_info"), "domain_name")
        if domain_name is not None:
            return domain_name
        domains = {
            _get_text(_get_object(task.user_scenario, "instructions"), "domain")
            for task in self.tasks.values()
        }
        return domains.pop() if len(domains) == 1 else None


def _get_object(value: Any, name: str) -> dict[str, Any]:
    inner = value.get(name) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _get_text(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    return text if isinstance(text, str) else None


def decode_results(path: Path) -> Any:
    return read_json(path, ResultsError, max_bytes=MAX_RESULTS_BYTES)


def read_results(path: Path, decoded: Any = None) -> ResultsFile:
    """Read `.json`, `.json.gz`, or a folder of `results.json` and `simulations/*.json`.

    Args:
        decoded: The result of `decode_results` for the path of a file, if already available.

    Raises:
        ResultsError: the file is missing, damaged or not a results file, or holds a number that is not
            finite; or a simulation lacks its task id or termination reason, runs a task that is not in the
            file, or carries recorded checks of a different task.
    """
    header_path, folder = _locate_files(path)
    content = decode_results(header_path) if decoded is None or header_path != path else decoded
    if not isinstance(content, dict):
        raise ResultsError(f"{path}: contains a JSON {type(content).__name__}, expected a results object")
    lists: dict[str, Any] = {
        "tasks": content.get("tasks"),
        SIMULATIONS_KEY: _read_folder(path, folder, content) if folder else content.get(SIMULATIONS_KEY),
    }
    for name, items in lists.items():
        if not isinstance(items, list):
            raise ResultsError(f"{path}: has no list {name!r}; expected a results file of tau2")
    tasks = _parse_tasks(path, lists["tasks"])
    simulations = _parse_simulations(path, lists[SIMULATIONS_KEY])
    for simulation in simulations:
        if simulation.task_id not in tasks:
            raise ResultsError(
                f"{path}: simulation {simulation.id!r} ran task {simulation.task_id!r}, "
                "which is not in the file"
            )
    _check_recorded_checks(path, simulations, tasks)
    header = {key: value for key, value in content.items() if key not in lists}
    return ResultsFile(path=path, header=header, tasks=tasks, simulations=simulations)


def traces_digest(path: Path) -> str:
    """The digest of everything that `read_results` reads from a path, independent of line endings."""
    header_path, folder = _locate_files(path)
    files = {"results.json": header_path}
    if folder is not None:
        files |= {f"{SIMULATIONS_KEY}/{file.name}": file for file in folder.glob("*.json")}
    contents = (
        (name, read_bytes(file, ResultsError, max_bytes=MAX_RESULTS_BYTES)) for name, file in files.items()
    )
    return digest(
        {name: digest_text(content.replace(b"\r\n", b"\n").decode("latin-1")) for name, content in contents}
    )


def combine_results(files: Sequence[ResultsFile]) -> tuple[tuple[Simulation, ...], tuple[str, ...]]:
    """Combine the simulations of one candidate's files, renumbering trials if numbers clash or are missing.

    Returns:
        The simulations, each (task, trial) once, and notes on the renumbered trials.

    Raises:
        ResultsError: a simulation id occurs twice.
    """
    paths: dict[str, Path] = {}
    for file in files:
        for simulation in file.simulations:
            if simulation.id in paths:
                places = f"in {paths[simulation.id]} and {file.path}; give each run once"
                if paths[simulation.id] == file.path:
                    places = f"in {file.path}; ids must differ"
                raise ResultsError(f"simulation {simulation.id!r} occurs twice {places}")
            paths[simulation.id] = file.path
    simulations = [simulation for file in files for simulation in file.simulations]
    keys = {(simulation.task_id, simulation.trial) for simulation in simulations}
    if len(keys) == len(simulations) and all(trial is not None for _, trial in keys):
        return tuple(simulations), ()
    trials: dict[str, int] = {}
    renumbered = []
    for simulation in simulations:
        trial = trials.get(simulation.task_id, 0)
        trials[simulation.task_id] = trial + 1
        renumbered.append(simulation.model_copy(update={"trial": trial}))
    max_trials = max(trials.values())
    if len(keys) == len(simulations) and max_trials == 1:
        return tuple(renumbered), ()  # one unnumbered simulation per task becomes trial 0 without a note
    names = ", ".join(file.path.name for file in files)
    note = f"{names}: trials renumbered 0 to {max_trials - 1}, since files or simulations share numbers"
    return tuple(renumbered), (note,)


def check_copies(files: Iterable[ResultsFile]) -> None:
    """Check that no simulation of one side counts twice: one conversation is one trial.

    Lost simulations may have been run again with the same trial number. Equal trials of a deterministic agent
    have timestamps of their own.

    Raises:
        ResultsError: two simulations of a file have the same task and trial, or two have the same messages.
    """
    by_task: dict[str, list[tuple[Path, Simulation]]] = {}
    for file in files:
        for simulation in file.simulations:
            by_task.setdefault(simulation.task_id, []).append((file.path, simulation))
    for task_id, runs in by_task.items():
        seen: dict[object, Simulation] = {}
        for path, simulation in runs if len(runs) > 1 else ():
            facts: dict[object, str] = {}
            is_lost = simulation.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR
            if simulation.trial is not None and not is_lost:
                facts[path, simulation.trial] = (
                    f"are both trial {simulation.trial} of task {task_id!r}; remove a copy, or give each run "
                    "as a file of its own"
                )
            # The messages of a full-duplex simulation are a part of it, and it is never scored.
            if messages := "" if simulation.is_full_duplex else _messages_digest(simulation):
                facts[messages] = (
                    f"of task {task_id!r} have the same messages; remove the copy, which is no trial"
                )
            for fact, text in facts.items():
                if (other := seen.setdefault(fact, simulation)) is not simulation:
                    raise ResultsError(f"{path}: simulations {other.id!r} and {simulation.id!r} {text}")


def _messages_digest(simulation: Simulation) -> str:
    """The digest of a simulation's messages; empty without messages.

    Timestamps count only if nothing else tells two runs apart: the duration of an answer or its id.
    """
    messages = [message.model_dump(mode="json", exclude_none=True) for message in simulation.trace]
    is_unique = any(
        message.get("generation_time_seconds") or _get_text(_get_object(message, "raw_data"), "id")
        for message in messages
    )
    if is_unique:
        messages = [{**message, "timestamp": None} for message in messages]
    return digest(messages) if messages else ""


def _locate_files(path: Path) -> tuple[Path, Path | None]:
    """The file with the header, and the folder of the simulations if they are separate files."""
    header_path = path / "results.json" if path.is_dir() else path
    if path.is_dir() and not header_path.exists():
        raise ResultsError(f"{path}: a folder without results.json is not a results folder")
    folder = header_path.parent / SIMULATIONS_KEY
    is_separate = header_path.name == "results.json" and folder.is_dir()
    return header_path, folder if is_separate else None


def _read_folder(path: Path, folder: Path, content: dict[str, Any]) -> list[Any]:
    files = sorted(folder.glob("*.json"))
    index = content.get("simulation_index")
    if isinstance(index, list):
        indexed_ids = {str(entry.get("id")) for entry in index if isinstance(entry, dict)}
        present_ids = {file.stem for file in files}
        for problem, names in (
            ("missing", indexed_ids - present_ids),
            ("not in its index", present_ids - indexed_ids),
        ):
            if names:
                examples = ", ".join(sorted(names)[:3])
                raise ResultsError(f"{path}: {len(names)} simulation files {problem}: {examples}")
    return [decode_results(file) for file in files]


def _malformed_text(error: ValidationError) -> str:
    problem = first_problem(error, "")
    return f"malformed{problem}" if problem.startswith(": ") else f"malformed at {problem}"


def _parse_tasks(path: Path, records: Iterable[Any]) -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    for position, record in enumerate(records):
        if isinstance(record, dict) and isinstance(record.get("id"), int):
            record = {**record, "id": str(record["id"])}
        try:
            task = Task.model_validate(record)
        except ValidationError as error:
            raise ResultsError(f"{path}: task {position} is {_malformed_text(error)}") from None
        if task.id in tasks:
            raise ResultsError(f"{path}: contains task {task.id!r} twice")
        tasks[task.id] = task
    return tasks


def _parse_simulations(path: Path, records: Sequence[Any]) -> tuple[Simulation, ...]:
    for name in ("task_id", "termination_reason"):
        incomplete_records = [
            record for record in records if isinstance(record, dict) and record.get(name) in (None, "")
        ]
        if incomplete_records:
            first_id = incomplete_records[0].get("id")
            raise ResultsError(
                f"{path}: {len(incomplete_records)} of {len(records)} simulations have no {name} (first: id "
                f"{first_id!r}); "
                "they cannot be scored; use the file that tau2 wrote"
            )
    simulations: dict[str, Simulation] = {}
    for position, record in enumerate(records):
        try:
            simulation = Simulation.model_validate(record)
        except ValidationError as error:
            raise ResultsError(f"{path}: simulation {position} is {_malformed_text(error)}") from None
        if simulation.id in simulations:
            raise ResultsError(f"simulation {simulation.id!r} occurs twice in {path}; ids must differ")
        simulations[simulation.id] = simulation
    return tuple(simulations.values())


def _check_recorded_checks(path: Path, simulations: Sequence[Simulation], tasks: dict[str, Task]) -> None:
    """Check that recorded action checks, which reveal the task that ran, belong to the simulation's task."""
    owners: dict[str, str] = {}
    for task in tasks.values():
        if task.actions:
            owners.setdefault(_signature(action.model_dump() for action in task.actions), task.id)
    for simulation in simulations:
        recorded_checks = (simulation.reward_info or {}).get("action_checks")
        if not isinstance(recorded_checks, list) or not recorded_checks:
            continue
        recorded_signature = _signature(
            check.get("action") for check in recorded_checks if isinstance(check, dict)
        )
        task_signature = _signature(action.model_dump() for action in tasks[simulation.task_id].actions)
        if recorded_signature != task_signature and recorded_signature in owners:
            raise ResultsError(
                f"{path}: simulation {simulation.id!r} says task {simulation.task_id!r}, but its recorded "
                f"checks are those of task {owners[recorded_signature]!r}; the task ids are wrong; "
                "use the file that "
                "tau2 wrote"
            )


def _signature(actions: Iterable[Any]) -> str:
    """A text that is equal for two lists of actions if their names and arguments agree."""
    parts = []
    for action in actions:
        arguments = action.get("arguments") if isinstance(action, dict) else None
        if isinstance(arguments, dict):
            parts.append(repr((action.get("name"), sorted(arguments.items(), key=repr))))
        else:
            parts.append(repr(action))
    return "\n".join(parts)


def read_findings(simulation: Simulation) -> tuple[Finding, ...] | None:
    """The breaches of invariants that a run recorded; None if there is no readable record."""
    findings = _get_object(getattr(simulation, "info", None), OWN_BLOCK_KEY).get("invariants")
    if not isinstance(findings, list):
        return None
    try:
        return tuple(Finding.model_validate(finding) for finding in findings)
    except ValidationError:
        return None
