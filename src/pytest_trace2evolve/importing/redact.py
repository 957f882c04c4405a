"""Replaces personal data in conversations: the same value gets the same replacement within one import.

Values are found in three ways: by the name of a field (`email`, `customer_id`), by their form (an IBAN, a
card number with a valid check digit), and by the words before them ("my name is", "order number"). A name, an
id or the first part of an e-mail address that was found once is then replaced everywhere in its conversation:
names as a whole in any case, and their parts where they begin with a capital.

Limits: no pattern finds everything. A name is missed if neither a field nor the words before it give it away,
and a part of a name in lower case. Also missed are numbers spelled in words, texts inside images, base64 and
other encodings than JSON escapes, URL encoding and HTML entities, and values that are split at an arbitrary
place. Cities, countries, dates (except dates of birth), prices and product ids stay. Drafts are therefore
reviewed by a person.
"""

import functools
import html
import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from pytest_trace2evolve.importing import detect
from pytest_trace2evolve.importing.conversation import inner_json
from pytest_trace2evolve.importing.detect import EMAIL, NAME, NUMBER, Span, folded, is_cased, plain_number
from pytest_trace2evolve.importing.patterns import Patterns


@dataclass
class Scope:
    """The values found in one conversation, by their canonical form.

    Attributes:
        names: Parts of names, and whether each is replaced in lower case too.
        values: Numbers and first parts of e-mail addresses, with their kinds.
        phrases: Whole names, addresses, dates of birth and secrets, with their kinds.
        kept: Numbers of products and similar things, which stay.
    """

    names: dict[str, bool] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    phrases: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)


class Redactor:
    """Replaces personal data in all conversations of one import.

    Call `learn` for every conversation before `redact` for the first, so that no replacement equals a value
    that a conversation holds.

    Attributes:
        counts: The number of different values replaced, by kind.
    """

    def __init__(self, patterns: Patterns | None = None) -> None:
        self.patterns = patterns or Patterns()
        self._kept_words = {word.casefold() for word in self.patterns.keep}
        self.counts: Counter[str] = Counter()
        self._issued: set[str] = set()
        self._numbers_by_key: dict[tuple[str, str], int] = {}
        self._last_numbers: Counter[str] = Counter()
        self._originals: set[str] = set()
        self._mailboxes: dict[str, str] = {}

    def learn(self, value: Any) -> Scope:
        """Find the personal values of one conversation, a JSON value."""
        scope = Scope()

        def learn_text(kind: str, text: str) -> str:
            if kind == detect.PRODUCT:
                scope.kept.add(plain_number(text))
            elif kind:
                self._remember(kind, text, scope)
            for form in dict.fromkeys((text, _decoded(text))):
                spans = self._find(form, scope)
                names = [span for span in spans if span.kind == NAME]
                for first, last in itertools.pairwise(names):
                    if form[first.end : last.start] == " ":
                        self._remember(NAME, form[first.start : last.end], scope)
                for span in spans:
                    self._remember(span.kind, form[span.start : span.end], scope)
            return text

        _changed(value, learn_text)
        return scope

    def _remember(self, kind: str, text: str, scope: Scope) -> None:
        """Remember a value, so that it is replaced wherever it occurs in the conversation."""
        text = text.strip()
        if not text or self._stays(text) or detect.REPLACED.fullmatch(text):
            return
        self._originals.add(detect.alphanumeric(text))
        if kind == NAME:
            parts = [text[span.start : span.end] for span in detect.name_parts(text, 0, len(text))]
            if len(parts) > 1 or not is_cased(text):
                scope.phrases.setdefault(text, NAME)
            for part in filter(is_cased, parts):
                key = folded(part)
                self._originals.add(key)
                if not self._stays(part):
                    scope.names[key] = scope.names.get(key, False) or part[0].islower()
        elif kind == EMAIL:
            whole = detect.plain_email(text)
            local = whole.partition("@")[0]
            if len(local) > 2 and not local.isalpha():
                scope.values.setdefault(local, EMAIL)
                self._originals.add(detect.alphanumeric(local))
                self._mailboxes.setdefault(local, whole)
        elif kind == NUMBER or kind in self.patterns.patterns:
            plain = plain_number(text)
            if len(plain) >= 4 or (len(plain) >= 2 and not plain.isdigit()):
                scope.values.setdefault(plain, kind)
        elif len(text) >= 4:
            scope.phrases.setdefault(text, kind)

    def _stays(self, text: str) -> bool:
        return text.casefold() in self._kept_words

    def redact(self, value: Any, scope: Scope) -> Any:
        """Return a JSON value, which `learn` has seen, with personal data replaced, also inside of texts."""
        return _changed(value, functools.partial(self._redact_text, scope))

    def redact_fields(self, fields: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
        """Return arguments by name with personal data replaced in the values; the names of arguments stay."""
        change = functools.partial(self._redact_text, scope)
        return {name: _changed(item, change, (name,), fields) for name, item in fields.items()}

    def _redact_text(self, scope: Scope, kind: str, text: str) -> str:
        stripped = text.strip()
        if kind and kind != detect.PRODUCT and self._is_whole(kind, stripped, scope):
            return text.replace(stripped, self._replacement(kind, stripped))
        decoded = _decoded(text)
        if decoded != text and self._plain(decoded, scope) != decoded:
            text = decoded
        return self._plain(text, scope)

    def _is_whole(self, kind: str, text: str, scope: Scope) -> bool:
        """Whether the whole text of a field is replaced, not only the values found in it."""
        if not text or self._stays(text) or detect.REPLACED.fullmatch(text):
            return False
        is_mailbox = kind == EMAIL and text.casefold() in scope.values
        return is_mailbox or kind not in (NAME, EMAIL)

    def _plain(self, text: str, scope: Scope) -> str:
        pieces: list[str] = []
        position = 0
        for span in self._find(text, scope, is_known=True):
            new = self._replacement(span.kind, text[span.start : span.end])
            if new[-1:].isdigit() and text[span.end : span.end + 1].isdigit():
                new += "_"
            pieces += [text[position : span.start], new]
            position = span.end
        return "".join([*pieces, text[position:]])

    def _find(self, text: str, scope: Scope, *, is_known: bool = False) -> list[Span]:
        """The personal values in a text, in order and without overlaps."""
        taken = bytearray(len(text))
        spans: list[Span] = []
        for span in self._possible_spans(text, scope, is_known=is_known):
            size = span.end - span.start
            if size > 0 and not any(taken[span.start : span.end]):
                taken[span.start : span.end] = b"\1" * size
                if span.kind and not self._stays(text[span.start : span.end]):
                    spans.append(span)
        return sorted(spans, key=lambda span: span.start)

    def _possible_spans(self, text: str, scope: Scope, *, is_known: bool) -> Iterator[Span]:
        """Yield possible spans, the most certain first; values of `scope` only if they are known already."""
        phrases = sorted(scope.phrases.items(), key=lambda item: -len(item[0])) if is_known else []
        for pattern, kind in (
            *((_phrase_pattern(phrase), "") for phrase in self.patterns.keep),
            (detect.REPLACED, ""),
            *((pattern, kind) for kind, pattern in self.patterns.patterns.items()),
            *((_phrase_pattern(phrase), kind) for phrase, kind in phrases),
        ):
            for match in pattern.finditer(text):
                if kind == NAME:
                    yield from detect.name_parts(text, *match.span())
                else:
                    yield Span(*match.span(), kind)
        spans = [*detect.form_spans(text)]
        if is_known and scope.values:
            for match in detect.TOKEN.finditer(text):
                known = scope.values.get(plain_number(match[0])) or scope.values.get(match[0].casefold())
                spans += [Span(*match.span(), known)] if known else []
        for span in spans:
            is_kept = span.kind == NUMBER and plain_number(text[span.start : span.end]) in scope.kept
            yield replace(span, kind="" if is_kept else span.kind)
        for match in detect.LETTERS.finditer(text) if is_known and scope.names else ():
            key = folded(match[0])
            if key in scope.names and (scope.names[key] or not match[0][0].islower()):
                yield Span(*match.span(), NAME)

    def _replacement(self, kind: str, text: str) -> str:
        """The replacement of a value, in the same case and layout as the text."""
        if text in self._issued:
            return text
        if kind == NAME:
            new = self._number(NAME, folded(text), lambda number: f"Name{number}")
            new = new.lower() if text.islower() else new.upper() if text.isupper() else new
        elif kind == EMAIL:
            whole = detect.plain_email(text)
            new = self._number(EMAIL, self._mailboxes.get(whole, whole), lambda number: f"user{number}")
            new += "@example.com" if "@" in whole else ""
        elif kind == detect.ADDRESS:
            new = self._number(
                kind, detect.alphanumeric(text), lambda number: f"{100 + number} Example Street"
            )
        elif kind == detect.BIRTH:
            new = self._number(kind, text, lambda number: f"{date(1900, 1, 1) + timedelta(number - 1)}")
        elif kind == detect.SECRET:
            new = self._number(kind, text, lambda number: f"secret{number}")
        else:
            new = self._number(kind, plain_number(text), lambda number: _numbered(text, number))
        self._issued.add(new)
        return new

    def _number(self, kind: str, key: str, make: Callable[[int], str]) -> str:
        """Make the replacement of a value from the number of its canonical form `key`.

        Values of one form are numbered from 1, without the numbers that would make a value of the log.
        """
        if (kind, key) not in self._numbers_by_key:
            form = f"{kind} {re.sub('[0-9]', '0', key) if kind not in _KINDS else ''}"
            number = self._last_numbers[form] + 1
            while detect.alphanumeric(make(number)) in self._originals:
                number += 1
            self._last_numbers[form] = self._numbers_by_key[kind, key] = number
            self.counts[kind] += 1
        return make(self._numbers_by_key[kind, key])


_KINDS = (NAME, EMAIL, detect.ADDRESS, detect.BIRTH, detect.SECRET)
"""Kinds whose replacements have one form; those of all others have the form of the value."""


def _numbered(text: str, number: int) -> str:
    """Replace the digits of a text by 9 and a number, and all of a text with more than four letters."""
    places = [place for place, sign in enumerate(text) if sign.isdigit()]
    if not places or sum(map(str.isalpha, text)) > 4:
        return f"{'#' * text.startswith('#')}X9{number:0{max(2, min(len(text), 12) - 2)}}"
    digits = f"9{number:0{max(len(places) - 1, 1)}}"
    signs = list(text)
    signs[places[0]] = digits[: len(digits) - len(places) + 1]
    for place, digit in zip(places[1:], digits[len(digits) - len(places) + 1 :], strict=True):
        signs[place] = digit
    return "".join(signs)


def _changed(
    value: Any,
    change: Callable[[str, str], str],
    path: tuple[str, ...] = (),
    siblings: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Return a JSON value after `change` of its texts, numbers and keys, also in JSON that a text holds.

    Args:
        change: Gets the kind of the field, empty if its name shows none, and the text.
        path: The names of the fields that enclose the value.
        siblings: The object that holds the value.
    """
    if isinstance(value, dict):
        return {change("", key): _changed(item, change, (*path, key), value) for key, item in value.items()}
    if isinstance(value, list):
        return [_changed(item, change, path, siblings) for item in value]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    text = str(value)
    inner = inner_json(text) if isinstance(value, str) else None
    if inner is not None:
        clean = _changed(inner, change)
        indent = 2 if "\n" in text.strip() else None
        return value if clean == inner else json.dumps(clean, ensure_ascii=False, indent=indent)
    new = change(detect.kind_of_field(path, siblings, text), text)
    return value if new == text else int(new) if isinstance(value, int) and new.isdigit() else new


_ESCAPE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\/")


def _decoded(text: str) -> str:
    """Return a text without JSON escapes, URL encoding and HTML entities."""

    def decode(match: re.Match[str]) -> str:
        return str(json.loads(f'"{match[0]}"')).encode("utf-8", "surrogatepass").decode("utf-8", "replace")

    return html.unescape(unquote(_ESCAPE.sub(decode, text)))


@functools.lru_cache(maxsize=10_000)
def _phrase_pattern(phrase: str) -> re.Pattern[str]:
    """Return a pattern that matches a phrase in any case and spacing."""
    pattern = r"\s+".join(map(re.escape, unicodedata.normalize("NFC", phrase).split()))
    if is_cased(phrase) or any(map(str.isdigit, phrase)):
        pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
    return re.compile(pattern, re.IGNORECASE)
