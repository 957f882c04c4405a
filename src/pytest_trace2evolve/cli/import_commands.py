"""The options of `trace2evolve import` and `trace2evolve cases review`."""

from pytest_trace2evolve.cli.parser import Command, at_least, flag, path, text, whole

IMPORT = Command(
    "import",
    "draft tasks from production logs, personal data replaced",
    (
        "trace2evolve import chats.jsonl --out drafts/chats.yaml",
        "trace2evolve import spans.json --format otel --limit 50",
    ),
    "imports:import_log",
    (
        path("file", "FILE", "a log: JSON, JSON lines, .gz, an .eval log, or a results folder"),
        text(
            "--format",
            None,
            "the log's format (default: the one its content shows)",
            choices=("openai", "otel", "langfuse", "inspect", "tau2"),
        ),
        path("--out", "FILE", "a new file of drafts (default: drafts/NAME.yaml)"),
        whole("--limit", "N", "stop after so many conversations", at_least(1)),
        whole(
            "--until",
            "N",
            "start at the customer's message N, with the messages before it as history (default: 1)",
            at_least(1),
            default=1,
        ),
        flag("--all-calls", "expect all calls, not only those of tools that seem to change something"),
        path("--patterns", "FILE", "your own patterns (default: redact in [tool.trace2evolve])"),
        flag("--skip-damaged", "leave damaged conversations out, with a line for each"),
    ),
)

REVIEW = Command(
    "review",
    "accept drafts of tasks into a file, or reject them",
    (
        "trace2evolve cases review drafts/chats.yaml --into tasks.yaml",
        "trace2evolve cases review drafts/chats.yaml --accept cancel-1f3a --into tasks.yaml",
    ),
    "imports:review_drafts",
    (
        path("drafts", "DRAFTS", "a file that trace2evolve import wrote"),
        text("--accept", "ID", "accept these drafts: ids, or the starts of ids", nargs="+"),
        text("--reject", "ID", "reject these drafts: ids, or the starts of ids", nargs="+"),
        path("--into", "FILE", "the file of tasks, .yaml or .jsonl, that gets accepted drafts"),
    ),
)
