"""The options of `trace2evolve import` and `trace2evolve cases review`."""

from pytest_trace2evolve.cli.parser import (
    Command,
    flag_option,
    integer_option,
    path_option,
    range_check,
    text_option,
)

IMPORT = Command(
    "import",
    "draft tasks from production logs; make suites of ToolSandbox",
    (
        "trace2evolve import chats.jsonl --out drafts/chats.yaml",
        "trace2evolve import ../ToolSandbox --format toolsandbox",
    ),
    "imports:import_log",
    (
        path_option("file", "FILE", "log: JSON, JSON lines or .eval, also with .gz; or a clone"),
        text_option(
            "--format",
            None,
            "the log's format (default: detected from its content)",
            choices=("openai", "otel", "langfuse", "inspect", "toolsandbox"),
        ),
        path_option(
            "--out", "FILE", "file of drafts to create, or - for standard output (default: drafts/NAME.yaml)"
        ),
        integer_option(
            "--until",
            "N",
            "start at the customer's message N, with the messages before it as history (default: 1)",
            range_check(1),
            default=1,
        ),
        flag_option("--skip-damaged", "leave out damaged conversations, and print a line for each"),
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
        path_option("drafts", "DRAFTS", "file of drafts that trace2evolve import wrote"),
        text_option(
            "--accept", "ID", "accept these drafts: ids, or the starts of ids", nargs="+", action="extend"
        ),
        text_option(
            "--reject", "ID", "reject these drafts: ids, or the starts of ids", nargs="+", action="extend"
        ),
        path_option("--into", "FILE", "task file (.yaml or .jsonl) to which accepted drafts are added"),
    ),
)
