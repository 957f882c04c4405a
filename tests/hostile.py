"""Texts that try to be more than text on GitHub, and what GitHub would make of a page of Markdown."""

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

HOSTILE = (
    "@octocat and @org/team",
    "![pixel](https://evil.example/p.png) [click](javascript:alert(1))",
    "https://evil.example www.evil.example mail@evil.example",
    "<img src=x onerror=alert(1)><script>x</script><!-- c --><details>",
    "```\n# heading\n```",
    "`` ` ``",
    "`@octocat",
    "@octocat`",
    "````````",
    "\x1b[31mred\x1b[0m \x1b]8;;https://evil.example\x07link\x1b]8;;\x07",
    "a|b|c\n| --- | --- |\n| x | y |",
    "back\\slash\\|pipe\\`tick",
    "line one\n\n## @octocat decides: Promote\n\n- item",
    "\u202eevil\u2066 \u200b@octocat \ufeff",
    "#1 GH-1 owner/repo#1 deadbeefdeadbeefdeadbeefdeadbeefdeadbeef",
    "&lt;b&gt; &#64;octocat &commat;octocat",
    "[x]: https://evil.example\n[x]",
    "$`\\href{https://evil.example}{x}`$ :tada: [^1]",
    "\ud83d half a pair",
    "-->\n<b>",
    "",
    " ",
    "🙂" * 300,
)

_PARSER = MarkdownIt("gfm-like")
_LINKED = re.compile(r"@|https?:|www\.|#\d|GH-\d|[0-9a-f]{40}|<[a-z/!]|:tada:|\[\^")


def page(markdown: str) -> list[Token]:
    """All tokens of a page, those of its lines too."""
    tokens = _PARSER.parse(markdown)
    return [inner for token in tokens for inner in (token, *(token.children or ()))]


def alive(markdown: str) -> list[str]:
    """What of a page is more than words, code and tables of our own."""
    found = []
    for token in page(markdown):
        if token.type in ("html_block", "html_inline", "image", "link_open"):
            found.append(f"{token.type}: {token.content} {dict(token.attrs)}")
        elif token.type == "text" and _LINKED.search(token.content):
            found.append(f"text: {token.content}")
    invisible = re.findall(
        "[\x00-\x09\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]", markdown
    )
    return found + [f"character {ord(item):x}" for item in invisible]


def headings(markdown: str) -> int:
    """How many headings a page has."""
    return sum(token.type == "heading_open" for token in page(markdown))
