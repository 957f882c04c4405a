"""Names and trains the adapters of an evolution, and recognizes existing adapters of the evolution.

Each adapter is trained in a separate process, because training takes long, and torch returns its memory only
when the process ends.
"""

import itertools
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.improve.plan import EvolutionPlan
from pytest_trace2evolve.project.adapters import Adapters, unfinished_folder
from pytest_trace2evolve.records.adapter import MANIFEST_NAME, AdapterManifest
from pytest_trace2evolve.records.improvement import Evolution
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.session.promote import lacks_other_environments
from pytest_trace2evolve.training.recipe import Recipe, recipe_toml
from pytest_trace2evolve.utils.files import write_atomic

_ERROR_LOG_LINES = 3
"""The number of lines from the end of a log that an error message repeats."""

OnLine = Callable[[str, str], None]
"""Called with the name of an adapter, and a line of output from the adapter's training process."""


@dataclass(frozen=True)
class Training:
    """The process that trains an adapter.

    Attributes:
        name: The adapter's name.
        arguments: The arguments of Python.
        folder: The working folder.
        log: The log file.
    """

    name: str
    arguments: Sequence[str]
    folder: Path
    log: Path


def adapter_names(
    plan: EvolutionPlan, state: Evolution, adapters: Adapters, environments: Environments
) -> dict[str, str]:
    """Choose adapter names by capability; an earlier choice stays unless a different adapter took the name.

    Raises:
        AdapterError: a manifest is damaged.
    """
    names: dict[str, str] = {}
    for capability in (missing.name for missing in state.missing or ()):
        name = state.adapters.get(capability)
        is_taken = name is not None and (adapters.folder / name).exists()
        generator_digest = environments.generator(
            capability, state.environments[capability].difficulty
        ).digest
        if name is None or (
            is_taken
            and not _belongs_to_evolution(name, {capability: generator_digest}, plan, state, adapters)
        ):
            name = _unused_name(adapters.folder, capability)
        names[capability] = name
    return names


def _belongs_to_evolution(
    name: str, environments: Mapping[str, str], plan: EvolutionPlan, state: Evolution, adapters: Adapters
) -> bool:
    """Return whether an adapter has this evolution's training settings and evidence, and may be promoted."""
    if not (adapters.folder / name / MANIFEST_NAME).exists():
        return False
    manifest = adapters[name].manifest
    return (
        manifest.environments == environments
        and not lacks_other_environments(manifest)
        and manifest.base_digest == folder_digest(plan.base.path)
        and manifest.recipe == training_recipe(plan, state).model_dump(mode="json")
        and manifest.difficulty == {name: state.environments[name].difficulty for name in environments}
        and manifest.candidate == state.candidate
        # An adapter of a different evolution would count as informed by other splits.
        and (manifest.evidence, manifest.informed_by) in (((), ()), (state.runs, state.splits))
    )


def _unused_name(folder: Path, capability: str) -> str:
    """Return the first of `capability`, `capability_2`, … that no adapter or training run uses."""
    numbered_names = (f"{capability}_{number}" for number in itertools.count(2))
    paths = (folder / name for name in itertools.chain([capability], numbered_names))
    return next(path.name for path in paths if not path.exists() and not unfinished_folder(path).exists())


def training_recipe(plan: EvolutionPlan, state: Evolution) -> Recipe:
    """Return the recipe of each training run; a resumed run keeps the stored number of threads."""
    return plan.recipe if state.threads is None else plan.recipe.model_copy(update={"threads": state.threads})


def plan_trainings(plan: EvolutionPlan, state: Evolution, root: Path, folder: Path) -> list[Training]:
    """Plan the training of each adapter that does not exist; `folder` receives the recipe and the logs."""
    recipe_path = folder / "recipe.toml"
    write_atomic(recipe_path, recipe_toml(training_recipe(plan, state)))
    return [
        Training(
            name,
            [
                *("-m", "pytest_trace2evolve", "--root", str(root), "train"),
                *("--capability", capability, "--adapter-name", name),
                *("--base", str(plan.base.path), "--preset", plan.preset, "--config", str(recipe_path)),
                *("--difficulty", str(state.environments[capability].difficulty)),
                *("--candidate", plan.candidate),
                *("--heldout", str(plan.heldout_scenarios)),
                *("-o", f"t2e_heldout_rollouts={plan.heldout_rollouts}"),
            ],
            root,
            folder / f"train-{name}.log",
        )
        for capability, name in state.adapters.items()
        if not (root / "adapters" / name / MANIFEST_NAME).exists()
    ]


def record_evidence(name: str, state: Evolution, adapters: Adapters) -> AdapterManifest:
    """Record, in an adapter's manifest, the runs and splits whose failures the adapter was trained on.

    Raises:
        AdapterError: the manifest is damaged.
        OSError: the manifest cannot be written.
    """
    changes = {"evidence": state.runs, "informed_by": state.splits}
    manifest = adapters[name].manifest.model_copy(update=changes)
    write_atomic(adapters.folder / name / MANIFEST_NAME, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def count_rollouts(manifest: AdapterManifest) -> int:
    """Return the number of rollouts of a training run, including the measurements before and after it."""
    return manifest.rollouts + 2 * sum(change.rollouts for change in manifest.heldout.values())


def run_trainings(trainings: Sequence[Training], lock: int, max_parallel: int, on_line: OnLine) -> None:
    """Run training processes, `max_parallel` at a time; each inherits the handle `lock`.

    Raises:
        TrainingError: a training run failed. The other running processes end first, and no further one
            starts.
    """
    failures: list[str] = []
    processes: list[subprocess.Popen[str]] = []

    def run_unless_failed(training: Training) -> None:
        if failures:
            return
        try:
            failure = _run_training(training, lock, on_line, processes)
        except Exception as error:
            failure = f"{training.name} failed: {type(error).__name__}: {error}; see {training.log}"
        failures.extend([failure] if failure else [])

    with ThreadPoolExecutor(max_parallel, "trace2evolve-training") as pool:
        try:
            for future in [pool.submit(run_unless_failed, training) for training in trainings]:
                future.result()
        except BaseException:
            failures.append("interrupted")
            for process in processes:
                process.terminate()
            raise
    if failures:
        raise TrainingError(failures[0])


def _run_training(
    training: Training, lock: int, on_line: OnLine, processes: list[subprocess.Popen[str]]
) -> str:
    """Run one training process; return the reason for a failure, or an empty string."""
    training.log.parent.mkdir(parents=True, exist_ok=True)
    with (
        training.log.open("a", encoding="utf-8") as log,
        subprocess.Popen(
            [sys.executable, *training.arguments],
            cwd=training.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            pass_fds=(lock,) if os.name == "posix" else (),  # Windows cannot inherit the handle
        ) as process,
    ):
        processes.append(process)
        assert process.stdout is not None
        last_lines: deque[str] = deque(maxlen=_ERROR_LOG_LINES)
        try:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if text := line.strip():
                    last_lines.append(text)
                    on_line(training.name, text)
            status = process.wait()
        except BaseException:
            process.terminate()  # no thread reads its output any more
            raise
    if status == 0:
        return ""
    output_text = " / ".join(last_lines) or "no output"
    return f"{training.name} ended with status {status}: {output_text}; see {training.log}"
