"""All errors that this package raises on purpose, in one tree below `Trace2EvolveError`.

A message is one line that names the value, the cause and the remedy. `TaskFailed` is not part of the tree,
because items raise it to report that the agent failed its task.
"""

import difflib
from collections.abc import Iterable
from typing import Self

MAX_LINE_LENGTH = 2_000
"""Maximum number of characters in the text of an error."""


def name_suggestion(unknown_name: str, known_names: Iterable[str], *, max_names: int = 0) -> str:
    """Return a remedy for an unknown name: the known name that it resembles, or all known names.

    If more than `max_names` names are known, the remedy lists the most similar ones; 0 means no limit.
    """
    names = sorted(known_names)
    if 0 < max_names < len(names):
        suggestions = similar_names(unknown_name, names, max_names=max_names, cutoff=0) or names[:max_names]
        return f"nearest are {', '.join(suggestions)}"
    similar = similar_names(unknown_name, names, max_names=1)
    return f"did you mean {similar[0]!r}?" if similar else f"known are {', '.join(names) or 'none'}"


def similar_names(
    unknown_name: str, known_names: Iterable[str], *, max_names: int, cutoff: float = 0.4
) -> list[str]:
    """Return up to `max_names` similar known names, best first; none if the name has over 200 characters."""
    if len(unknown_name) > 200:
        return []
    return difflib.get_close_matches(unknown_name, list(known_names), n=max_names, cutoff=cutoff)


def duplicate_name_error(kind: str, name: str, first_owner: str, second_owner: str) -> "ConfigError":
    """Return the error for a name that two owners register; `kind` is, for example, `world`."""
    return ConfigError(
        f"{kind} {name!r} is registered twice, by {first_owner} and by {second_owner}; "
        "rename one of them or remove it"
    )


def shorten(text: str, max_length: int = MAX_LINE_LENGTH) -> str:
    """Return a text unchanged, or only its start and end if it is longer than `max_length` characters."""
    if len(text) <= max_length:
        return text
    return f"{text[: max_length - max_length // 3 - 3]} … {text[-(max_length // 3) :]}"


class Trace2EvolveError(Exception):
    """Base of every error of this package. Its text is at most `MAX_LINE_LENGTH` characters long."""

    def __str__(self) -> str:
        return shorten(super().__str__())


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
    """No further simulation can succeed.

    An endpoint rejects the key, the model or the request, or the code of the agent changed during the run.
    """


class ClusterError(EndpointError):
    """A Ray cluster has no node left that can make simulations."""


class ModelFolderError(ConfigError):
    """A folder with a model or an adapter cannot be served."""


class MissingExtraError(ConfigError):
    """An optional package is required but not installed."""


class LedgerError(Trace2EvolveError):
    """An access to a trace cannot be recorded in the ledger, so the trace is not shown."""


class GitHubError(Trace2EvolveError):
    """GitHub or git rejects a request or does not answer, or `gh` is not installed."""


class ResultsError(Trace2EvolveError):
    """A results file or baseline cannot be read or trusted."""


class WorldError(Trace2EvolveError):
    """A world cannot be opened, or its data contradict a task."""


class TraceError(Trace2EvolveError):
    """A trace is malformed, so it is neither measured nor scored."""


class JudgeError(Trace2EvolveError):
    """The judge of natural-language assertions did not give a usable answer."""


class TrainingError(Trace2EvolveError):
    """Training cannot start, cannot continue, or learns nothing."""


class ProposalError(Trace2EvolveError):
    """A proposal of an improvement was rejected, or crashed when it was run."""

    def __init__(self, message: str, *, is_crash: bool = False) -> None:
        super().__init__(message)
        self.is_crash = is_crash


class LabelError(Trace2EvolveError):
    """The output of a labeller cannot be trusted, so none of its labels counts."""


class ParticipantError(Trace2EvolveError):
    """An agent or a user did not return a message with which the conversation can continue."""


class AgentCodeError(ParticipantError):
    """An agent's own code raised an exception or returned no message, so the agent failed the simulation.

    Attributes:
        cause: The beginning of the message, in words of this package or as the type of an exception. It
            quotes nothing from a trace, so it may be shown for sealed splits.
        frames: The frames of the traceback, as text; empty if no exception was raised.

    Args:
        detail: The rest of the message, which may quote a trace.
    """

    def __init__(self, cause: str, detail: str = "", *, frames: str = "") -> None:
        super().__init__(cause + detail)
        self.cause = cause
        self.frames = frames


class ContextWindowError(ParticipantError):
    """The conversation no longer fits the model's context window."""


class SandboxError(Trace2EvolveError):
    """Code that a model wrote cannot be run."""


class SourceRefusedError(SandboxError):
    """The source of generated code breaks the rules of the sandbox, so none of it ran."""


class GeneratedCodeError(SandboxError):
    """Generated code raised an exception, or did not return JSON. Its sandbox stays usable."""


class SandboxEndedError(SandboxError):
    """Generated code was stopped while it ran, and its process was ended."""


class StorageError(Trace2EvolveError):
    """Evidence cannot be stored, or stored evidence was changed, so the run ends without a verdict."""

    @classmethod
    def from_os_error(cls, error: OSError, path: object) -> Self:
        """Return the error for a failed write, which names the path, the cause and the remedy."""
        reason = error.strerror or str(error)
        return cls(
            f"{path}: cannot be written ({reason}); make room or allow writing, then run the same command "
            "again"
        )


class BudgetError(Trace2EvolveError):
    """The run's budget is spent or the run was stopped, so the remaining simulations are not made."""


class InfrastructureError(Trace2EvolveError):
    """A simulation was lost to the machine or the network, not to the agent."""


class RequestRefusedError(InfrastructureError):
    """An endpoint rejects one request because of its content, but accepts others."""


class TaskFailed(AssertionError):  # noqa: N818 - an outcome, not a fault of the program
    """The agent failed its task. Only the call phase of an item raises this."""
