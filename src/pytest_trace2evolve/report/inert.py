"""Text of models, made harmless: it may hold anything, and a terminal obeys more than it shows."""

import unicodedata

_SHOWN = frozenset("\n\t")
_COMMANDS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of signs that steer instead of being read, or that nobody knows."""


def inert(text: str) -> str:
    """The text with every sign that steers a terminal, or that cannot be seen, written out as an escape.

    New lines and tabs stay; a carriage return before a new line is dropped.
    """
    text = text.replace("\r\n", "\n")
    if text.isascii() and text.isprintable():
        return text
    return "".join(_told(sign) for sign in text)


def inert_line(text: str) -> str:
    """The same on one line."""
    return " ".join(inert(text).split())


def _told(sign: str) -> str:
    if sign in _SHOWN or unicodedata.category(sign) not in _COMMANDS:
        return sign
    code = ord(sign)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
