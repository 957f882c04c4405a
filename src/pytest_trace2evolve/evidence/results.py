"""Reads tau2's results files in all their forms, and rejects files that cannot be trusted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.reading import RESULTS, problem_in, read_bytes, read_json

SIMULATIONS = "simulations"
"""The name of the field or folder that holds the simulations."""

OWN_BLOCK = "trace2evolve"
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
        return _object(self.header, "info")

    @property
    def run(self) -> str:
        """The id of the run that made the file; empty if the file does not name a run."""
        return _text(_object(self.info, OWN_BLOCK), "run_id") or ""

    @property
    def domain(self) -> str | None:
        """The domain that the file names, or the common domain of all its tasks; None if there is none."""
        named = _text(_object(self.info, "environment_info"), "domain_name")
        if named is not None:
            return named
        scenarios = {
            _text(_object(task.user_scenario, "instructions"), "domain") for task in self.tasks.values()
        }
        return scenarios.pop() if len(scenarios) == 1 else None


def _object(value: Any, name: str) -> dict[str, Any]:
    inner = value.get(name) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _text(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    return text if isinstance(text, str) else None


def decode(path: Path) -> Any:
    return read_json(path, ResultsError, limit=RESULTS)


def read_results(path: Path, decoded: Any = None) -> ResultsFile:
    """Read `.json`, `.json.gz`, or a folder of `results.json` and `simulations/*.json`.

    Args:
        decoded: The result of `decode` for the path of a file, if already available.

    Raises:
        ResultsError: the file is missing, damaged or not a results file, or holds a number that is not
            finite; or a simulation lacks its task id or termination reason, runs a task that is not in the
            file, or carries recorded checks of a different task.
    """
    meta, folder = _locate(path)
    record = decode(meta) if decoded is None or meta != path else decoded
    if not isinstance(record, dict):
        raise ResultsError(f"{path}: holds a JSON {type(record).__name__}, not a results object")
    lists: dict[str, Any] = {
        "tasks": record.get("tasks"),
        SIMULATIONS: _from_folder(path, folder, record) if folder else record.get(SIMULATIONS),
    }
    for name, found in lists.items():
        if not isinstance(found, list):
            raise ResultsError(f"{path}: has no list {name!r}; is it a tau2 results file?")
    tasks = _tasks(path, lists["tasks"])
    simulations = _simulations(path, lists[SIMULATIONS])
    for simulation in simulations:
        if simulation.task_id not in tasks:
            raise ResultsError(
                f"{path}: simulation {simulation.id!r} ran task {simulation.task_id!r}, "
                "which the file does not hold"
            )
    _check_recorded_checks(path, simulations, tasks)
    header = {key: value for key, value in record.items() if key not in lists}
    return ResultsFile(path=path, header=header, tasks=tasks, simulations=simulations)


def traces_digest(path: Path) -> str:
    """The digest of everything that `read_results` reads from a path, independent of line endings."""
    meta, folder = _locate(path)
    files = {"results.json": meta}
    if folder is not None:
        files |= {f"{SIMULATIONS}/{file.name}": file for file in folder.glob("*.json")}
    contents = {name: read_bytes(file, ResultsError, limit=RESULTS) for name, file in files.items()}
    return digest(
        {
            name: digest_text(content.decode("latin-1").replace("\r\n", "\n"))
            for name, content in contents.items()
        }
    )


def combine(files: Sequence[ResultsFile]) -> tuple[tuple[Simulation, ...], tuple[str, ...]]:
    """Combine the simulations of one candidate's files, renumbering trials if numbers clash or are missing.

    Returns:
        The simulations, each (task, trial) once, and notes on the renumbered trials.

    Raises:
        ResultsError: a simulation id occurs twice.
    """
    origin: dict[str, Path] = {}
    for file in files:
        for simulation in file.simulations:
            if simulation.id in origin:
                where = f"in {origin[simulation.id]} and {file.path}; give each run once"
                if origin[simulation.id] == file.path:
                    where = f"in {file.path}; ids must differ"
                raise ResultsError(f"simulation {simulation.id!r} is twice {where}")
            origin[simulation.id] = file.path
    everything = [simulation for file in files for simulation in file.simulations]
    keys = {(simulation.task_id, simulation.trial) for simulation in everything}
    if len(keys) == len(everything) and all(trial is not None for _, trial in keys):
        return tuple(everything), ()
    trials: dict[str, int] = {}
    renumbered = []
    for simulation in everything:
        trial = trials.get(simulation.task_id, 0)
        trials[simulation.task_id] = trial + 1
        renumbered.append(simulation.model_copy(update={"trial": trial}))
    most = max(trials.values())
    if len(keys) == len(everything) and most == 1:
        return tuple(renumbered), ()  # one unnumbered simulation per task becomes trial 0 without a note
    names = ", ".join(file.path.name for file in files)
    note = f"{names}: trials renumbered 0 to {most - 1}, since files or simulations share numbers"
    return tuple(renumbered), (note,)


def _locate(path: Path) -> tuple[Path, Path | None]:
    """The file with the header, and the folder of the simulations if they are separate files."""
    meta = path / "results.json" if path.is_dir() else path
    if path.is_dir() and not meta.exists():
        raise ResultsError(f"{path}: a folder without results.json is no results folder")
    folder = meta.parent / SIMULATIONS
    is_separate = meta.name == "results.json" and folder.is_dir()
    return meta, folder if is_separate else None


def _from_folder(path: Path, folder: Path, record: dict[str, Any]) -> list[Any]:
    files = sorted(folder.glob("*.json"))
    index = record.get("simulation_index")
    if isinstance(index, list):
        indexed = {str(entry.get("id")) for entry in index if isinstance(entry, dict)}
        present = {file.stem for file in files}
        for what, names in (("missing", indexed - present), ("not in its index", present - indexed)):
            if names:
                some = ", ".join(sorted(names)[:3])
                raise ResultsError(f"{path}: {len(names)} simulation files {what}: {some}")
    return [decode(file) for file in files]


def _tasks(path: Path, records: Iterable[Any]) -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    for position, record in enumerate(records):
        if isinstance(record, dict) and isinstance(record.get("id"), int):
            record = {**record, "id": str(record["id"])}
        try:
            task = Task.model_validate(record)
        except ValidationError as error:
            raise ResultsError(
                f"{path}: task {position} is malformed at {problem_in(error, 'itself')}"
            ) from None
        if task.id in tasks:
            raise ResultsError(f"{path}: holds task {task.id!r} twice")
        tasks[task.id] = task
    return tasks


def _simulations(path: Path, records: Sequence[Any]) -> tuple[Simulation, ...]:
    for name in ("task_id", "termination_reason"):
        lacking = [
            record for record in records if isinstance(record, dict) and record.get(name) in (None, "")
        ]
        if lacking:
            first = lacking[0].get("id")
            raise ResultsError(
                f"{path}: {len(lacking)} of {len(records)} simulations have no {name} (first: id {first!r}); "
                "they cannot be scored, use the file that tau2 wrote"
            )
    simulations: dict[str, Simulation] = {}
    for position, record in enumerate(records):
        try:
            simulation = Simulation.model_validate(record)
        except ValidationError as error:
            raise ResultsError(
                f"{path}: simulation {position} is malformed at {problem_in(error, 'itself')}"
            ) from None
        if simulation.id in simulations:
            raise ResultsError(f"simulation {simulation.id!r} is twice in {path}; ids must differ")
        simulations[simulation.id] = simulation
    return tuple(simulations.values())


def _check_recorded_checks(path: Path, simulations: Sequence[Simulation], tasks: dict[str, Task]) -> None:
    """Check that recorded action checks, which reveal the task that ran, belong to the simulation's task."""
    owners: dict[str, str] = {}
    for task in tasks.values():
        if task.actions:
            owners.setdefault(_signature(action.model_dump() for action in task.actions), task.id)
    for simulation in simulations:
        recorded = (simulation.reward_info or {}).get("action_checks")
        if not isinstance(recorded, list) or not recorded:
            continue
        checked = _signature(check.get("action") for check in recorded if isinstance(check, dict))
        own = _signature(action.model_dump() for action in tasks[simulation.task_id].actions)
        if checked != own and checked in owners:
            raise ResultsError(
                f"{path}: simulation {simulation.id!r} says task {simulation.task_id!r}, but its recorded "
                f"checks are those of task {owners[checked]!r}; the task ids are wrong, use the file that "
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


def written_findings(simulation: Simulation) -> tuple[Finding, ...] | None:
    """The breaches of invariants that a run recorded; None if there is no readable record."""
    findings = _object(getattr(simulation, "info", None), OWN_BLOCK).get("invariants")
    if not isinstance(findings, list):
        return None
    try:
        return tuple(Finding.model_validate(finding) for finding in findings)
    except ValidationError:
        return None
