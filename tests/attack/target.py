"""A small project whose baseline and candidates have the same true rates, and sessions over it."""

import atexit
import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence
from pytest_trace2evolve.testing import Fault
from tests.attack.coin import Coin, CoinServer
from tests.attack.sessions import Done, Sessions
from tests.hotel import HotelProject
from tests.patience import until

TASKS = (
    "cancel-flexible", "cancel-fixed", "cancel-past", "move-free",
    "move-taken", "book-double", "book-single", "price-stay",
)  # fmt: skip
SUITE = f"""\
provider = "hotel"
domain = "hotel"
trials = 1
max_steps = 40

[splits]
heldout = {json.dumps(TASKS)}
"""
WIDE = """\
[checks.reward]
margin = 0.35
"""
STATUSES = frozenset({0, 1, 2, 3, 4, 5, 6, 10})
"""The documented exit statuses."""

STANDSTILL = 2.0
"""Seconds without a request after which a session waits for nothing but stalled conversations."""

ROUNDS = 12
"""The default number of times that an attack draws again."""

VERDICT = re.compile(r"^(PROMOTE|DISCARD|INCONCLUSIVE): ", re.MULTILINE)


Meanwhile = Callable[[int], None]
"""Called with the id of a session's process while that runs."""


@dataclass(frozen=True)
class Outcome:
    """A session, as its user sees it.

    Attributes:
        rewards: By task; None for what was lost or not run.
        run: The run's folder; None if it left none.
        verdict: `PROMOTE`, `DISCARD`, `INCONCLUSIVE`, or empty without one.
    """

    done: Done
    rewards: dict[str, float | None]
    run: Path | None
    verdict: str

    @property
    def promoted(self) -> bool:
        """Whether continuous integration takes the candidate for promoted."""
        return self.done.status == 0 and self.verdict == "PROMOTE"

    @property
    def failing(self) -> list[str]:
        """The tasks that were measured and failed."""
        return [task for task, reward in self.rewards.items() if reward is not None and reward < 1.0]


class Target:
    """A project of eight sealed tasks, its endpoint, and sessions over it.

    Attributes:
        root: The project's folder.
        coin: Decides all conversations.
        rounds: How often an attack draws again at most.
        ahead: Seconds that the clock of sessions and commands is ahead.
        baseline: The session that measured the baseline.
        texts: What all sessions and commands said.
    """

    def __init__(self, root: Path, server: CoinServer, sessions: Sessions) -> None:
        self.root = root
        self.server = server
        self.coin = server.coin
        self._sessions = sessions
        self.rounds = ROUNDS
        self.ahead = 0.0
        self.texts: list[Done] = []
        shutil.copytree(template(), root, dirs_exist_ok=True)

    @property
    def store(self) -> Path:
        """Where finished simulations are kept."""
        return self.root / ".trace2evolve" / "finished"

    def stored(self) -> dict[Path, dict[str, Any]]:
        """The simulations in the store by file."""
        return {path: json.loads(path.read_bytes()) for path in sorted(self.store.rglob("*.json"))}

    def measure_baseline(self, *arguments: str) -> Outcome:
        """Measure v0 and save it as the baseline."""
        self.baseline = self.session("v0", "--t2e-gate=off", "--t2e-save-baseline=v0", *arguments)
        return self.baseline

    def session(self, candidate: str, *arguments: str, without_model: bool = False) -> Outcome:
        """A pytest session of a candidate, talking to the endpoint or to nobody."""
        return self._session(candidate, arguments, None, without_model)

    def killed(self, candidate: str, *arguments: str, expected: int, by: int = signal.SIGKILL) -> Outcome:
        """A session that is killed when only conversations are left that have shown that they fail.

        Args:
            candidate: Whose session it is.
            arguments: Its options.
            expected: The conversations that it has to make.
            by: The signal.
        """
        before = len(self.stored())
        self.coin.on_failure = Fault.SLOW
        progress, since = (-1, -1), time.monotonic()

        def is_stuck() -> bool:
            nonlocal progress, since
            decided = list(self.coin.decided.values())
            finished = len(self.stored()) - before
            if (now := (len(self.server.requests), finished)) != progress:
                progress, since = now, time.monotonic()
            shown = len(self.coin.shown) >= len(decided) - sum(decided)
            whole = len(decided) >= expected and finished >= sum(decided) and shown
            # A session that makes fewer conversations than `expected` is over when it stands still.
            return whole or (False in decided and time.monotonic() - since > STANDSTILL)

        try:
            return self._session(candidate, arguments, partial(_kill, is_stuck, by))
        finally:
            self.coin.on_failure = None

    def killed_after(self, answers: int, candidate: str, *arguments: str) -> Outcome:
        """A session that is killed after so many answers of the endpoint, if it wants more of them."""
        served, asked = self.server.count.served + answers, len(self.server.requests) + answers

        def wants_more() -> bool:
            return self.server.count.served >= served and len(self.server.requests) > asked

        self.server.release(answers)
        try:
            return self._session(candidate, arguments, partial(_kill, wants_more, signal.SIGKILL))
        finally:
            self.server.release()

    def _session(
        self,
        candidate: str,
        arguments: Sequence[str],
        meanwhile: Meanwhile | None,
        without_model: bool = False,
    ) -> Outcome:
        self.coin.next_session()
        folder = self.root / ".trace2evolve" / "runs"
        before = set(folder.iterdir()) if folder.is_dir() else set()
        model = [] if without_model else ["--t2e-seed=1", "-ot2e_max_reruns=0", *self.server.arguments]
        given = [f"--candidate={candidate}", *model]
        done = self._sessions.run(
            self.root, "pytest", "suites", *given, *arguments, ahead=self.ahead, meanwhile=meanwhile
        )
        self.texts.append(done)
        made = (set(folder.iterdir()) if folder.is_dir() else set()) - before
        run = max(made, key=lambda path: path.stat().st_mtime_ns, default=None)
        found = VERDICT.search(done.text)
        verdict = found[1] if found else ""
        return Outcome(done, rewards(run), run, verdict)

    def command(self, *arguments: str) -> Done:
        """A `trace2evolve` command."""
        done = self._sessions.run(self.root, "trace2evolve", *arguments, ahead=self.ahead)
        self.texts.append(done)
        return done


def rewards(run: Path | None) -> dict[str, float | None]:
    """The recorded reward of each task of a run; None for lost ones and those that did not run."""
    found: dict[str, float | None] = dict.fromkeys(TASKS)
    for path in run.rglob("simulations/*.json") if run else ():
        record = json.loads(path.read_bytes())
        graded = record.get("reward_info")
        found[record["task_id"]] = graded["reward"] if graded else None
    return found


def _kill(is_due: Callable[[], bool], by: int, process: int) -> None:
    until(lambda: ended(process) or is_due())
    if not ended(process):
        os.kill(process, by)


def with_digest(path: Path) -> str:
    """Make an edited evidence file agree with itself, as anybody can; returns the digest of its content."""
    for _ in range(2):
        try:
            return evidence_digest(read_evidence(path))
        except ResultsError as error:
            computed, stated = re.findall(r"\b[0-9a-f]{32}\b", str(error))[-2:]
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(stated, computed), encoding="utf-8")
    raise AssertionError(f"{path} does not agree with itself")


def edit_rewards(path: Path, reward: float) -> None:
    """Give every simulation of an evidence file a reward."""
    text = path.read_text(encoding="utf-8")
    for other in (0.0, 1.0):
        text = text.replace(f'"reward":{other}', f'"reward":{reward}')
    path.write_text(text, encoding="utf-8")


def ended(process: int) -> bool:
    """Whether a process has ended, whether or not it was waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@cache
def template() -> Path:
    """The project as all sequences begin with it, locked."""
    folder = tempfile.mkdtemp(prefix="t2e-attack-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    root = Path(folder) / "project"
    root.mkdir()
    hotel = HotelProject(SimpleNamespace(path=root))  # type: ignore[arg-type]
    hotel.write("suites/hotel.toml", SUITE)
    hotel.write("policies/wide.toml", WIDE)
    for number in range(1, 10):
        hotel.candidate(f"v{number}", f"This is version {number}.", parent="v0")
    hotel.candidate("worse", "This version is worse.", parent="v0")
    hotel.lock()
    return root


@contextmanager
def target(coin: Coin, sessions: Sessions) -> Iterator[Target]:
    """A fresh copy of the project in a temporary folder, with its own endpoint."""
    with tempfile.TemporaryDirectory(prefix="t2e-attack-") as folder, CoinServer(coin) as server:
        yield Target(Path(folder) / "project", server, sessions)
