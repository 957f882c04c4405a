"""Foreign texts in rich's markup."""

from rich import markup

from pytest_trace2evolve._sanitize import sanitize_line


def escape(text: str) -> str:
    """A foreign text as markup that shows it in one line: it sets no style, and forges no line of its own."""
    return markup.escape(sanitize_line(text))
