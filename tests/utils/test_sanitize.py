"""Laws of the sanitiser, and of what a session prints of hostile names."""

import io
import re
import unicodedata
from typing import TextIO, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import MAX_LINE_LENGTH
from pytest_trace2evolve.utils.sanitize import SanitizedStream, sanitize, sanitize_file, sanitize_line

COLOUR = r"\x1b\[[0-79;]*m"

HOSTILE = st.one_of(
    st.text(),
    st.text(st.sampled_from("\x00\x07\x1b[]\x9b\x85\r\n\t \u202e\u2066\u200b\u2028\ufeff\ud800\xa0:#8m;0ax")),
    st.lists(
        st.sampled_from(["::", "##[", ":", "#", "[", "error", "::error::x", " ", "\n", "\r", "\x1b[31m"])
    ).map("".join),
)


def forbidden(text: str) -> list[str]:
    """What no output may hold."""
    found = [
        item
        for item in text
        if item not in "\n\t" and unicodedata.category(item) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    ]
    return found + re.findall(r"(?m)^\s*::|##\[", text)


def written(parts: list[str], *, terminal: bool = False) -> str:
    target = io.StringIO(newline="")
    stream = SanitizedStream(cast(TextIO, target), is_terminal=terminal)
    stream.writelines(parts)
    return target.getvalue()


@given(parts=st.lists(HOSTILE))
@example(parts=["  ", ":", ":error::x"])
@example(parts=["#", "#", "[error]x"])
@example(parts=["\u2003::error::x", "\n\t::set-output"])
def test_no_stream_holds_what_steers_however_it_is_cut(parts: list[str]) -> None:
    assert forbidden(written(parts)) == []


@given(text=HOSTILE, quote=st.sampled_from(['"', ">", "&#10;", ""]))
@example(text="::::error::x", quote='"')
@example(text="0:::error0", quote='"')
def test_no_file_holds_a_command_to_a_runner(text: str, quote: str) -> None:
    once = sanitize_file(quote + text)
    assert forbidden(once) == []
    assert sanitize_file(once) == once
    assert not re.search(r"(?<!\w)::error\b", once)
    assert not re.match(r"\s*::", once.removeprefix(quote))


def test_a_node_id_stays_as_it_is() -> None:
    assert (
        sanitize_file("a suites/x.toml::heldout::error t.py::group")
        == "a suites/x.toml::heldout::error t.py::group"
    )


@given(text=HOSTILE)
def test_what_is_sanitised_stays_as_it_is(text: str) -> None:
    once = sanitize(text)
    assert sanitize(once) == once
    assert written([written([text])]) == written([text])
    line = sanitize_line(text, MAX_LINE_LENGTH)
    assert len(line) <= MAX_LINE_LENGTH
    assert "\n" not in line


@pytest.mark.parametrize("text", ["collected 3 items", "::error::x"])
def test_a_coloured_line_may_be_written_again_on_a_terminal(text: str) -> None:
    """As pytest does, in bold, while it collects."""
    bold = "\x1b[1m\r{}\x1b[0m"
    assert written([bold.format(text)], terminal=True) == bold.format(text.replace("::", "\\x3a:", 1))


@given(parts=st.lists(HOSTILE))
def test_on_a_terminal_only_colours_and_a_return_at_the_start_of_a_write_pass(parts: list[str]) -> None:
    text = written(parts, terminal=True)
    plain = re.sub(COLOUR, "", text)
    returns = plain.count("\r")
    assert returns <= sum(re.sub(COLOUR, "", part).startswith("\r") for part in parts)
    assert forbidden(plain.replace("\r", "\n")) == []


@given(
    text=st.text(st.characters(min_codepoint=32, max_codepoint=126)).filter(lambda text: not forbidden(text))
)
def test_plain_text_is_written_as_it_is(text: str) -> None:
    assert written([text]).replace("\\x3a", ":") == text
