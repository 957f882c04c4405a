"""Runs every damaged file through its reader or command, in one process, and prints one JSON line for each.

python -m tests.corpus.runner FOLDER [EVERY [PATTERN]]

With EVERY, a target takes only each so many of its damaged forms, beginning with another one than the target
before it; the forms of `ALWAYS` are always taken.

Memory is that of the whole process, CPU that of each file. A file that blocks is interrupted by an alarm.
"""

import contextlib
import gc
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.environments.calibration import read_calibrations
from pytest_trace2evolve.errors import Trace2EvolveError, shorten
from pytest_trace2evolve.evidence.answer_store import read_cassette, render_cassette
from pytest_trace2evolve.gate.policy import read_policy
from pytest_trace2evolve.models.prices import read_prices
from pytest_trace2evolve.project.adapters import Adapters
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import ini_words
from pytest_trace2evolve.records.adapter import MANIFEST_NAME
from pytest_trace2evolve.records.completion import Answer, Completion
from pytest_trace2evolve.records.evidence import CandidateRef, Settings
from pytest_trace2evolve.serving.folder import read_adapter, read_model
from pytest_trace2evolve.training.recipe import PRESETS, read_recipe, recipe_toml
from pytest_trace2evolve.utils.resources import embedded_model
from tests.adapter_folders import write_adapter
from tests.attack.sessions import Sessions
from tests.corpus.damage import damages
from tests.hotel import TEMPLATE

ALWAYS = frozenset({"device", "nested"})
"""Damaged forms that show whether a target uses the bounded reader at all."""

PATIENCE = 120
"""Seconds after which a file counts as blocking: far more than any takes."""


@dataclass(frozen=True)
class Target:
    """A file, and what reads it.

    Attributes:
        name: Names it in a test's id.
        path: The file.
        kind: What is damaged; see `damages`.
        command: Arguments of `trace2evolve`; empty for a reader.
        reader: Reads the file where no quick command does.
        statuses: Exit statuses of the command for files that need not be rejected.
        strict: Whether a damaged file is an error; else a command may name it and continue.
        seeds: Random changes.
        every: Takes only each so many of its damaged forms, where a command is slow.
    """

    name: str
    path: Path
    kind: str
    command: tuple[str, ...] = ()
    reader: Callable[[], Any] | None = None
    statuses: frozenset[int] = frozenset({0, 1, 2, 10})
    strict: bool = True
    seeds: int = 10
    every: int = 1


def prepare(root: Path) -> None:
    """A project with a run, a baseline, a verdict, a ledger, a policy, prices and cases."""
    shutil.copytree(TEMPLATE, root, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    (root / "policies").mkdir()
    (root / "policies/own.toml").write_text(
        'base = "calibrated"\nalpha = 0.04\n\n[checks.reward]\nmargin = 0.1\n'
    )
    (root / "prices.toml").write_text("[hotel-model]\ninput = 2.0\noutput = 8.0\n")
    (root / "suites/_splits.toml").write_text('[nightly]\nrole = "report"\ndescription = "at night"\n')
    (root / "recipe.toml").write_text(recipe_toml(read_recipe("pocket")))
    session = ("pytest", "suites", "-q", "-p", "no:cacheprovider")
    with Sessions() as sessions:
        for command in (
            ("trace2evolve", "lock"),
            (*session, "--candidate=v0", "--t2e-save-baseline=v0"),
            (*session, "--candidate=v6", "--t2e-run-folder=run"),
            ("trace2evolve", "cases", "generate", "--seed=s", "--count=3", "--out=cases.jsonl"),
        ):
            done = sessions.run(root, *command)
            if done.status not in (0, 1):
                raise SystemExit(f"{command} ended with {done.status}: {done.text[-4000:]}")


def targets(root: Path) -> Iterator[Target]:
    """Every kind of file that a user writes or hands over."""
    results = root / "results.json"
    results.write_bytes(_joined(root / "run"))
    task = json.loads(results.read_bytes())["simulations"][0]["task_id"]
    baseline, other = root / "baselines/hotel/v0.json", root / "other.json"
    shutil.copy(baseline, other)
    spaced = root / "spaced.json"
    spaced.write_text(json.dumps(json.loads(baseline.read_text())))
    own = root / "policies/own.toml"
    calibrate = ("calibrate", "results.json", "-ot2e_resamples=5")
    promote = ("baseline", "promote", "run", "--dry-run")
    against = ("compare", "spaced.json", "baselines/hotel/v0.json")
    power = ("power", "--tasks=4", "--trials=2", "-ot2e_resamples=100", "--policy=own")
    simulation = next((root / "run/simulations").glob("*.json"))
    entry = next((root / "ledger").glob("*.json"))

    def command(name: str, path: Path, kind: str, *arguments: str, **more: Any) -> Target:
        return Target(name, path, kind, arguments, **more)

    def reader(name: str, path: Path, kind: str, reads: Callable[[], Any], **more: Any) -> Target:
        return Target(name, path, kind, reader=reads, **more)

    yield command("score", results, "json", "score", "results.json", seeds=15)
    yield command("score-folder", root / "run/results.json", "json", "score", "run", seeds=4, every=2)
    yield command("score-simulation", simulation, "json", "score", "run", seeds=8, every=2)
    yield command("compare", other, "json", "compare", "baselines/hotel/v0.json", "other.json", seeds=20)
    yield command("compare-spaced", spaced, "json", *against, seeds=10, every=2)
    yield command("calibrate", results, "json", *calibrate, seeds=0, every=9)
    yield command("capabilities", results, "json", "capabilities", "results.json", seeds=4, every=5)
    yield command("show", results, "json", "show", "results.json", task, seeds=10, every=2)
    yield command("promote", root / "run/verdict.json", "json", *promote, seeds=20)
    yield command("lock", root / "suites/suites.lock", "json", "check", strict=False, seeds=10)
    yield reader("suite", root / "suites/hotel.toml", "toml", lambda: _project(root).suite("hotel"), seeds=25)
    yield reader("splits", root / "suites/_splits.toml", "toml", lambda: _project(root).splits)
    yield command("check-suite", root / "suites/hotel.toml", "toml", "check", strict=False, seeds=6, every=8)
    yield command("power", own, "toml", *power, seeds=0, every=12)
    yield reader("policy", own, "toml", lambda: read_policy(own, {}), seeds=25)
    yield command("candidate", root / "candidates/v6.md", "markdown", "check", strict=False, seeds=8, every=6)
    yield command("baselines", baseline, "json", "baseline", "list", strict=False, seeds=5)
    yield command("check-baseline", baseline, "json", "check", strict=False, seeds=6, every=8)
    yield command("ledger", entry, "json", "ledger", strict=False)
    yield command("check-ledger", entry, "json", "check", strict=False, seeds=6, every=8)
    yield command("cases-check", root / "cases.jsonl", "jsonl", "cases", "check", "cases.jsonl", seeds=15)
    yield command("cases-show", root / "cases.jsonl", "jsonl", "cases", "show", "cases.jsonl", seeds=5)
    yield reader("candidate-file", root / "candidates/v6.md", "markdown", lambda: _candidate(root))
    yield reader("prices", root / "prices.toml", "toml", lambda: _priced(root / "prices.toml"))
    yield reader(
        "recipe", root / "recipe.toml", "toml", lambda: read_recipe("pocket", root / "recipe.toml"), seeds=30
    )
    yield from _made(root, reader)


def _made(root: Path, reader: Callable[..., Target]) -> Iterator[Target]:
    tape = root / "tape.jsonl"
    answer = Answer(trial=0, side="agent", model="m", completion=Completion(content="Hi."))
    header = {
        "candidate": CandidateRef(id="v0", digest="d"),
        "suites": {},
        "agent": Settings(),
        "user": Settings(),
    }
    tape.write_text(render_cassette(header, [("k1", answer), ("k2", answer)]))
    yield reader("cassette", tape, "jsonl", lambda: read_cassette(tape))

    kept = root / "calibrations"
    kept.mkdir()
    (kept / "read.json").write_text('{"calibrations": []}')
    yield reader("calibrations", kept / "read.json", "json", lambda: read_calibrations(kept, "read"), seeds=5)

    folder = write_adapter(root / "adapters", "consent")
    yield reader("manifest", folder / MANIFEST_NAME, "json", lambda: Adapters(root / "adapters")["consent"])

    model = root / "model"
    model.mkdir()
    for file in embedded_model().iterdir():
        (model / file.name).symlink_to(file)
    for name, kind in (
        ("config.json", "json"),
        ("tokenizer_config.json", "json"),
        ("generation_config.json", "json"),
    ):
        content = (model / name).read_bytes()
        (model / name).unlink()
        (model / name).write_bytes(content)
        strict = name == "config.json"
        yield reader(f"model-{name}", model / name, kind, lambda: read_model(model), strict=strict)
    weights = _weights(8)
    lora = root / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "auto_mapping": null}')
    (lora / "adapter_model.safetensors").write_bytes(weights)
    base = read_model(embedded_model())
    for name, kind in (("adapter_config.json", "json"), ("adapter_model.safetensors", "weights")):
        yield reader(f"lora-{name}", lora / name, kind, lambda: read_adapter("a", lora, base), seeds=20)
    ini = root / "ini"
    ini.mkdir()
    (ini / "pyproject.toml").write_text(
        '[project]\nname = "x"\n\n[tool.pytest.ini_options]\ntestpaths = ["t"]\n'
    )
    settings = ini / "pyproject.toml"
    yield reader("pyproject", settings, "toml", lambda: ini_words(ini, "testpaths"), strict=False)
    assert PRESETS


def _weights(width: int) -> bytes:
    header: dict[str, Any] = {}
    for place, name in enumerate("AB"):
        header[f"base_model.model.x.lora_{name}.weight"] = {
            "dtype": "F32",
            "shape": [1, width],
            "data_offsets": [place * width * 4, (place + 1) * width * 4],
        }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(2 * width * 4)


def _project(root: Path) -> Project:
    return Project(root, root / "suites")


def _candidate(root: Path) -> object:
    from pytest_trace2evolve.project.candidates import read_candidate

    return read_candidate(root / "candidates/v6.md")


def _priced(path: Path) -> object:
    from pytest_trace2evolve.records.completion import NO_USAGE, Usage

    prices = read_prices(path)
    usage = Usage(prompt_tokens=10**9, completion_tokens=10**9, cached_tokens=10**9)
    for price in prices.values():
        used = usage.model_copy(update={"cost": price.cost(usage)})
        total = sum((used for _ in range(100)), start=NO_USAGE)
        assert (total.cost or 0.0) < 1e30, total  # no overflow, with any table
    return prices


def _joined(run: Path) -> bytes:
    record = json.loads((run / "results.json").read_text())
    record["simulations"] = [
        json.loads(item.read_text()) for item in sorted((run / "simulations").glob("*.json"))
    ]
    return json.dumps(record).encode()


def ran(target: Target, refused: bool) -> dict[str, Any]:
    """What came of one damaged file: whether that is as it must be, and why not."""
    out, errors = io.StringIO(), io.StringIO()
    status: object = 0
    signal.alarm(PATIENCE)
    began = time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            if target.reader is None:
                status = main(target.command)
            else:
                target.reader()
    except (Trace2EvolveError, OSError) as error:  # as the command line reports them
        status = 2 if target.reader is not None else "raised"
        print(shorten(f"trace2evolve: {error}"), file=errors)
    except BaseException:
        status = traceback.format_exc(limit=-4)
    finally:
        signal.alarm(0)
    wrong = _wrong(target, refused, status, errors.getvalue())
    return {"cpu": time.process_time() - began, "status": str(status)[-1500:], "wrong": wrong}


def _wrong(target: Target, refused: bool, status: object, errors: str) -> str:
    if not isinstance(status, int):
        return "raised"
    lines = errors.splitlines()
    if "Traceback" in errors:
        return "printed a traceback"
    if any(len(line) > 2_000 for line in lines):
        return f"a line of {max(map(len, lines))} characters"
    if refused and target.strict and status != 2:
        return f"ended with {status}"
    if status not in target.statuses:
        return f"ended with {status}"
    if status == 2 and len([line for line in lines if line.startswith("trace2evolve: ")]) != 1:
        return f"not one line: {errors[:500]!r}"
    return ""


def _cleared(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.chmod(0o755)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run(folder: Path, every: int = 1, only: str = "") -> Iterator[dict[str, Any]]:
    """The damaged files of every target.

    Args:
        folder: An empty folder to work in.
        every: Takes only each so many of a target's damaged forms.
        only: A pattern of the names `target/damage` to run; empty runs all.
    """
    root = folder / "project"
    prepare(root)
    os.chdir(root)
    os.environ.pop("GITHUB_TOKEN", None)
    there = list(targets(root))
    gc.freeze()  # commands that load the project collect garbage: not what was there before
    for number, target in enumerate(there):
        step = max(target.every, every)
        valid = target.path.read_bytes()
        if re.search(only, f"{target.name}/valid"):
            yield {"name": f"{target.name}/valid", **ran(target, refused=False)}
        for place, damage in enumerate(damages(target.kind, valid, target.seeds)):
            name = f"{target.name}/{damage.name}"
            is_taken = place % step == number % step or (damage.name in ALWAYS and target.every == 1)
            if not is_taken or not re.search(only, name):
                continue
            _cleared(target.path)
            damage.write(target.path)
            yield {"name": name, **ran(target, damage.refused)}
        _cleared(target.path)
        target.path.write_bytes(valid)


def _blocked(*_: object) -> None:
    raise TimeoutError(f"blocked for {PATIENCE} s")


def _peak() -> int:
    """The most memory that this process held, in bytes.

    Linux's `VmHWM` counts from `exec`; `ru_maxrss` would include the pytest process that forked this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1]) * 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _blocked)
    resource.setrlimit(resource.RLIMIT_CPU, (1_800, 1_800))
    # A reader that follows an endless file must not take the machine's memory.
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    every = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for found in run(Path(sys.argv[1]), every, sys.argv[3] if len(sys.argv) > 3 else ""):
        print(json.dumps(found), flush=True)
    print(json.dumps({"name": "memory", "peak": _peak()}))
