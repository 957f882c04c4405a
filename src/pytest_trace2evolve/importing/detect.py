"""Finds personal data by the name of a field, by the form of a value, and by the words before a value.

The module `redact` lists the personal data that are not found.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NAME, EMAIL, NUMBER, ADDRESS, BIRTH, SECRET = "name", "email", "number", "address", "birth date", "secret"

PRODUCT = "product"
"""The kind of fields whose numbers are not replaced."""

LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Span:
    """A personal value in a text. A span of an empty kind is protected from later searches."""

    start: int
    end: int
    kind: str


# ---- canonical forms


def alphanumeric(text: str) -> str:
    """Return the letters and digits of a text, in lower case."""
    return re.sub(r"[\W_]", "", text).casefold()


def plain_number(text: str) -> str:
    """Return a number or id without separators; of a long number the last nine digits, as of a telephone."""
    plain = "".join(str(unicodedata.digit(sign, sign)) for sign in alphanumeric(text))
    return plain[-9:] if plain.isdigit() else plain


def plain_email(text: str) -> str:
    """Return an e-mail address in lower case, with "@" for "(at)" and "." for "dot"."""
    text = re.sub(r"\s*[\[({]\s*at\s*[\])}]\s*", "@", text.casefold())
    return re.sub(r"\s*(?:[\[({]\s*dot\s*[\])}]|\bdot\b)\s*", ".", text).strip()


@functools.lru_cache(maxsize=100_000)
def folded(text: str) -> str:
    """Return a name in lower case, without accents."""
    plain = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).casefold()


# ---- fields

_PERSON = (
    r"customer|user|guest|passenger|travell?er|client|contact|recipient|sender|person|member|owner|holder"
    r"|cardholder|buyer|patient|employee|author|driver|subscriber|tenant|student|caller|requester|attendee"
)
_FIELDS = tuple((kind, re.compile(key), re.compile(value, re.DOTALL)) for kind, key, value in (
    (SECRET, (r"^(?!.*\b(?:tokens|count|usage|max)\b).*\b(?:password|passwd|secret|token|api ?key"
        r"|authorization|cvv|cvc|pin|pwd|credential)\b"), r"."),
    (EMAIL, r"\be?mail\b", r"."),
    (BIRTH, r"^(?!.*\b(?:place|country|city)\b).*\b(?:dob|birth|birthday|birthdate)\b", r"\d"),
    (ADDRESS, (r"^(?!.*\b(?:city|country|state|mac|type|web|wallet|ip|id)\b).*\b(?:street|addr|address"
        r"|line ?[12]|house ?number)\b"), r"\d"),
    (NAME, rf"\b(?:names?|surname|forename|nickname|firstname|lastname|fullname|(?:{_PERSON})s?)$",
     r"^(?!.*[\d@_])(?=.{1,80}$)\S+(?:\s+\S+){0,5}$"),
    (NUMBER, (r"\b(?:ids?|number|no|num|nr|ref|reference|code|locator|uuid|guid|key|pnr|ssn|username|login"
        r"|handle|passport|order|booking|reservation|account|ticket|invoice|tracking|iban|pan|card"
        r"|phone|mobile|tel|telephone|cell|fax|zip|postal|postcode|ip|ip address|digits|last ?4|last four)$"
        r"|\bphone\b|^(?:user|customer|order)id$"),
     r"^(?=.*\d|[A-Z]{5,8}$)(?:\S{1,60}|(?!(?:.*[^\W\d_]){4}).{1,60})$"),
))  # fmt: skip
"""Kinds, with patterns of the words of a field's name and of its value; the first match counts."""

_PRODUCT_WORD = re.compile(
    r"\b(?:products?|items?|sku|variants?|flight|model|category|tool|function|call|message|span|trace|plan"
    r"|currency|country|language|room|type|status|version|airport|gate|seat|airline|size|colou?r|brand|hotel"
    r"|menu|dish|question|template|event|run|step)\b"
)
_PRODUCT_SIBLINGS = frozenset(
    ("price", "sku", "product_id", "item_id", "quantity", "variants", "parameters", "unit_price", "function")
)


@functools.lru_cache(maxsize=4096)
def words_of_key(key: str) -> str:
    """Return the words of a field's name in lower case, the same for `customerId` and `customer_id`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", key[:200])
    return " ".join(re.findall(r"[^\W\d_]+|\d+", spaced.casefold()))


def kind_of_field(path: tuple[str, ...], siblings: Mapping[str, Any], text: str) -> str:
    """Return the kind of a field's value by the field's name; `PRODUCT` for ids that stay, empty for no kind.

    Args:
        path: The names of the enclosing fields and of the field, outermost first.
        siblings: The object that holds the field.
    """
    key = words_of_key(path[-1]) if path and len(text) <= 300 else ""
    matches = (kind for kind, names, values in _FIELDS if names.search(key) and values.search(text))
    kind = next(matches, "") if key else ""
    if kind not in (NAME, NUMBER) or re.search(rf"\b(?:{_PERSON}|order|booking|phone)\b", key):
        return kind
    parent = words_of_key(path[-2]) if len(path) > 1 else ""
    is_product = _PRODUCT_WORD.search(f"{parent} {key}") or not _PRODUCT_SIBLINGS.isdisjoint(siblings)
    return kind if not is_product else PRODUCT if kind == NUMBER else ""


# ---- forms

TOKEN = re.compile(r"[^\W_](?:[\w.+-]*[^\W_])?")

REPLACED = re.compile(
    r"(?i)\buser\d+@example\.com\b|\bName\d+\b|\b\d+ Example Street\b|\bsecret\d+\b|\b1900-\d\d-\d\d\b"
)
"""Matches the replacements that differ from real values by their form alone."""

_WORD = r"[^\W\d_]+(?:['’-][^\W\d_]+)*"
_NO_NAME = (
    r"(?!(?i:i|i'm|you|he|she|it|we|they|a|an|the|is|are|was|and|or|but|not|no|yes|on|in|at|to|for|from|with|of"
    r"|my|your|his|her|our|their|this|that|calling|writing|here|there|speaking|please|can|could|would"
    r"|have|has|do|does|did|am|so|if|when|where|why|how|what|who|which|because|as|team|all|everyone|again|sir"
    r"|madam|support|customer|guest|order|booking|account|email|phone|just|thanks|thank|sorry|great|let)\b)"
)
_CAPITALIZED = rf"{_NO_NAME}(?=[A-ZÀ-Þ\u0100-\u024f]){_WORD}"
_PARTICLE = r"(?:de|da|di|du|la|le|van|von|der|den|del|bin|ibn|al|el)"
_MORE = rf"[ ](?:{_PARTICLE}[ ]){{0,2}}{_CAPITALIZED}"
_STREETS = (
    r"(?i:street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|way|place|pl|square|sq"
    r"|terrace|highway|parkway|circle|close|crescent|row|walk|alley|plaza|gardens|grove|hill|quay|park)"
)
_NUMBERED = (
    r"orders?|bookings?|reservations?|customer|accounts?|member(?:ship)?|tickets?|invoices?|case|reference"
    r"|confirmation|tracking|user|client|claim|passport|licen[cs]e|loyalty|pnr|ref|ssn|policy|contract|parcel"
    r"|shipment|transaction|employee|patient|login|username|zip|post ?code|phone|mobile|cell|call(?: me)?"
    r"|ending in"
)

_FORMS = tuple((kind, re.compile(pattern)) for kind, pattern in (
    (EMAIL, (r"(?i)(?<![\w.+%-])[\w+%][\w.+%'-]{0,63}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}\b"
        r"|(?<![\w.+-])[\w.+-]{1,64}\s?[\[({]\s?at\s?[\])}]\s?[\w-]{1,63}"
        r"(?:\s?(?:[\[({]\s?dot\s?[\])}]|\.|\bdot\b)\s?[\w-]{2,63}){1,4}")),
    (SECRET, (r"(?i)\b(?:password|passwd|pwd|api[ _-]?key|cvv|cvc)\b['\"]?(?: is|:|=)\s*['\"]?"
        r"(?P<value>[^\s'\",;]+)")),
    (BIRTH, (r"(?i)\b(?:born(?: on)?|birth ?da(?:y|te)|date of birth|dob)\b(?: is| was|:|,| on)*\s*"
        r"(?P<value>\d{1,4}[-/. ]\d{1,2}[-/. ]\d{1,4}|[A-Z][a-z]{2,8}\.? \d{1,2}(?:st|nd|rd"
        r"|th)?,? \d{4}|\d{1,2}(?:st|nd|rd|th)?\.? (?:of )?[A-Z][a-z]{2,8},? \d{4})")),
    ("", (r"(?<![\w-])(?:19|20)\d\d[-/.](?:0?[1-9]|1[0-2])[-/.](?:3[01]|[12]\d|0?[1-9])"
        r"(?:[T ]\d\d:?\d\d(?::?\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?(?![\d-])"
        r"|(?<![\w-])(?:3[01]|[12]\d|0?[1-9])[-/.](?:3[01]|[12]\d|0?[1-9])[-/.](?:19|20)\d\d(?![\d-])"
        r"|\b(?:19|20)\d\d ?- ?(?:19|20)\d\d\b|\b127\.0\.0\.1\b")),
    (ADDRESS, (r"(?<![\w.,$€£-])\d{1,5}[A-Za-z]?(?:[-/]\d{1,4})?,?\s+(?:[NSEW]{1,2}\.?\s+)?"
        rf"(?:(?:[A-ZÀ-Þ][\w'’.-]{{0,30}}|\d{{1,3}}(?:st|nd|rd|th))\s+){{1,4}}{_STREETS}\b\.?"
        r"(?:,?\s+(?i:apt|apartment|suite|unit|flat|floor|#)\.?\s?#?\w{1,6}\b)?"
        r"|(?<!\w)(?:[A-ZÄÖÜ][\wäöüß.-]{1,40}(?:[ -][A-ZÄÖÜ][\wäöüß.-]{1,30}){0,2}[ -]?)?"
        r"(?:[Ss]tra(?:ß|ss)e|[Ss]tr\.|[Ww]eg|[Gg]asse|[Pp]latz|[Aa]llee|straat|laan|gatan)\s+\d{1,4}[a-z]?\b"
        r"|(?<!\w)(?:\d{1,4},?\s+)?(?i:rue|via|viale|piazza|calle|avenida|rua|corso)(?:\s+(?:d[eiu]|del|la|les))*"
        r"(?:\s+[A-ZÀ-Þ][\w'’.-]{1,40}){1,3}(?:,?\s+\d{1,4}\b)?|\bP\.?\s?O\.?\s?Box\s+\d{1,7}")),
    ("", r"[$€£¥]\s?\d[\d,.]*|(?<![\w.])\d[\d,]*\.\d\d?(?![\w.]|\d)|(?<![\w.])\d{1,3}(?:,\d{3})+(?!\d)"),
    # A number after a word such as "order", not "a reservation for 2".
    (NUMBER, (rf"(?i)\b(?:{_NUMBERED})"
        r"(?:\s{0,2}(?:number|num|no\.|nr\.?|ids?|code|ref|is|was|at|on|me|#|[:=(\-'\"`])){0,4}\s{0,2}['\"`#]?"
        r"(?<![^\W_])(?P<value>\+?\(?\d(?:[ ()./-]{0,2}\d){5,14}|(?=[a-z_-]*\d)[a-z0-9][\w-]{2,40}|[a-z]\d+)"
        r"(?!\w)")),
    (NUMBER, r"(?<!\w)#(?P<value>(?=[A-Za-z-]{0,5}\d)[\w-]{2,20})"),
    (NUMBER, r"\b[A-Z]{2}\d{2}[ -]?[A-Z0-9]{4}(?:[ -]?\d{2,4}){2,7}(?:[ -]?\d{1,3})?\b"),
    (NUMBER, (r"(?i)(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)|(?<![\w:.])(?:[0-9a-f]{1,4}:){2,7}"
        r"(?::?[0-9a-f]{1,4}){0,6}(?![\w:])|(?<![\w-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])")),
    (NUMBER, r"(?<![\w.#/,$€£-])(?:\+\s?)?\(?\d(?:[ ()./-]{0,2}\d){6,18}(?!\w|[-/.,]\d)"),
    (NUMBER, (r"(?<![\w@.-])(?:[A-Za-z]{1,5}[-_]?\d{5,20}|[A-Z]{2,6}[-_/]\d{2,}(?:[-_/]\w{1,12})*"
        r"|(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z0-9]{6,20}|[a-z]{2,20}(?:_[a-z]{2,20}){1,3}_\d{3,10}|[A-Z]\d{3,4})"
        r"(?!\w|-\w)|\b[A-Z]{2}\s\d{5}(?:-\d{4})?\b|\b[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2}\b")),
    (NAME, (r"(?i:\b(?:(?:first|last|full|customer|user|guest|passenger)?names?(?:'s| is| are|:| of)"
        r"|named|me llamo|mi nombre es|je m'appelle|mein name ist|ich hei(?:ß|ss)e|mi chiamo|on behalf of"
        r"|(?:registered|addressed|belongs) to)\s+[\"'“(]?)"
        rf"(?P<value>(?:{_NO_NAME}{_WORD}[ ]?){{1,3}})")),
    (NAME, (r"(?i:\b(?:mr|mrs|ms|dr|prof|herr|frau|monsieur|madame)\b\.?)\s+"
        rf"(?P<value>{_CAPITALIZED}(?:{_MORE}){{0,2}})")),
    (NAME, (r"(?i:\b(?:hello|hi|hey|dear|thanks|thank you|cheers|regards|wishes|sincerely|sorry"
        rf"|welcome(?: back)?|hola|bonjour|ciao|hallo),?\s+)(?P<value>{_CAPITALIZED}(?:{_MORE}){{0,3}})"
        r"(?=[ \t]*(?:[,.!?;:\n]|-\s|$))")),
    (NAME, (r"(?i:\b(?:i am|i'?m|i’m|this is|it is|it's|ich bin|soy|je suis|passenger|customer|guest|client"
        rf"|contact|calling for)[,:]?\s+)(?P<value>{_CAPITALIZED}(?:{_MORE}){{1,3}})")),
))  # fmt: skip
"""Kinds, with patterns of their values, most certain first. An empty kind protects dates and amounts.

The group `value` holds the value if the pattern needs words around it.
"""


def form_spans(text: str) -> Iterator[Span]:
    """Yield the values that a text holds by their form, and the dates and amounts to protect."""
    has_digit = any(map(str.isdigit, text))
    for kind, pattern in _FORMS:
        if not has_digit and kind not in (EMAIL, SECRET, NAME):
            continue
        for match in pattern.finditer(text):
            start, end = match.span(match.lastgroup or 0)
            yield from name_parts(text, start, end) if kind == NAME else (Span(start, end, kind),)


def name_parts(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield the words of a name, without single letters and particles such as "van"."""
    for match in LETTERS.finditer(text, start, end):
        if (len(match[0]) >= 2 or not is_cased(match[0])) and not re.fullmatch(_PARTICLE, match[0]):
            yield Span(*match.span(), NAME)


def is_cased(word: str) -> bool:
    """Whether the script of a word has upper and lower case; such scripts separate words."""
    return word.lower() != word.upper()
