"""What `trace2evolve init` prints: the files, what the user should know, and what to run next."""

from pathlib import Path

from pytest_trace2evolve.project.scaffold import Layout, State


def layout_text(layout: Layout, command: str, *, dry_run: bool) -> str:
    """The layout as plain text, its last line the command to run next.

    Args:
        layout: What was, or would be, laid out.
        command: That command.
        dry_run: Whether nothing was written.
    """
    return "\n".join(
        [
            *_files(layout, dry_run=dry_run),
            *(f"note: {note}" for note in layout.notes),
            f"next: {command}",
        ]
    )


def _files(layout: Layout, *, dry_run: bool) -> list[str]:
    told = [one for one in layout.files if one.state is not State.THERE]
    if not told:
        return [f"{_shown(layout.root)}: everything is there already"]
    states = {one.path: _state(one.state, dry_run=dry_run) for one in told}
    width = max(map(len, states.values()))
    lines = [
        f"{states[one.path]:<{width}} {one.path}{f' ({one.detail})' if one.detail else ''}" for one in told
    ]
    there = len(layout.files) - len(told)
    return [*lines, *([f"{there} more files are there already"] if there > 1 else [])]


def _state(state: State, *, dry_run: bool) -> str:
    would = dry_run and state is not State.LEFT
    return f"would be {state}" if would else str(state)


def _shown(folder: Path) -> str:
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) and folder != here else str(folder)
