"""Reads tau2's results files in all their forms, and rejects files that cannot be trusted."""

from collections.abc import Iterable, Iterator, Mapping
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

    Attributes:
        header: Everything but tasks and simulations, unchanged from the file.
        simulations: The simulations in the order of the file. Those of a folder may be read and checked only
            when they are iterated over.
    """

    path: Path
    header: dict[str, Any]
    tasks: dict[str, Task]
    simulations: Iterable[Simulation]

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


def read_results(path: Path, decoded: Any = None, *, streams: bool = False) -> ResultsFile:
    """Read `.json`, `.json.gz`, or a folder of `results.json` and `simulations/*.json`.

    Args:
        decoded: The result of `decode_results` for the path of a file, if already available.
        streams: Whether the simulations of a folder are read each time that they are iterated over, so that
            memory holds one at a time. Then only iterating raises the errors in them.

    Raises:
        ResultsError: the file is missing, damaged or not a results file, or holds a number that is not
            finite; or a simulation lacks its task id or termination reason, runs a task that is not in the
            file, or carries recorded checks of a different task. The first such simulation is named.
    """
    header_path, folder = _locate_files(path)
    content = decode_results(header_path) if decoded is None or header_path != path else decoded
    if not isinstance(content, dict):
        raise ResultsError(f"{path}: contains a JSON {type(content).__name__}, expected a results object")
    records = _list_files(path, folder, content) if folder else content.get(SIMULATIONS_KEY)
    tasks = content.get("tasks")
    if not isinstance(tasks, list) or not isinstance(records, list):
        name = SIMULATIONS_KEY if isinstance(tasks, list) else "tasks"
        raise ResultsError(f"{path}: has no list {name!r}; expected a results file of tau2")
    simulations = _Simulations(path, records, _parse_tasks(path, tasks))
    header = {key: value for key, value in content.items() if key not in ("tasks", SIMULATIONS_KEY)}
    kept = simulations if streams and folder else tuple(simulations)
    return ResultsFile(path=path, header=header, tasks=simulations.tasks, simulations=kept)


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


class TrialNumbers:
    """Numbers the trials of one candidate's simulations, which are added one by one."""

    def __init__(self) -> None:
        self._simulations: dict[str, tuple[Path, str, int | None]] = {}

    def add(self, path: Path, simulation: Simulation) -> None:
        """Add a simulation of the file at a path. Raises `ResultsError` if its id occurs twice."""
        if simulation.id in self._simulations:
            first = self._simulations[simulation.id][0]
            place = f"{path}; ids must differ" if first == path else f"{first} and {path}; give each run once"
            raise ResultsError(f"simulation {simulation.id!r} occurs twice in {place}")
        self._simulations[simulation.id] = path, simulation.task_id, simulation.trial

    def numbers(self) -> tuple[dict[str, int], tuple[str, ...]]:
        """Return the trial of each simulation by its id, and notes on renumbered trials.

        Trials are renumbered if numbers clash or are missing, so that each task has each trial once.
        """
        simulations = self._simulations
        keys = {(task, trial) for _, task, trial in simulations.values()}
        recorded = {id: trial for id, (_, _, trial) in simulations.items() if trial is not None}
        if len(keys) == len(simulations) == len(recorded):
            return recorded, ()
        counts: dict[str, int] = {}
        renumbered = {}
        for id, (_, task, _) in simulations.items():
            renumbered[id] = counts.get(task, 0)
            counts[task] = renumbered[id] + 1
        max_trials = max(counts.values())
        if len(keys) == len(simulations) and max_trials == 1:
            return renumbered, ()  # one unnumbered simulation per task becomes trial 0 without a note
        names = ", ".join(path.name for path in dict.fromkeys(path for path, _, _ in simulations.values()))
        note = f"{names}: trials renumbered 0 to {max_trials - 1}, since files or simulations share numbers"
        return renumbered, (note,)


def combine_results(files: Iterable[ResultsFile]) -> tuple[tuple[Simulation, ...], tuple[str, ...]]:
    """Combine the simulations of one candidate's files, renumbering trials if numbers clash or are missing.

    Returns:
        The simulations, each (task, trial) once, and notes on the renumbered trials.

    Raises:
        ResultsError: a simulation id occurs twice.
    """
    trials, simulations = TrialNumbers(), []
    for file in files:
        for simulation in file.simulations:
            trials.add(file.path, simulation)
            simulations.append(simulation)
    numbers, notes = trials.numbers()
    if any(simulation.trial != numbers[simulation.id] for simulation in simulations):
        simulations = [each.model_copy(update={"trial": numbers[each.id]}) for each in simulations]
    return tuple(simulations), notes


def check_copy(path: Path, simulation: Simulation, seen: dict[object, str]) -> None:
    """Check that a simulation does not count twice on its side: one conversation is one trial.

    Lost simulations may have been run again with the same trial number. Equal trials of a deterministic agent
    have timestamps of their own.

    Args:
        path: The file of the simulation.
        seen: The ids of the simulations before it, by what must differ; this one's is added.

    Raises:
        ResultsError: one of the same file has the same task and trial, or one has the same messages.
    """
    task_id, trial = simulation.task_id, simulation.trial
    facts: dict[object, str] = {}
    if trial is not None and simulation.termination_reason != TerminationReason.INFRASTRUCTURE_ERROR:
        facts[task_id, path, trial] = (
            f"are both trial {trial} of task {task_id!r}; remove a copy, or give each run as a file of its "
            "own"
        )
    # The messages of a full-duplex simulation are a part of it, and it is never scored.
    if messages := "" if simulation.is_full_duplex else _messages_digest(simulation):
        facts[task_id, messages] = (
            f"of task {task_id!r} have the same messages; remove the copy, which is no trial"
        )
    for fact, text in facts.items():
        if (other := seen.setdefault(fact, simulation.id)) != simulation.id:
            raise ResultsError(f"{path}: simulations {other!r} and {simulation.id!r} {text}")


def check_copies(files: Iterable[ResultsFile]) -> None:
    """Check the simulations of one side by `check_copy`."""
    seen: dict[object, str] = {}
    for file in files:
        for simulation in file.simulations:
            check_copy(file.path, simulation, seen)


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


def _list_files(path: Path, folder: Path, content: dict[str, Any]) -> list[Path]:
    """The files of the simulations, which must be those of the index if there is one."""
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
    return files


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


@dataclass(frozen=True)
class _Simulations:
    """The simulations of a results file or folder, read and checked whenever they are iterated over.

    Attributes:
        records: The decoded simulations, or the files that hold one each.
    """

    path: Path
    records: list[Any]
    tasks: dict[str, Task]

    def __iter__(self) -> Iterator[Simulation]:
        owners: dict[str, str] = {}
        for task in self.tasks.values():
            if task.actions:
                owners.setdefault(_signature(action.model_dump() for action in task.actions), task.id)
        ids: set[str] = set()
        for position, record in enumerate(self._decoded()):
            self._check_complete(record)
            try:
                simulation = Simulation.model_validate(record)
            except ValidationError as error:
                text = _malformed_text(error)
                raise ResultsError(f"{self.path}: simulation {position} is {text}") from None
            if simulation.id in ids:
                raise ResultsError(
                    f"simulation {simulation.id!r} occurs twice in {self.path}; ids must differ"
                )
            ids.add(simulation.id)
            if simulation.task_id not in self.tasks:
                raise ResultsError(
                    f"{self.path}: simulation {simulation.id!r} ran task {simulation.task_id!r}, "
                    "which is not in the file"
                )
            self._check_recorded_checks(simulation, owners)
            yield simulation

    def _decoded(self) -> Iterator[Any]:
        for record in self.records:
            yield decode_results(record) if isinstance(record, Path) else record

    def _check_complete(self, record: Any) -> None:
        """Check that a record has a task and an ending; the error counts all records that lack the same."""
        for name in ("task_id", "termination_reason"):
            if _lacks(record, name):
                count = sum(_lacks(other, name) for other in self._decoded())
                raise ResultsError(
                    f"{self.path}: {count} of {len(self.records)} simulations have no {name} (first: id "
                    f"{record.get('id')!r}); they cannot be scored; use the file that tau2 wrote"
                )

    def _check_recorded_checks(self, simulation: Simulation, owners: Mapping[str, str]) -> None:
        """Check that recorded action checks, which reveal the task that ran, belong to the simulation's task.

        `owners` are the tasks by the signature of their actions.
        """
        recorded_checks = (simulation.reward_info or {}).get("action_checks")
        if not isinstance(recorded_checks, list) or not recorded_checks:
            return
        recorded_signature = _signature(
            check.get("action") for check in recorded_checks if isinstance(check, dict)
        )
        actions = self.tasks[simulation.task_id].actions
        task_signature = _signature(action.model_dump() for action in actions)
        if recorded_signature != task_signature and recorded_signature in owners:
            raise ResultsError(
                f"{self.path}: simulation {simulation.id!r} says task {simulation.task_id!r}, but its "
                f"recorded checks are those of task {owners[recorded_signature]!r}; the task ids are wrong; "
                "use the file that tau2 wrote"
            )


def _lacks(record: Any, name: str) -> bool:
    return isinstance(record, dict) and record.get(name) in (None, "")


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
