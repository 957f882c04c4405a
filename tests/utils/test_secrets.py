"""What counts as a secret, in which forms it is found, and what is left alone."""

import base64
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.utils.secrets import REMOVED, Secrets, without_secrets

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
    secrets = Secrets.of(None, KEY)
    for clean in (secrets.out_of(echo), secrets.out_of_answer(echo)):
        assert REMOVED in clean
        assert "planted" not in clean


@given(st.text(min_size=16), st.text(), st.text())
def test_no_text_keeps_a_secret(key: str, before: str, after: str) -> None:
    secrets = Secrets([key])
    text = before + key + after
    assert key not in secrets.out_of(text).replace(REMOVED, "\0")
    record = {"a": [text, {"b": json.dumps({"c": text})}]}
    answer = secrets.out_of_answer(json.loads(json.dumps(record)))
    if key.isprintable() and key not in REMOVED and '"' not in key and "\\" not in key:
        assert key not in str(json.loads(answer["a"][1]["b"])["c"]).replace(REMOVED, "\0")


def test_a_letter_hidden_in_an_escape_of_an_escape_is_found() -> None:
    arguments = '{"note": "\\u0073k-planted-0123", "n": [1]}'
    clean = Secrets.of(None, "sk-planted-0123").out_of_answer({"arguments": arguments})
    assert json.loads(clean["arguments"]) == {"note": REMOVED, "n": [1]}


def test_an_answer_without_secrets_stays_as_it_was() -> None:
    record = {"a": ["x\\y", '{"b":  1.0}', None, 2.5], "arguments": '{"q": "\\u00e9"}'}
    assert Secrets.of("http://me:pass-word-1@host", "sk-0123456789").out_of_answer(record) == record


@pytest.mark.parametrize("placeholder", ["none", "EMPTY", "anything", "placeholder"])
def test_a_placeholder_takes_nothing_out_of_an_answer(placeholder: str) -> None:
    told = f"Is there {placeholder} else?"
    assert Secrets.of(None, placeholder).out_of_answer(told) == told


def test_a_url_gives_its_password_its_token_and_its_query() -> None:
    header = base64.b64encode(b"me:p@ss word-1").decode()
    secrets = Secrets.of("https://me:p%40ss%20word-1@host/v1?sig=sig-0123456", None)
    clean = secrets.out_of(f"p@ss word-1 p%40ss%20word-1 Basic {header} sig-0123456 me host")
    assert clean == f"{REMOVED} {REMOVED} Basic {REMOVED} {REMOVED} me host"
    assert Secrets.of("https://ghp-0123456@host", None).out_of("ghp-0123456") == REMOVED


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
    kept = without_secrets(body)
    assert kept["api_key"] == kept["X-Auth-Token"] == REMOVED
    assert kept["headers"] == {"Authorization": REMOVED, "accept": "json"}
    assert kept["servers"] == [{"url": "http://x", "password": REMOVED}]
    assert (kept["max_tokens"], kept["tokenizer"], kept["keywords"]) == (100, "bpe", ["a"])
    echo = "aaaaaaaaaaaaaaaaaaaa token-0123456 bear-0123456 pass-0123456 json bpe"
    expected = f"{REMOVED} {REMOVED} {REMOVED} {REMOVED} json bpe"
    assert Secrets.of(None, None, body).out_of(echo) == expected
    assert ModelSettings("m", extra_body=body).recorded()["extra_body"] == kept
    assert "0123456" not in repr(ModelSettings("m", base_url="http://u:p0123456@h", extra_body=body))


def test_logs_of_the_client_libraries_lose_secrets_until_the_guard_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    # Two models with a key each guard the same loggers.
    ends = [Secrets.of(None, key).guard_logs() for key in ("sk-another-one", KEY)]
    for name in ("httpx2", "httpcore2.http11"):
        logging.getLogger(name).info("header %r", f"Bearer {KEY}"[:50].encode())
        logging.getLogger(name).info("header %s", f"Bearer {KEY}")
        try:
            raise ValueError(KEY)
        except ValueError:
            logging.getLogger(name).exception("trouble")
    assert caplog.text.count(f"Bearer {REMOVED}") == 4
    assert caplog.text.count(f"ValueError: {REMOVED}") == 2
    for end in ends:
        end()
    logging.getLogger("httpx2").info("header %s", KEY)
    assert KEY in caplog.text
