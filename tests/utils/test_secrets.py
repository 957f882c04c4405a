"""What counts as a secret, in which forms it is found, and what is left alone."""

import base64
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.utils.secrets import REMOVAL_MARK, Secrets, remove_secret_fields

KEY = 'sk-planted/01"é+9'


@pytest.mark.parametrize(
    "echo",
    [
        KEY,
        f"Authorization: Bearer {KEY}.",
        json.dumps({"error": KEY}),
        json.dumps({"error": KEY}, ensure_ascii=False),
        "https://host/?key=sk-planted%2F01%22%C3%A9%2B9",
    ],
)
def test_a_key_is_found_in_whatever_form_it_travels(echo: str) -> None:
    secrets = Secrets.of_endpoint(None, KEY)
    for clean in (secrets.remove_from(echo), secrets.remove_from_answer(echo)):
        assert REMOVAL_MARK in clean
        assert "planted" not in clean


@given(st.text(min_size=16), st.text(), st.text())
def test_no_text_keeps_a_secret(key: str, before: str, after: str) -> None:
    secrets = Secrets([key])
    text = before + key + after
    assert key not in secrets.remove_from(text).replace(REMOVAL_MARK, "\0")
    record = {"a": [text, {"b": json.dumps({"c": text})}]}
    answer = secrets.remove_from_answer(json.loads(json.dumps(record)))
    if key.isprintable() and key not in REMOVAL_MARK and '"' not in key and "\\" not in key:
        assert key not in str(json.loads(answer["a"][1]["b"])["c"]).replace(REMOVAL_MARK, "\0")


def test_a_letter_hidden_in_an_escape_of_an_escape_is_found() -> None:
    arguments = '{"note": "\\u0073k-planted-0123", "n": [1]}'
    clean = Secrets.of_endpoint(None, "sk-planted-0123").remove_from_answer({"arguments": arguments})
    assert json.loads(clean["arguments"]) == {"note": REMOVAL_MARK, "n": [1]}


def test_an_answer_without_secrets_stays_as_it_was() -> None:
    record = {"a": ["x\\y", '{"b":  1.0}', None, 2.5], "arguments": '{"q": "\\u00e9"}'}
    assert (
        Secrets.of_endpoint("http://me:pass-word-1@host", "sk-0123456789").remove_from_answer(record)
        == record
    )


@pytest.mark.parametrize("placeholder", ["none", "EMPTY", "anything", "placeholder"])
def test_a_placeholder_takes_nothing_out_of_an_answer(placeholder: str) -> None:
    message = f"Is there {placeholder} else?"
    assert Secrets.of_endpoint(None, placeholder).remove_from_answer(message) == message


def test_a_url_gives_its_password_its_token_and_its_query() -> None:
    header = base64.b64encode(b"me:p@ss word-1").decode()
    secrets = Secrets.of_endpoint("https://me:p%40ss%20word-1@host/v1?sig=sig-0123456", None)
    clean = secrets.remove_from(f"p@ss word-1 p%40ss%20word-1 Basic {header} sig-0123456 me host")
    assert clean == f"{REMOVAL_MARK} {REMOVAL_MARK} Basic {REMOVAL_MARK} {REMOVAL_MARK} me host"
    assert Secrets.of_endpoint("https://ghp-0123456@host", None).remove_from("ghp-0123456") == REMOVAL_MARK


def test_fields_are_secret_by_their_names() -> None:
    body = {
        "api_key": "a" * 20,
        "X-Auth-Token": "token-0123456",
        "headers": {"Authorization": "Bearer bear-0123456", "accept": "json"},
        "servers": [{"url": "http://x", "password": ["pass-0123456"]}],
        "max_tokens": 100,
        "tokenizer": "bpe",
        "keywords": ["a"],
    }
    kept = remove_secret_fields(body)
    assert kept["api_key"] == kept["X-Auth-Token"] == REMOVAL_MARK
    assert kept["headers"] == {"Authorization": REMOVAL_MARK, "accept": "json"}
    assert kept["servers"] == [{"url": "http://x", "password": REMOVAL_MARK}]
    assert (kept["max_tokens"], kept["tokenizer"], kept["keywords"]) == (100, "bpe", ["a"])
    echo = "aaaaaaaaaaaaaaaaaaaa token-0123456 bear-0123456 pass-0123456 json bpe"
    expected = f"{REMOVAL_MARK} {REMOVAL_MARK} {REMOVAL_MARK} {REMOVAL_MARK} json bpe"
    assert Secrets.of_endpoint(None, None, body).remove_from(echo) == expected
    assert ModelSettings("m", extra_body=body).to_record()["extra_body"] == kept
    assert "0123456" not in repr(ModelSettings("m", base_url="http://u:p0123456@h", extra_body=body))


def test_logs_of_the_client_library_lose_secrets_until_the_guard_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    # Two models with a key each guard the same loggers.
    ends = [Secrets.of_endpoint(None, key).filter_logs() for key in ("sk-another-one", KEY)]
    logger = logging.getLogger("aiohttp.client")
    logger.info("header %r", f"Bearer {KEY}"[:50].encode())
    logger.info("header %s", f"Bearer {KEY}")
    try:
        raise ValueError(KEY)
    except ValueError:
        logger.exception("trouble")
    assert caplog.text.count(f"Bearer {REMOVAL_MARK}") == 2
    assert caplog.text.count(f"ValueError: {REMOVAL_MARK}") == 1
    for end in ends:
        end()
    logger.info("header %s", KEY)
    assert KEY in caplog.text
