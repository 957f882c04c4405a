"""Reading tau2's results files in every form seen in the wild, and refusing those that cannot be trusted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.tau2_format import OWN_BLOCK
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.reading import RESULTS, complaint, read_bytes, read_json

__all__ = ["ResultsFile", "combine", "decode", "read_results", "traces_digest"]

SIMULATIONS = "simulations"


@dataclass(frozen=True)
class ResultsFile:
    """One results file: its simulations, the tasks they ran (embedded in the file) and what else it says.

    `header` is everything but tasks and simulations, as it stood in the file.
    """

    path: Path
    header: dict[str, Any]
    tasks: dict[str, Task]
    simulations: tuple[Simulation, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def info(self) -> dict[str, Any]:
        """The `info` block; empty where the file has none."""
        info = self.header.get("info")
        return info if isinstance(info, dict) else {}

    @property
    def run(self) -> str:
        """The id of the run that the file says made it; empty if it names none."""
        own = self.info.get(OWN_BLOCK)
        named = own.get("run_id") if isinstance(own, dict) else None
        return named if isinstance(named, str) else ""

    @property
    def domain(self) -> str | None:
        """The domain that the file names, if it names one."""
        environment = self.info.get("environment_info")
        named = environment.get("domain_name") if isinstance(environment, dict) else None
        if isinstance(named, str):
            return named
        scenarios = {_scenario_domain(task) for task in self.tasks.values()}
        return scenarios.pop() if len(scenarios) == 1 else None


def read_results(path: Path) -> ResultsFile:
    """Read `.json`, `.json.gz`, or a folder of `results.json` and `simulations/*.json`.

    Raises:
        ResultsError: the file is missing, damaged or not a results file; holds a number that is not
            finite; a simulation lacks its task id or termination reason, runs a task that the file does
            not hold, or carries recorded checks of another task.
    """
    meta, folder = _locate(path)
    record = decode(meta)
    if not isinstance(record, dict):
        raise ResultsError(f"{path}: holds a JSON {type(record).__name__}, not a results object")
    raw_tasks = record.get("tasks")
    if not isinstance(raw_tasks, list):
        raise ResultsError(f"{path}: has no list 'tasks'; is it a tau2 results file?")
    raw_simulations = _from_folder(path, folder, record) if folder else record.get(SIMULATIONS)
    if not isinstance(raw_simulations, list):
        raise ResultsError(f"{path}: has no list 'simulations'; is it a tau2 results file?")
    tasks = _tasks(path, raw_tasks)
    simulations = _simulations(path, raw_simulations)
    header = {key: value for key, value in record.items() if key not in ("tasks", SIMULATIONS)}
    _refuse_unknown_tasks(path, simulations, tasks)
    _refuse_foreign_checks(path, simulations, tasks)
    return ResultsFile(path=path, header=header, tasks=tasks, simulations=simulations)


def traces_digest(path: Path) -> str:
    """Identifies all that `read_results` reads of a path; ends of lines do not count.

    Raises:
        ResultsError: a file is missing, too large or not a regular file.
    """
    meta, folder = _locate(path)
    files = {meta: "results.json"}
    if folder is not None:
        files |= {file: f"{SIMULATIONS}/{file.name}" for file in folder.glob("*.json")}
    return digest(
        {
            name: digest_text(
                read_bytes(file, ResultsError, limit=RESULTS).decode("latin-1").replace("\r\n", "\n")
            )
            for file, name in files.items()
        }
    )


def decode(path: Path) -> Any:
    """Decode a JSON file, gzipped or plain.

    Raises:
        ResultsError: the file is missing, damaged, too large, or holds a number that is not finite.
    """
    return read_json(path, ResultsError, limit=RESULTS)


def combine(files: Sequence[ResultsFile]) -> tuple[tuple[Simulation, ...], tuple[str, ...]]:
    """The simulations of one candidate's files, trials renumbered where files count them alike.

    Returns:
        The simulations, each (task, trial) once, and notes that say what was renumbered.

    Raises:
        ResultsError: one simulation is in two files.
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
    seen: dict[str, int] = {}
    renumbered = []
    for simulation in everything:
        trial = seen.get(simulation.task_id, 0)
        seen[simulation.task_id] = trial + 1
        renumbered.append(simulation.model_copy(update={"trial": trial}))
    if len(keys) == len(everything) and max(seen.values()) == 1:
        return tuple(renumbered), ()  # one unnumbered simulation a task is trial 0: nothing to tell
    names = ", ".join(file.path.name for file in files)
    note = (
        f"{names}: trials renumbered 0 to {max(seen.values()) - 1}, since files or simulations share numbers"
    )
    return tuple(renumbered), (note,)


def _locate(path: Path) -> tuple[Path, Path | None]:
    """The file that holds the header, and the folder of simulations where they lie apart."""
    meta = path / "results.json" if path.is_dir() else path
    if path.is_dir() and not meta.exists():
        raise ResultsError(f"{path}: a folder without results.json is no results folder")
    folder = meta.parent / SIMULATIONS
    apart = meta.name == "results.json" and folder.is_dir()
    return meta, folder if apart else None


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
        try:
            task = Task.model_validate(record if not _int_id(record) else {**record, "id": str(record["id"])})
        except ValidationError as error:
            raise ResultsError(
                f"{path}: task {position} is malformed at {complaint(error, 'itself')}"
            ) from None
        if task.id in tasks:
            raise ResultsError(f"{path}: holds task {task.id!r} twice")
        tasks[task.id] = task
    return tasks


def _int_id(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("id"), int)


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
                f"{path}: simulation {position} is malformed at {complaint(error, 'itself')}"
            ) from None
        if simulation.id in simulations:
            raise ResultsError(f"simulation {simulation.id!r} is twice in {path}; ids must differ")
        simulations[simulation.id] = simulation
    return tuple(simulations.values())


def _refuse_unknown_tasks(path: Path, simulations: Sequence[Simulation], tasks: dict[str, Task]) -> None:
    for simulation in simulations:
        if simulation.task_id not in tasks:
            raise ResultsError(
                f"{path}: simulation {simulation.id!r} ran task {simulation.task_id!r}, "
                "which the file does not hold"
            )


def _refuse_foreign_checks(path: Path, simulations: Sequence[Simulation], tasks: dict[str, Task]) -> None:
    """Recorded action checks name the gold actions of the task that was really run."""
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
        if checked == own or checked not in owners:
            continue
        raise ResultsError(
            f"{path}: simulation {simulation.id!r} says task {simulation.task_id!r}, but its recorded checks "
            f"are those of task {owners[checked]!r}; the task ids are wrong, use the file that tau2 wrote"
        )


def _signature(actions: Iterable[Any]) -> str:
    """Text that lists of actions share where names and arguments agree; anything else in a list is itself."""
    parts = []
    for action in actions:
        arguments = action.get("arguments") if isinstance(action, dict) else None
        if isinstance(arguments, dict):
            parts.append(repr((action.get("name"), sorted(arguments.items(), key=repr))))
        else:
            parts.append(repr(action))
    return "\n".join(parts)


def _scenario_domain(task: Task) -> str | None:
    scenario = task.user_scenario
    instructions = scenario.get("instructions") if isinstance(scenario, dict) else None
    domain = instructions.get("domain") if isinstance(instructions, dict) else None
    return domain if isinstance(domain, str) else None
