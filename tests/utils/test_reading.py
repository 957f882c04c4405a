"""The reader of user files: what it takes, what it rejects, and in which words."""

import gzip
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import MAX_LINE_LENGTH, ResultsError, SuiteError
from pytest_trace2evolve.utils import reading
from pytest_trace2evolve.utils.reading import parse_json, parse_toml, read_json, read_text, read_toml

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=40)
@given(value=JSON, members=st.integers(1, 3), padding=st.integers(0, 20))
def test_what_is_written_is_read_plain_and_gzipped(
    tmp_path_factory: pytest.TempPathFactory, value: Any, members: int, padding: int
) -> None:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    path = tmp_path_factory.mktemp("json") / "value.json"
    path.write_bytes(text)
    assert read_json(path, ResultsError) == value
    cuts = [len(text) * part // members for part in range(members + 1)]
    parts = [gzip.compress(text[start:end]) for start, end in itertools.pairwise(cuts)]
    path.write_bytes(b"".join(parts) + bytes(padding))
    assert read_json(path, ResultsError) == value


@settings(max_examples=60)
@given(text=st.binary(max_size=200))
def test_any_bytes_are_a_value_or_one_line(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "file"
    path.write_bytes(text)
    for reads in (read_json, read_toml, read_text):
        message = ""
        try:
            reads(path, ResultsError, "remedy")
        except ResultsError as error:
            message = str(error)
        assert "\n" not in message
        assert not message or (message.startswith(f"{path}: ") and message.endswith("; remedy"))


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (Path.mkdir, "a folder, not a regular file"),
        (os.mkfifo, "a FIFO, not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "a device, not a regular file"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
        (lambda path: None, "No such file or directory"),
    ],
)
def test_only_regular_files_are_opened(tmp_path: Path, make: Any, cause: str) -> None:
    make(tmp_path / "f")
    with pytest.raises(ResultsError) as caught:
        read_json(tmp_path / "f", ResultsError, "give a file")
    assert str(caught.value) == f"{tmp_path / 'f'}: cannot be read: {cause}; give a file"


def test_a_file_of_the_limit_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b" " * ((1 << 20) - 1) + b"1")
    assert read_json(path, ResultsError, max_bytes=1 << 20) == 1
    path.write_bytes(b" " * (1 << 20) + b"1")
    with pytest.raises(ResultsError, match=r"f: is larger than 1 MiB$"):
        read_json(path, ResultsError, max_bytes=1 << 20)


def test_a_gzip_bomb_is_stopped_long_before_it_is_expanded(tmp_path: Path) -> None:
    path = tmp_path / "f.json.gz"
    path.write_bytes(gzip.compress(b" " * (20 << 20), 1) * 20)
    with pytest.raises(ResultsError, match=r"expands to more than \d+ MiB; check that it is the right file"):
        read_json(path, ResultsError, max_bytes=reading.MAX_RESULTS_BYTES)


def test_a_gzip_file_of_very_many_members_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "f.json.gz"
    path.write_bytes(gzip.compress(b"1") * 1_001)
    with pytest.raises(ResultsError, match="has more than 1000 gzip members; compress it again as one"):
        read_json(path, ResultsError)


def test_a_large_text_of_tiny_values_is_rejected_before_it_is_parsed() -> None:
    with pytest.raises(ValueError, match="contains too many values for its size"):
        parse_json(b"[" + b"[]," * 6_000_000 + b"0]")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the name 'c' occurs twice in one object; remove one"),
        ('"\\u0000"', "contains the character NUL; remove it"),
        ("\ufeff1", "starts with a byte order mark; save it as UTF-8 without one"),
    ],
)
def test_strict_json_rejects_what_lenient_json_takes_or_not(text: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause.replace(".", r"\.")):
        parse_json(text, require_unique=True, allow_nul=False)


def test_a_name_that_is_given_twice_is_found_in_a_large_object_at_once() -> None:
    # Without an end, if each name were compared with all before it.
    names = ",".join(f'"{number}": 0' for number in range(200_000))
    with pytest.raises(ValueError, match="the name '199999' occurs twice"):
        parse_json(f'{{{names}, "199999": 0}}', require_unique=True)


def test_an_escaped_backslash_before_u0000_is_not_nul() -> None:
    assert parse_json('"\\\\u0000"', allow_nul=False) == "\\u0000"
    assert parse_json('"\\u0000"') == "\0"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a = " + "[" * 10_000, "nested more than 100 levels deep"),
        ("a." * 500 + "a = 1", "nested more than 100 levels deep"),
        ("a." * 500_000 + "a = 1", "nested more than 100 levels deep"),
        ("a = " + "9" * 5_000, "a number has too many digits"),
        ("a = 0x" + "f" * 10_000, "a: a number has more than 64 bits"),
        ('[b]\na = "\\u0000"', "b.a: contains the character NUL; remove it"),
    ],
)
def test_toml_that_no_parser_should_follow_is_rejected(text: str, cause: str) -> None:
    with pytest.raises(ValueError, match="not valid TOML: ") as caught:
        parse_toml(text)
    assert cause in str(caught.value)


def test_toml_of_many_dots_in_a_text_is_read() -> None:
    assert parse_toml(f'a = "{"." * 5_000}"') == {"a": "." * 5_000}


def test_errors_are_short_however_long_path_and_value_are(tmp_path: Path) -> None:
    with pytest.raises(SuiteError) as caught:
        read_toml(tmp_path / ("n" * 5_000), SuiteError, "choose another name")
    assert len(str(caught.value)) <= MAX_LINE_LENGTH
    assert str(caught.value).endswith("cannot be read: File name too long; choose another name")
    assert len(str(SuiteError("x" * 10_000))) <= MAX_LINE_LENGTH


@pytest.mark.parametrize(
    "text",
    ["1e999", "[1, -2.5E+0309]", '{"a":1e309}', '{"a":\n-12.0e308 }', f"{'9' * 400}.0", f"{'1' * 250}e99"],
)
def test_a_number_that_overflows_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a finite number"):
        parse_json(text)


def test_a_number_that_fits_and_an_id_with_the_same_digits_are_read() -> None:
    value = {"number": 1e308, "small": 1e-300, "id": "8e38-1e2995041f53"}
    assert parse_json(json.dumps(value)) == value
