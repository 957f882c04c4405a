"""Every error that this package raises on purpose, in one tree below `Trace2EvolveError`.

A message is one line that names the value, the cause and the remedy. `TaskFailed` is not part of the tree,
because items raise it to report that the agent failed its task.
"""

import difflib
from collections.abc import Iterable
from typing import Self

LONGEST_LINE = 2_000
"""Characters of the longest line that reports an error."""


def nearest(wrong: str, known: Iterable[str], *, most: int = 0) -> str:
    """The remedy for an unknown name: the known name that it resembles, or all known names.

    If `most` is given and there are more known names, the remedy lists the `most` nearest instead.
    """
    names = sorted(known)
    if 0 < most < len(names):
        return f"nearest are {', '.join(similar(wrong, names, most=most, cutoff=0) or names[:most])}"
    near = similar(wrong, names, most=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names) or 'none'}"


def similar(wrong: str, known: Iterable[str], *, most: int, cutoff: float = 0.4) -> list[str]:
    """Up to `most` known names that resemble a wrong name, best first; none for names over 200 characters."""
    return difflib.get_close_matches(wrong, list(known), n=most, cutoff=cutoff) if len(wrong) <= 200 else []


def name_taken(kind: str, name: str, first: str, second: str) -> "ConfigError":
    """The error for a name, such as that of a `world`, that two owners register."""
    return ConfigError(
        f"{kind} {name!r} is registered twice, by {first} and by {second}; rename one of them or remove it"
    )


def shortened(text: str, most: int = LONGEST_LINE) -> str:
    """The text itself if it has at most `most` characters; otherwise its start and its end."""
    return text if len(text) <= most else f"{text[: most - most // 3 - 3]} … {text[-(most // 3) :]}"


class Trace2EvolveError(Exception):
    """Base of every error of this package. Its text is at most `LONGEST_LINE` characters long."""

    def __str__(self) -> str:
        return shortened(super().__str__())


class ConfigError(Trace2EvolveError):
    """The user's input or configuration is wrong, so the run does not start."""


class CandidateError(ConfigError):
    """A candidate is unknown, or its file is broken."""


class AdapterError(ConfigError):
    """An adapter is unknown, damaged, not promoted, or belongs to a different base model."""


class SuiteError(ConfigError):
    """A suite is unknown, or its file is broken."""


class LockError(ConfigError):
    """A suite or its benchmark differs from `suites.lock`."""


class PolicyError(ConfigError):
    """A gate policy or goal is unknown."""


class CaseError(ConfigError):
    """A synthetic case or its customer script is damaged."""


class GeneratorError(ConfigError):
    """A capability environment is unknown, cannot be made, or breaks its contract."""


class LogError(ConfigError):
    """A log of conversations cannot be read, or a draft made from one cannot be reviewed."""


class CassetteError(ConfigError):
    """A cassette cannot be written, trusted or played back."""


class EndpointError(ConfigError):
    """An endpoint rejects the key, the model or the request, and would reject every further request too."""


class ClusterError(EndpointError):
    """A Ray cluster has no node left that could make a further simulation."""


class ModelFolderError(ConfigError):
    """A folder with a model or an adapter cannot be served."""


class MissingExtraError(ConfigError):
    """An optional package is required but not installed."""


class LedgerError(Trace2EvolveError):
    """An access to a trace cannot be recorded in the ledger, so the trace is not shown."""


class GitHubError(Trace2EvolveError):
    """GitHub rejects a request, or does not answer."""


class ResultsError(Trace2EvolveError):
    """A results file or baseline cannot be read or trusted."""


class WorldError(Trace2EvolveError):
    """A world cannot be opened, or its data contradict a task."""


class TraceError(Trace2EvolveError):
    """A trace is malformed, so it is neither measured nor scored."""


class JudgeError(Trace2EvolveError):
    """The judge of natural-language assertions gave no usable answer."""


class TrainingError(Trace2EvolveError):
    """A training cannot start, cannot continue, or learns nothing."""


class LabelError(Trace2EvolveError):
    """The run of a labeller cannot be trusted, so none of its labels counts."""


class ParticipantError(Trace2EvolveError):
    """An agent or a user, by its own fault, gave no message with which the conversation can continue."""


class AgentCodeError(ParticipantError):
    """An agent's own code raised or returned no message, so the agent failed the simulation.

    Attributes:
        frames: The frames of the traceback, as text; empty if nothing was raised.
    """

    def __init__(self, message: str, frames: str = "") -> None:
        super().__init__(message)
        self.frames = frames


class ContextWindowError(ParticipantError):
    """The conversation no longer fits the model."""


class SandboxError(Trace2EvolveError):
    """Code that a model wrote cannot be run."""


class SourceRefusedError(SandboxError):
    """The source of generated code breaks the rules of the sandbox, so none of it ran."""


class GeneratedCodeError(SandboxError):
    """Generated code raised, or did not return JSON. Its sandbox stays usable."""


class SandboxEndedError(SandboxError):
    """Generated code was stopped while it ran, and its process was ended."""


class StorageError(Trace2EvolveError):
    """Evidence cannot be stored, or stored evidence was changed, so the run ends without a verdict."""

    @classmethod
    def of(cls, error: OSError, place: object) -> Self:
        """The error for a failed write, naming the place, the cause and the remedy."""
        why = error.strerror or str(error)
        return cls(f"{place}: cannot be written ({why}); make room or allow writing, then run the same again")


class BudgetError(Trace2EvolveError):
    """The run's budget is spent, or the run was stopped, so unfinished simulations are not made."""


class InfrastructureError(Trace2EvolveError):
    """A simulation was lost to the machine or the network, not to the agent."""


class RequestRefusedError(InfrastructureError):
    """An endpoint rejects one request for its content, but accepts others."""


class TaskFailed(AssertionError):  # noqa: N818 - an outcome, not a fault of the program
    """The agent failed its task. Only the call phase of an item raises this."""
