"""Finds personal data by the name of a field, by the form of a value, and by the words before a value.

The module `redact` lists the personal data that are not found.
"""

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.importing.names import LETTERS, common_words, folded, word_set

NAME, EMAIL, PHONE, ADDRESS, CARD, IBAN = "name", "email", "phone", "address", "card", "iban"
ID, IP, BIRTH, SECRET, DOMAIN = "id", "ip", "birth date", "secret", "email domain"

PRODUCT = "product"
"""The kind of fields whose ids are not replaced."""


@dataclass(frozen=True)
class Span:
    """A personal value in a text. A span of an empty kind is protected from later searches.

    Attributes:
        label: The name of the value, such as `order` for the id of an order.
    """

    start: int
    end: int
    kind: str
    label: str = ""


# ---- canonical forms


def alphanumeric(text: str) -> str:
    """Return the letters and digits of a text, in lower case."""
    return re.sub(r"[\W_]", "", text).casefold()


def digits_of(text: str) -> str:
    """Return the digits of a text, as ASCII."""
    return "".join(str(unicodedata.digit(letter)) for letter in text if letter.isdigit())


def plain_id(text: str) -> str:
    """Return an id in lower case, without white space, separators and `#`."""
    return re.sub(r"[\s#_./-]", "", text).casefold()


def plain_email(text: str) -> str:
    """Return an e-mail address in lower case, with "@" for "(at)" and "." for "dot"."""
    text = re.sub(r"\s*(?:[\[({]\s*at\s*[\])}]|\bat\b)\s*", "@", text.casefold()) if "@" not in text else text
    return re.sub(r"\s*(?:[\[({]\s*dot\s*[\])}]|\bdot\b)\s*", ".", text.casefold()).strip()


def plain_address(text: str) -> str:
    """Return a street address in lower case, with the usual abbreviations and without punctuation."""
    words = re.findall(r"\w+", text.casefold())
    return " ".join(_STREET_ABBREVIATIONS.get(word, word) for word in words)


_STREET_ABBREVIATIONS = {
    "street": "st", "avenue": "ave", "road": "rd", "boulevard": "blvd", "lane": "ln", "drive": "dr",
    "court": "ct", "place": "pl", "square": "sq", "terrace": "ter", "strasse": "str", "straße": "str",
}  # fmt: skip


def passes_luhn(digits: str) -> bool:
    """Whether the last digit of a card number is its check digit."""
    products = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(product - 9 * (product > 9) for product in products) % 10 == 0


def passes_iban(text: str) -> bool:
    """Whether the check digits of an IBAN are right."""
    plain = re.sub(r"[\s-]", "", text).upper()
    if not (plain.isascii() and plain.isalnum()):
        return False
    return int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


# ---- fields

_NUMBER = r"^(?=(?:\D*\d){{{}}})(?!(?:.*[^\W\d_]){{4}})"
"""Matches a value with some digits and at most three letters, perhaps an extension."""

_FIELDS = tuple((kind, re.compile(key), re.compile(value, re.DOTALL)) for kind, key, value in (
    (SECRET, (r"^(?!.*\b(?:tokens|count|usage|max)\b).*\b(?:password|passwd|secret|token|api ?key"
        r"|authorization|cvv|cvc|pin|pwd|credential)\b"), r"."),
    (DOMAIN, r"\be?mail.*(?:domain|host)\b", r"."),
    (EMAIL, r"\be?mail\b|^e ?mail", r"."),
    (PHONE, r"\b(?:phone|mobile|tel|telephone|cell|cellphone|fax|whatsapp|msisdn)\b", _NUMBER.format(3)),
    (IBAN, r"\biban\b", r"\d"),
    (BIRTH, r"^(?!.*\b(?:place|country|city)\b).*\b(?:dob|birth|birthday|birthdate)\b", r"\d"),
    (CARD, r"^pan$|credit ?card$|\bcard ?(?:number|no|num|last|4|four|digits)\b|\blast ?(?:4|four|digits)\b",
     _NUMBER.format(4)),
    (IP, r"^(?:client|remote)? ?ip(?: ?address)?$|^ipv ?[46]$", r"."),
    (ADDRESS, (r"^(?!.*\b(?:city|country|state|mac|type|web|wallet|id)\b).*\b(?:street|addr|address"
        r"|address ?[12]|zip|zipcode|postal|postcode|line ?[12]|house ?number)\b"), r"\d"),
    (ID, r"\b(?:ssn|pnr|user ?name|login ?name|login|handle|passport|uuid|guid)$|^(?:user|customer|order)id$",
     r"^\S+$"),
))  # fmt: skip
"""Kinds, with patterns of the words of a field's name and of its value; the first match counts."""

_PERSON = word_set(
    "customer user guest passenger passengers traveler traveller travellers travelers client contact "
    "recipient sender person member owner holder cardholder buyer patient employee author driver subscriber "
    "payer payee tenant student lead caller requester assignee applicant beneficiary spouse companion "
    "attendee customers users guests contacts clients members people persons"
)
_PERSON_RECORDS = word_set("account billing shipping profile agent")
_NAMES = re.compile(
    r"^(?:(?:.+ )?(?:first|last|full|given|family|middle|maiden|sur|display|real) ?names?|surname|forename"
    r"|nickname)$|^(?:first|last|full|given|family|middle|maiden|display|real) (?:.+ )?names?$"
)
_PRODUCT_WORDS = word_set(
    "product products item items sku variant variants flight model category tool function call message span "
    "trace policy plan currency country language locale room type status version airport gate seat airline "
    "course size color colour brand hotel menu dish question template event run response request step"
)
_PRODUCT_SIBLINGS = word_set(
    "price sku product_id item_id quantity options variants available parameters arguments unit_price stock "
    "capacity rating stars description"
)
_ID_WORDS = word_set(
    "order booking reservation customer account member membership ticket invoice case reference ref "
    "confirmation tracking user client claim passport licence license loyalty pnr ssn patient employee "
    "subscriber payment transaction shipment contract policyholder vat tax iin national voucher subscription "
    "session device visitor username login handle locator"
)
_ID_ENDS = word_set("id ids number no num nr ref reference code locator uuid guid key pnr ssn")
_WEAK_ID_ENDS = word_set("code number no num nr key ref")


@functools.lru_cache(maxsize=4096)
def words_of_key(key: str) -> tuple[str, ...]:
    """Return the words of a field's name in lower case, the same for `customerId` and `customer_id`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", key[:200])
    return tuple(re.findall(r"[^\W\d_]+|\d+", spaced.casefold()))


def kind_of_field(path: tuple[str, ...], siblings: Mapping[str, Any], text: str) -> str:
    """Return the kind of a field's value by the field's name; `PRODUCT` for ids that stay, empty for no kind.

    Args:
        path: The names of the enclosing fields and of the field, outermost first.
        siblings: The object that holds the field.
    """
    words = words_of_key(path[-1])
    if not words or not text or len(text) > 300:
        return ""
    key, terms, last = " ".join(words), set(words), words[-1]
    for kind, key_pattern, value_pattern in _FIELDS:
        if key_pattern.search(key) and value_pattern.search(text):
            return kind
    parents = set(words_of_key(path[-2])) if len(path) > 1 else set()
    is_product = bool(
        terms & _PRODUCT_WORDS
        or parents & (_PRODUCT_WORDS - {"call", "message", "type", "request", "response", "event"})
        or (siblings.keys() & _PRODUCT_SIBLINGS and not siblings.keys() & {"email", "phone", "address"})
    )
    if _NAMES.search(key):
        return NAME if _may_be_name(text) else ""
    if last == "name" and not terms & (_PRODUCT_WORDS - {"type"}):
        is_plain = key == "name" and not is_product and "function" not in siblings
        is_person = (terms | parents) & (_PERSON | _PERSON_RECORDS)
        return NAME if (is_plain or is_person) and _may_be_name(text) else ""
    if last in _PERSON and _may_be_name(text):
        return NAME
    if last in _ID_ENDS or last in _ID_WORDS:
        if is_product and not terms & _ID_WORDS:
            return PRODUCT
        if last not in _WEAK_ID_ENDS or terms & _ID_WORDS:
            return ID if _may_be_id(text.strip(), has_id_word=bool(terms & _ID_WORDS)) else ""
    return ""


def _may_be_name(text: str) -> bool:
    parts = [part.casefold() for part in LETTERS.findall(text)]
    is_short = 1 <= len(text.split()) <= 6 and len(text) <= 80 and not re.search(r"[\d@_]", text)
    return is_short and not common_words().issuperset(parts)


def _may_be_id(text: str, *, has_id_word: bool) -> bool:
    if len(text) > 100 or len(text.split()) > 3 or "@" in text:
        return False
    return any(map(str.isdigit, text)) or (has_id_word and bool(re.fullmatch(r"[A-Z]{5,8}", text)))


# ---- forms

TOKEN = re.compile(r"[^\W_](?:[\w.+-]*[^\W_])?")

REPLACED = re.compile(
    r"(?i)\buser\d+@example\.com\b|\bName\d+(?:Name\d+)*\b|\b\d{3,} Example Street\b|\bUnit \d+ Example\b"
    r"|\bsecret\d+\b|\b1900-\d\d-\d\d\b"
)
"""Matches the replacements that differ from real values by their form alone."""

_UNIT = r"(?:,?\s+(?i:apt|apartment|suite|ste|unit|flat|floor|fl|#)\.?\s?#?\w{1,6}\b)?"
_STREETS = (
    r"street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|way|place|pl|square|sq|terrace"
    r"|ter|highway|hwy|parkway|pkwy|circle|cir|close|crescent|cres|row|walk|trail|loop|alley|plaza|mews"
    r"|gardens|grove|hill|quay|pike|path|park"
)
_ROMANCE = (
    r"(?i:rue|via|viale|piazza|piazzale|vicolo|borgo|strada|calle|avenida|carrer|camino|rambla|pasaje|ronda"
    r"|rua|paseo|corso|plaza|avenue|boulevard|place|chemin|impasse|quai|cours|ul\.?|ulica|aleja|al\.|plac"
    r"|travessa|largo|praça|alameda|estrada)(?:\s+(?:d[eiu]|del|della|dei|des|la|las|los|le|les|l'|da|do|dos"
    r"|das))*(?:\s+[A-ZÀ-Þ][\w'’.-]{1,40}){1,3}"
)
_STATES = (
    "A[LKZR]|C[AOT]|D[EC]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|PA|RI|S[CD]|T[NX]|UT|V[AT]"
    "|W[AIVY]"
)
_STREET_WORDS = word_set("main high park old new mill church king first second")

_FORMS = tuple((kind, re.compile(pattern)) for kind, pattern in (
    (EMAIL, (r"(?i)(?<![\w.+%-])[\w+%][\w.+%'-]{0,63}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}\b"
        r"|(?<![\w.+-])[\w.+-]{1,64}\s?[\[({]\s?(?:at|@)\s?[\])}]\s?[\w-]{1,63}"
        r"(?:\s?(?:[\[({]\s?dot\s?[\])}]|\.|\bdot\b)\s?[\w-]{2,63}){1,4}"
        r"|(?<![\w.+-])[\w.+-]{1,64}(?: dot [\w+-]{1,64}){0,3} at [\w-]{1,63}(?: dot [\w-]{2,63}){1,4}\b")),
    (IBAN, r"(?i)(?<![^\W_])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3}(?![^\W_]))?"),
    (IBAN, (r"(?i)\bIBAN\W{1,5}(?:is\W{1,3})?"
        r"(?P<value>[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?\d{1,3})?)(?![^\W_])")),
    (IP, (r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)|(?i:(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}"
        r"(?:[0-9a-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:]))")),
    (BIRTH, (r"(?i)\b(?:born(?: on)?|birth ?da(?:y|te)|date of birth|dob)\b(?: is| was|:|,| on)*\s*"
        r"(?P<date_of_birth>\d{1,4}[-/. ]\d{1,2}[-/. ]\d{1,4}|[A-Z][a-z]{2,8}\.? \d{1,2}(?:st|nd|rd"
        r"|th)?,? \d{4}|\d{1,2}(?:st|nd|rd|th)?\.? (?:of )?[A-Z][a-z]{2,8},? \d{4})")),
    ("", (r"(?<![\w-])(?:19|20)\d\d[-/.](?:0?[1-9]|1[0-2])[-/.](?:3[01]|[12]\d|0?[1-9])"
        r"(?:[T ]\d\d:?\d\d(?::?\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?(?![\d-])"
        r"|(?<![\w-])(?:3[01]|[12]\d|0?[1-9])[-/.](?:3[01]|[12]\d|0?[1-9])[-/.](?:19|20)\d\d(?![\d-])")),
    (CARD, r"(?<![\w+-])(?<!\d[ .])\d(?:[ -]?\d){11,18}(?![\w]|[ -]?\d)"),
    (CARD, r"(?i)\bcards?\b[^\d\n]{0,30}?(?<!\d)(?P<value>\d(?:[ -]?\d){11,18})(?!\d)"),
    (CARD, (r"(?i)(?:\b(?:ending (?:in|with)|ends (?:in|with)|last (?:four|4)(?: digits)?(?: are| is"
        r"|:)?)\W{1,3}|(?:\*|x){2,}[- ]?)(?P<card_last_digits>\d{4})\b")),
    (ID, r"(?<![\w-])(?P<ssn>\d{3}-\d{2}-\d{4})(?![\w-])"),
    (ID, r"(?i)(?<![\w-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])"),
    (ADDRESS, (r"(?<![\w.,$€£-])\d{1,5}[A-Za-z]?(?:[-/]\d{1,4})?,?\s+(?:[NSEW]\.?\s+"
        r"|[NS][EW]\s+)?(?:(?:[A-ZÀ-Þ][\w'’.-]{0,30}|\d{1,3}(?:st|nd|rd|th))\s+){1,4}"
        rf"(?i:{_STREETS})\b\.?{_UNIT}")),
    (ADDRESS, (r"(?<!\w)(?:[A-ZÄÖÜ][\wäöüß.-]{1,40}(?:[ -][A-ZÄÖÜ][\wäöüß.-]{1,30}){0,2}[ -]?)?"
        r"(?:[Ss]tra(?:ß|ss)e|[Ss]tr\.|[Ww]eg|[Gg]asse|[Pp]latz|[Aa]llee|[Rr]ing|[Dd]amm|[Uu]fer|straat"
        r"|laan|plein|gracht|kade|gatan|vägen|gade|vej)\s+\d{1,4}\s?[a-zA-Z]?\b"
        rf"|(?<!\w)\d{{1,4}}(?: ?bis| ?ter)?,?\s+{_ROMANCE}"
        rf"|(?<!\w){_ROMANCE},?\s+(?:n[.º°]?\s*)?\d{{1,4}}\b|(?<!\w)P\.?\s?O\.?\s?Box\s+\d{{1,7}}"
        r"|(?i:\b(?:flat|apt\.?|apartment)[ ]?#?\d{1,5}[a-z]?\b)")),
    (ADDRESS, (r"(?i:\b(?:at|to|in|is|address|street)\b[ :,]{1,3}(?:the |my |our )?)(?P<address>"
        r"\d{1,5}[A-Za-z]?,?(?:[ ][A-ZÀ-Þ][\w'’.-]{1,40}){2,4}(?:[ ](?i:apt|unit|flat"
        r"|suite)\.?[ ]\w{1,6})?|(?:[A-ZÀ-Þ][\w'’.-]{1,40}[ ](?:(?:d[aeiou]s?|del|della|la|el|los|von"
        r"|van)[ ])*){1,3}?[A-ZÀ-Þ][\w'’.-]{1,40},?[ ]\d{1,4}[A-Za-z]?\b)")),
    (ADDRESS, (r"(?i)(?<![\w.,$€£-])(?P<address>\d{1,5}[a-z]?\s+(?:[^\W\d_][\w'’.-]{1,30}\s+|\d{1,3}"
        r"(?:st|nd|rd|th)\s+){1,3}(?:street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|court"
        rf"|terrace|crescent|parkway)\b\.?{_UNIT})")),
    (ADDRESS, rf"\b(?:{_STATES}),?\s+(?P<zip>\d{{5}}(?:-\d{{4}})?)\b"),
    (ADDRESS, r"(?<![\w-])(?P<zip>[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2})(?![\w-])"),
    (ADDRESS, (r"(?i)(?:\bzip(?: ?code)?|\bpost(?:al)? ?code|\bpostcode)(?: is|:"
        r"|\s)*\s*(?P<zip>\d{4,5}(?:-\d{4})?|[a-z]\d[a-z] ?\d[a-z]\d|[a-z]{1,2}\d[a-z\d]? ?\d[a-z]{2})\b")),
    (PHONE, (r"(?<![\w.#/-])(?:\+\s?\(?\d{1,3}\)?(?:[ ./-]{0,2}\(?\d{1,5}\)?){2,6}"
        r"|00[1-9]\d{0,2}(?:[ ./-]\d{2,5}){2,5}|(?:1[ .-]?)?\(\d{3}\)[ .-]{0,2}\d{3}[ .-]?\d{4}"
        r"|(?:1[ .-])?\d{3}[ .-]\d{3}[ .-]\d{4}|\(?0\d{1,5}\)?(?:[ ./-]{1,2}\d{2,8}){1,4}|0\d{8,11}"
        r"|\(?\d{2,5}\)?(?:[ .-]\d{2,5}){1,4})(?=\s?(?:x|ext\.?)\s?\d|(?![\w]|[-/.]\d))")),
    (ID, r"(?i)\d{4}(?:\s?ext\.?\s?| x)(?P<extension>\d{1,6})\b"),
    (PHONE, (r"(?i)\b(?:phone|mobile|cell|tel|telephone|call(?: me)?(?: back)?|text me|reach me|fax"
        r"|whatsapp)\b[^\d\n+]{0,30}?(?P<value>\+?\(?\d(?:[ ()./-]{0,2}\d){5,14})(?!\d)")),
    ("", r"[$€£¥]\s?\d[\d,.]*|(?<![\w.])\d[\d,]*\.\d\d?(?![\w.]|\d)|(?<![\w.])\d{1,3}(?:,\d{3})+(?!\d)"),
))  # fmt: skip
"""Kinds, with patterns of their values, most certain first. An empty kind protects dates and amounts.

A group holds the value if the pattern needs words around it; the name of the group labels the value.
"""


def formal_spans(text: str) -> Iterator[Span]:
    """Yield the values whose form leaves little doubt, and the dates and amounts to protect."""
    has_digit = any(map(str.isdigit, text)) or "::" in text
    for kind, pattern in _FORMS:
        if (kind == EMAIL and not ("@" in text or _AT.search(text))) or not (has_digit or kind == EMAIL):
            continue
        for match in pattern.finditer(text):
            label = match.lastgroup or ""
            start, end = match.span(label or 0)
            if kind == IBAN and not label:
                while end > start + 12 and not passes_iban(text[start:end]):
                    end -= 1  # the next words may look like a part of the IBAN
            if _is_valid(kind, label, text[start:end]):
                yield Span(start, end, kind, "" if label in ("value", "address") else label)


_AT = re.compile(r"(?i)[\[({ ]at[\])} ]")
_YEARS = re.compile(r"(?:(?:19|20)\d\d[ .-]?){2}")


def _is_valid(kind: str, label: str, text: str) -> bool:
    """Whether the text that a pattern of `_FORMS` matches is a value of the kind."""
    if label == "address":
        words = {folded(word) for word in LETTERS.findall(text)}
        return not words & (common_words() - _STREET_WORDS)
    if label:
        return True
    if kind == EMAIL:
        return plain_email(text).count("@") == 1
    if kind == IBAN:
        return len(text) > 12
    if kind == IP:
        return _is_ip(text)
    if kind == CARD:
        return passes_luhn(digits_of(text))
    return kind != PHONE or (7 <= len(digits_of(text)) <= 21 and not _YEARS.fullmatch(text))


def _is_ip(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or text == "255.255.255.255")


_NOUNS = (
    r"orders?|bookings?|reservations?|customer|accounts?|member(?:ship)?|tickets?|invoices?|case|reference"
    r"|confirmation|tracking|user|client|claim|passport|licen[cs]e|loyalty|frequent flyer|pnr|ref|ssn"
    r"|social security|policy|contract|parcel|shipment|transaction|employee|patient|login|username"
)
_MARK = r"number|num|no\.|nr\.?|ids?|code|locator|ref|reference|#"
_AFTER_NOUN = re.compile(
    rf"(?i)\b({_NOUNS})((?:[ \t]{{0,2}}(?:{_MARK}|is|was|are|:|=|-|\(|'|\"|`)){{0,5}})[\s:#('\"`]{{0,4}}"
    r"(?<![^\W_])([A-Za-z0-9][\w-]{0,40})((?:(?:,| and| or|&)\s*(?:and\s+)?#?[A-Za-z]{0,4}-?\d[\w-]{1,30})*)"
)
_ID_MARK = re.compile(rf"(?i){_MARK}|:")
_GENERIC_ID = re.compile(
    r"(?<![\w@.-])#?(?:[A-Za-z]{1,5}[-_]?\d{5,20}|[A-Z]{2,6}[-_/]\d{2,}(?:[-_/]\w{1,12})*"
    r"|(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z0-9]{6,20}"
    r"|[a-z]{2,20}(?:_[a-z]{2,20}){1,3}_\d{3,10}|[A-Z]\d{3,4})(?![\w]|-\w)|#[A-Za-z]{0,4}\d{2,20}\b"
)
_DIGIT_RUN = re.compile(r"(?<![\w.,$€£-])\d{7,20}(?![\w]|[.,]\d)")


def labelled_ids(text: str) -> Iterator[Span]:
    """Yield ids that follow words such as "order number", and further ids in a list with them."""
    for match in _AFTER_NOUN.finditer(text):
        id_text = match[3]
        if id_text.isdigit() and len(id_text) < 4 and not (_ID_MARK.search(match[2]) or "#" in match[0]):
            continue  # "a reservation for 2"
        is_code = re.fullmatch(r"[A-Z]{5,8}", id_text) and id_text.casefold() not in common_words()
        if is_code or any(map(str.isdigit, id_text)):
            label = match[1].casefold().removesuffix("s").replace(" ", "_")
            yield Span(*match.span(3), ID, label)
            for next_id in re.finditer(r"[A-Za-z]{0,4}-?\d[\w-]{1,30}", match[4]):
                yield Span(match.start(4) + next_id.start(), match.start(4) + next_id.end(), ID, label)


def loose_spans(text: str) -> Iterator[Span]:
    """Yield tokens that look like ids, and long numbers."""
    for match in _GENERIC_ID.finditer(text):
        yield Span(match.start() + match[0].startswith("#"), match.end(), ID)
    for match in _DIGIT_RUN.finditer(text):
        yield Span(*match.span(), PHONE if 10 <= len(match[0]) <= 12 else ID)


# ---- fields in texts

_PAIR = re.compile(
    r"""(?<![^\W_])["']?([A-Za-z][A-Za-z0-9_ -]{1,40}?)["']?\s{0,3}[:=]\s{0,3}"""
    r"""(?:"([^"\n]{1,200})"|'([^'\n]{1,200})'|([^\s"'{}\[\],;][^"'{}\[\],;\n]{0,120}))"""
)


def pairs_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds and values in a text such as `Name: Ann Lee; phone = 555 1234`."""
    for match in _PAIR.finditer(text) if ":" in text or "=" in text else ():
        value = (match[2] or match[3] or match[4]).strip().rstrip(".!?)")
        kind = kind_of_field((" ".join(match[1].split()[-3:]),), {}, value)
        if kind not in ("", PRODUCT, DOMAIN, IP) and not (
            (kind == BIRTH and len(value) > 20) or (kind == ADDRESS and len(value.split()) > 5)
        ):
            yield kind, value
