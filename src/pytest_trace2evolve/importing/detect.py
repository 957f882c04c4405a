"""Finds personal data by the name of a field, by the form of a value, and by the words before a value.

The module `redact` lists the personal data that are not found.
"""

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
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


def has_letters(text: str) -> bool:
    return bool(re.search(r"[^\W\d_]", text))


def plain_id(text: str) -> str:
    """Return an id in lower case, without white space, separators and `#`."""
    return re.sub(r"[\s#_./-]", "", text).casefold()


def national(text: str) -> tuple[str, str]:
    """Return the prefix (calling code or trunk 0) and the national part of a telephone number, as digits."""
    digits = digits_of(text)
    if text.lstrip(" (").startswith("+") or digits.startswith("00"):
        zeros = 0 if text.lstrip(" (").startswith("+") else 2
        code = zeros + _code_length(digits[zeros:])
        code += digits[code : code + 1] == "0" and len(digits) - code > 9  # +44 (0)20 …
        return digits[:code], digits[code:]
    if len(digits) == 11 and digits.startswith("1"):
        return "1", digits[1:]
    if digits.startswith("0") and len(digits) >= 9:
        return "0", digits[1:]
    return "", digits


def _code_length(digits: str) -> int:
    if digits[:1] in ("1", "7"):
        return 1
    return 2 if digits[:2] in _TWO_DIGIT_CODES else 3


_TWO_DIGIT_CODES = word_set(
    "20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 "
    "66 81 82 84 86 90 91 92 93 94 95 98"
)


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
    "court": "ct", "place": "pl", "square": "sq", "terrace": "ter", "highway": "hwy",
    "parkway": "pkwy", "circle": "cir",
    "north": "n", "south": "s", "east": "e", "west": "w", "strasse": "str", "straße": "str",
}  # fmt: skip


def passes_luhn(digits: str) -> bool:
    """Whether the last digit of a card number is its check digit."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        product = int(digit) * (1 + place % 2)
        total += product - 9 * (product > 9)
    return total % 10 == 0


def passes_iban(text: str) -> bool:
    """Whether the check digits of an IBAN are right."""
    plain = re.sub(r"[\s-]", "", text).upper()
    check_text = plain[4:] + plain[:4]
    return (
        plain.isascii()
        and plain.isalnum()
        and int("".join(str(int(sign, 36)) for sign in check_text)) % 97 == 1
    )


# ---- fields

_PERSON = word_set(
    "customer user guest passenger passengers traveler traveller travellers travelers client contact "
    "recipient sender person member owner holder cardholder buyer patient employee author driver "
    "subscriber payer payee tenant student lead caller requester assignee applicant beneficiary "
    "spouse companion attendee profile customers users guests contacts clients members people persons "
    "agent account billing shipping"
)
_PERSON_RECORDS = word_set("account billing shipping profile agent")
_NAMES = word_set(
    "firstname lastname fullname surname forename givenname familyname middlename maidenname nickname "
    "displayname realname"
)
_NAME_PARTS = frozenset(
    ("first", "last", "full", "given", "family", "middle", "maiden", "sur", "display", "real")
)
_PRODUCT_WORDS = word_set(
    "product products item items sku variant variants flight model category tool function call "
    "message span trace policy plan currency country language locale room type status version airport "
    "gate seat airline course size color colour brand hotel menu dish question template event run "
    "response request step"
)
_PRODUCT_SIBLINGS = word_set(
    "price sku product_id item_id quantity options variants available parameters arguments unit_price "
    "stock capacity rating stars description"
)
_ID_WORDS = word_set(
    "order booking reservation customer account member membership ticket invoice case reference ref "
    "confirmation tracking user client claim passport licence license loyalty pnr ssn patient "
    "employee subscriber payment transaction shipment contract policyholder vat tax iin national "
    "voucher subscription session device visitor username login handle locator"
)
_ID_ENDS = word_set("id ids number no num nr ref reference code locator uuid guid key pnr ssn")
_WEAK_ID_ENDS = word_set("code number no num nr key ref")
_ALWAYS_IDS = word_set("ssn pnr username login handle passport uuid guid userid customerid orderid")
_PLURALS = word_set(
    "orders bookings reservations customers users accounts members tickets invoices cases clients "
    "payments payment_methods passengers guests subscriptions claims"
)
_ADDRESS_WORDS = word_set("street addr address address1 address2 zip zipcode postal postcode")
_SECRETS = word_set("password passwd secret token apikey authorization cvv cvc pin pwd credential")


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
    if not words or len(text) > 300:
        return ""
    joined, terms, last_word = "".join(words), set(words), words[-1]
    if terms & _SECRETS and "tokens" not in terms and text and not terms & {"count", "usage", "max"}:
        return SECRET
    if terms & {"email", "mail"} or joined.startswith("email"):
        return DOMAIN if "domain" in terms or "host" in terms else EMAIL
    if terms & {"phone", "mobile", "tel", "telephone", "cell", "cellphone", "fax", "whatsapp", "msisdn"}:
        return PHONE if len(digits_of(text)) >= 3 and _is_number(text) else ""
    if "iban" in terms:
        return IBAN if digits_of(text) else ""
    if terms & {"dob", "birth", "birthday", "birthdate"} and not terms & {"place", "country", "city"}:
        return BIRTH if digits_of(text) else ""
    if joined in ("pan", "cardnumber", "creditcard", "cardno") or (
        "card" in terms and terms & {"number", "no", "num", "last", "last4", "4", "four", "digits"}
    ):
        return CARD if len(digits_of(text)) >= 4 and _is_number(text) else ""
    if joined in ("last4", "lastfour", "lastdigits", "lastfourdigits"):
        return CARD if len(digits_of(text)) == 4 else ""
    if joined in ("ip", "ipaddress", "clientip", "remoteip", "ipv4", "ipv6"):
        return IP
    if terms & _ADDRESS_WORDS or joined in ("line1", "line2", "housenumber"):
        if terms & {"city", "country", "state", "mac", "type", "id", "web", "wallet"}:
            return ID if "id" in terms else ""
        return ADDRESS if digits_of(text) else ""
    return _kind_of_name_or_id(path, siblings, text, words, joined, last_word)


def _is_number(text: str) -> bool:
    """Whether a text has few enough letters to be a number, perhaps with an extension."""
    return sum(map(str.isalpha, text)) <= 3


def _kind_of_name_or_id(
    path: tuple[str, ...],
    siblings: Mapping[str, Any],
    text: str,
    words: tuple[str, ...],
    joined: str,
    last_word: str,
) -> str:
    terms = set(words)
    parent_words = set(words_of_key(path[-2])) if len(path) > 1 else set()
    is_product = bool(
        terms & _PRODUCT_WORDS
        or parent_words & (_PRODUCT_WORDS - {"call", "message", "type", "request", "response", "event"})
        or (siblings.keys() & _PRODUCT_SIBLINGS and not siblings.keys() & {"email", "phone", "address"})
    )
    is_person = bool(terms & _PERSON or parent_words & _PERSON)
    if joined in _NAMES or (last_word in ("name", "names") and terms & _NAME_PARTS):
        return NAME if _may_be_name(text) else ""
    if last_word == "name" and not terms & (_PRODUCT_WORDS - {"type"}):
        is_plain_name = joined == "name" and not is_product and "function" not in siblings
        return (
            NAME
            if (is_plain_name or is_person) and _may_be_name(text) and "username" not in joined
            else (ID if joined in ("username", "loginname") else "")
        )
    if last_word in _PERSON and last_word not in _PERSON_RECORDS and _may_be_name(text):
        return NAME
    if joined in _ALWAYS_IDS or last_word in ("username", "login"):
        return ID if text and " " not in text else ""
    if last_word in _ID_ENDS or (terms & _ID_WORDS and last_word in _ID_WORDS):
        if is_product and not terms & _ID_WORDS:
            return PRODUCT
        if last_word in _WEAK_ID_ENDS and not terms & (_ID_WORDS - {"policy"}):
            return ""
        return ID if _may_be_id(text, has_id_word=bool(terms & _ID_WORDS)) else ""
    return ""


def is_product_key(key: str) -> bool:
    """Whether the name of a field says that it holds products, whose ids stay."""
    return bool(set(words_of_key(key)) & _PRODUCT_WORDS)


def kind_of_key(path: tuple[str, ...], key: str) -> str:
    """Return `ID` if the name of a field is itself an id, as in `{"orders": {"W123": …}}`; else empty."""
    if not path or path[-1].casefold() not in _PLURALS or not any(map(str.isdigit, key)):
        return ""
    return ID if " " not in key and "@" not in key else ""


def _may_be_name(text: str) -> bool:
    words = text.split()
    if not 1 <= len(words) <= 6 or len(text) > 80 or any(map(str.isdigit, text)) or "@" in text:
        return False
    parts = [part.casefold() for part in LETTERS.findall(text)]
    return bool(parts) and not all(part in common_words() for part in parts) and "_" not in text


def _may_be_id(text: str, *, has_id_word: bool) -> bool:
    text = text.strip()
    if not 1 <= len(text) <= 100 or len(text.split()) > 3 or "@" in text:
        return False
    return any(map(str.isdigit, text)) or (has_id_word and bool(re.fullmatch(r"[A-Z]{5,8}", text)))


# ---- forms

TOKEN = re.compile(r"[^\W_](?:[\w.+-]*[^\W_])?")

REPLACED = re.compile(
    r"(?i)\buser\d+@example\.com\b|\bName\d+(?:Name\d+)*\b|\b\d{3,} Example Street\b|\bUnit \d+ Example\b"
    r"|\bsecret\d+\b|\b1900-\d\d-\d\d\b"
)
"""Matches the replacements that differ from real values by their form alone."""

_EMAIL = re.compile(
    r"(?i)(?<![\w.+%-])[\w+%][\w.+%'-]{0,63}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}\b"
    r"|(?<![\w.+-])[\w.+-]{1,64}\s?[\[({]\s?(?:at|@)\s?[\])}]\s?[\w-]{1,63}"
    r"(?:\s?(?:[\[({]\s?dot\s?[\])}]|\.|\bdot\b)\s?[\w-]{2,63}){1,4}"
    r"|(?<![\w.+-])[\w.+-]{1,64}(?: dot [\w+-]{1,64}){0,3} at [\w-]{1,63}(?: dot [\w-]{2,63}){1,4}\b"
)
_IBAN = re.compile(r"(?i)(?<![^\W_])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3}(?![^\W_]))?")
_AFTER_IBAN = re.compile(
    r"(?i)\bIBAN\W{1,5}(?:is\W{1,3})?([A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?\d{1,3})?)(?![^\W_])"
)
_IPV4 = re.compile(
    r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w]|\.\d)"
)
_IPV6 = re.compile(
    r"(?i)(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}(?:[0-9a-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])"
)
_LOCAL_IPS = frozenset(("127.0.0.1", "0.0.0.0", "255.255.255.255", "::1", "::"))
_BIRTH = re.compile(
    r"(?i)\b(?:born(?: on)?|birth ?da(?:y|te)|date of birth|dob)\b(?: is| was|:|,| on)*\s*"
    r"((?:\d{1,4}[-/. ]\d{1,2}[-/. ]\d{1,4})|(?:[A-Z][a-z]{2,8}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4})"
    r"|(?:\d{1,2}(?:st|nd|rd|th)?\.? (?:of )?[A-Z][a-z]{2,8},? \d{4}))"
)
_DATE = re.compile(
    r"(?<![\w-])(?:19|20)\d\d[-/.](?:0?[1-9]|1[0-2])[-/.](?:3[01]|[12]\d|0?[1-9])"
    r"(?:[T ]\d\d:?\d\d(?::?\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?(?![\d-])"
    r"|(?<![\w-])(?:3[01]|[12]\d|0?[1-9])[-/.](?:3[01]|[12]\d|0?[1-9])[-/.](?:19|20)\d\d(?![\d-])"
)
_AMOUNT = re.compile(
    r"[$€£¥]\s?\d[\d,.]*|(?<![\w.])\d[\d,]*\.\d\d?(?![\w.]|\d)|(?<![\w.])\d{1,3}(?:,\d{3})+(?!\d)"
)
_CARD = re.compile(r"(?<![\w+-])(?<!\d[ .])\d(?:[ -]?\d){11,18}(?![\w]|[ -]?\d)")
_AFTER_CARD = re.compile(r"(?i)\bcards?\b[^\d\n]{0,30}?(?<!\d)(\d(?:[ -]?\d){11,18})(?!\d)")
_LAST_DIGITS = re.compile(
    r"(?i)\b(?:ending (?:in|with)|ends (?:in|with)|last (?:four|4)(?: digits)?(?: are| is"
    r"|:)?)\W{1,3}(\d{4})\b|(?:\*|x){2,}[- ]?(\d{4})\b"
)
_SSN = re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])")
_UUID = re.compile(r"(?i)(?<![\w-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])")
_PHONE = re.compile(
    r"(?<![\w.#/-])(?:"
    r"\+\s?\(?\d{1,3}\)?(?:[ ./-]{0,2}\(?\d{1,5}\)?){2,6}"
    r"|00[1-9]\d{0,2}(?:[ ./-]\d{2,5}){2,5}"
    r"|(?:1[ .-]?)?\(\d{3}\)[ .-]{0,2}\d{3}[ .-]?\d{4}"
    r"|(?:1[ .-])?\d{3}([ .-])\d{3}\1\d{4}"
    r"|\(?0\d{1,5}\)?(?:[ ./-]{1,2}\d{2,8}){1,4}"
    r"|\d{2}(?:[ .]\d{2}){4}"
    r"|0\d{8,11}"
    r"|\(?\d{2,5}\)?(?:[ .-]\d{2,5}){1,4}"
    r")(?=\s?(?:x|ext\.?)\s?\d|(?![\w]|[-/.]\d))"
)
_EXTENSION = re.compile(r"\s?(?:x|ext\.?)\s?(\d{1,6})")
_YEARS = re.compile(r"(?:(?:19|20)\d\d[ .-]?){2}")
_AFTER_PHONE = re.compile(
    r"(?i)\b(?:phone|mobile|cell|tel|telephone|call(?: me)?(?: back)?|text me|reach me|fax"
    r"|whatsapp)\b[^\d\n+]{0,30}?"
    r"(\+?\(?\d(?:[ ()./-]{0,2}\d){5,14})(?![\d])"
)
_STREETS = (
    "street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|way|place|pl|square|sq|terrace|ter|highway|hwy|"
    "parkway|pkwy|circle|cir|close|crescent|cres|row|walk|trail|loop|alley|plaza|mews|gardens|grove|hill|quay|pike|path|park"
)
_UNIT = r"(?:,?\s+(?i:apt|apartment|suite|ste|unit|flat|floor|fl|#)\.?\s?#?\w{1,6}\b)?"
_STREET = re.compile(
    r"(?<![\w.,$€£-])\d{1,5}[A-Za-z]?(?:[-/]\d{1,4})?,?\s+(?:[NSEW]\.?\s+|[NS][EW]\s+)?"
    rf"(?:(?:[A-ZÀ-Þ][\w'’.-]{{0,30}}|\d{{1,3}}(?:st|nd|rd|th))\s+){{1,4}}(?i:{_STREETS})\b\.?{_UNIT}"
)
_LOWER_STREET = re.compile(
    r"(?i)(?<![\w.,$€£-])\d{1,5}[a-z]?\s+((?:[^\W\d_][\w'’.-]{1,30}\s+|\d{1,3}(?:st|nd|rd|th)\s+){1,3})"
    rf"(?:street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|court|terrace|crescent"
    rf"|parkway)\b\.?{_UNIT}"
)
_AFTER_PLACE = re.compile(
    r"(?i:\b(?:at|to|in|is|address|street)\b[ :,]{1,3}(?:the |my |our )?)"
    r"(\d{1,5}[A-Za-z]?,?(?:[ ][A-ZÀ-Þ][\w'’.-]{1,40}){2,4}(?:[ ](?i:apt|unit|flat|suite)\.?[ ]\w{1,6})?"
    r"|(?:[A-ZÀ-Þ][\w'’.-]{1,40}[ ](?:(?:d[aeiou]s?|del|della|la|el|los|von|van)[ ])*){1,3}?"
    r"[A-ZÀ-Þ][\w'’.-]{1,40},?[ ]\d{1,4}[A-Za-z]?\b)"
)
_FLAT = re.compile(r"(?i)\b(?:flat|apt\.?|apartment)[ ]?#?\d{1,5}[a-z]?\b")
_STREET_FIRST = re.compile(
    r"(?<!\w)(?:[A-ZÄÖÜ][\wäöüß.-]{1,40}(?:[ -][A-ZÄÖÜ][\wäöüß.-]{1,30}){0,2}[ -]?)?"
    r"(?:[Ss]tra(?:ß|ss)e|[Ss]tr\.|[Ww]eg|[Gg]asse|[Pp]latz|[Aa]llee|[Rr]ing|[Dd]amm|[Uu]fer|straat"
    r"|laan|plein|gracht|kade|gatan|vägen|gade|vej)"
    r"\s+\d{1,4}\s?[a-zA-Z]?\b"
    r"|(?<!\w)\d{1,4}(?: ?bis| ?ter)?,?\s+"
    r"(?i:rue|via|viale|piazza|piazzale|vicolo|borgo|strada|calle|avenida|carrer|camino|rambla|pasaje|ronda|rua|paseo|corso|plaza"
    r"|avenue|boulevard|place|chemin|impasse|quai|cours|ul\.?|ulica|aleja|al\.|plac|travessa|largo|praça|alameda|estrada)"
    r"(?:\s+(?:d[eiu]|del|della|dei|des|la|las|los|le|les|l'|da|do|dos|das))*"
    r"(?:\s+[A-ZÀ-Þ][\w'’.-]{1,40}){1,3}"
    r"|(?<!\w)"
    r"(?i:rue|via|viale|piazza|piazzale|vicolo|borgo|strada|calle|avenida|carrer|camino|rambla|pasaje|ronda|rua|paseo|corso|plaza"
    r"|avenue|boulevard|place|chemin|impasse|quai|cours|ul\.?|ulica|aleja|al\.|plac|travessa|largo|praça|alameda|estrada)"
    r"(?:\s+(?:d[eiu]|del|della|dei|des|la|las|los|le|les|l'|da|do|dos|das))*"
    r"(?:\s+[A-ZÀ-Þ][\w'’.-]{1,40}){1,3},?\s+(?:n[.º°]?\s*)?\d{1,4}\b"
    r"|(?<!\w)P\.?\s?O\.?\s?Box\s+\d{1,7}"
)
_ZIP = re.compile(
    r"\b(?:AL|AK|AZ|AR|CA|CO|CT|DE|FL|GA|HI|IA|ID|IL|IN|KS|KY|LA|MA|MD|ME|MI|MN|MO|MS|MT|NC|ND|NE"
    r"|NH|NJ|NM|NV|NY|OH|OK|OR|PA|RI|SC|SD|TN|TX|UT|VA|VT|WA|WI|WV|WY|DC)"
    r",?\s+(\d{5}(?:-\d{4})?)\b"
    r"|(?<![\w-])([A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2})(?![\w-])"
    r"|(?i:\bzip(?: ?code)?|\bpost(?:al)? ?code|\bpostcode)(?: is|:|\s)*\s*(\d{4,5}(?:-\d{4})?"
    r"|[A-Za-z]\d[A-Za-z] ?\d[A-Za-z]\d|[A-Za-z]{1,2}\d[A-Za-z\d]? ?\d[A-Za-z]{2})\b"
)


def formal_spans(text: str) -> Iterator[Span]:
    """Yield the values whose form leaves little doubt, and the dates and amounts to protect."""
    if "@" in text or _AT.search(text):
        for match in _EMAIL.finditer(text):
            if "@" in match[0] or plain_email(match[0]).count("@") == 1:
                yield Span(*match.span(), EMAIL)
    if not any(map(str.isdigit, text)) and "::" not in text:
        return
    for match in _IBAN.finditer(text):
        end = match.end()
        while end > match.start() + 12 and not passes_iban(text[match.start() : end]):
            end -= 1  # the next words may look like a part of the IBAN
        if end > match.start() + 12:
            yield Span(match.start(), end, IBAN)
    for match in _AFTER_IBAN.finditer(text):
        yield Span(*match.span(1), IBAN)
    for pattern in (_IPV4, _IPV6):
        for match in pattern.finditer(text):
            if _is_ip(match[0]):
                yield Span(*match.span(), IP)
    for match in _BIRTH.finditer(text):
        yield Span(*match.span(1), BIRTH, "date_of_birth")
    for match in _DATE.finditer(text):
        yield Span(*match.span(), "")
    for match in _CARD.finditer(text):
        if passes_luhn(digits_of(match[0])):
            yield Span(*match.span(), CARD)
    for match in _AFTER_CARD.finditer(text):
        yield Span(*match.span(1), CARD)
    for match in _LAST_DIGITS.finditer(text):
        yield Span(*match.span(match.lastindex or 0), CARD, "card_last_digits")
    for match in _SSN.finditer(text):
        yield Span(*match.span(), ID, "ssn")
    for match in _UUID.finditer(text):
        yield Span(*match.span(), ID)
    for pattern in (_STREET, _STREET_FIRST, _FLAT):
        for match in pattern.finditer(text):
            yield Span(*match.span(), ADDRESS)
    for match in _AFTER_PLACE.finditer(text):
        if not {folded(word) for word in LETTERS.findall(match[1])} & common_words():
            yield Span(*match.span(1), ADDRESS)
    for match in _LOWER_STREET.finditer(text):
        if not common_words() - {
            "main",
            "high",
            "park",
            "old",
            "new",
            "mill",
            "church",
            "king",
            "first",
            "second",
        } & set(match[1].casefold().split()):
            yield Span(*match.span(), ADDRESS)
    for match in _ZIP.finditer(text):
        yield Span(*match.span(match.lastindex or 0), ADDRESS, "zip")
    for match in _PHONE.finditer(text):
        if 7 <= len(digits_of(match[0])) <= 21 and not _YEARS.fullmatch(match[0]):
            yield Span(match.start(), match.end(), PHONE)
            if extension := _EXTENSION.match(text, match.end()):
                yield Span(*extension.span(1), ID, "extension")
    for match in _AFTER_PHONE.finditer(text):
        yield Span(*match.span(1), PHONE)
    for match in _AMOUNT.finditer(text):
        yield Span(*match.span(), "")


_AT = re.compile(r"(?i)[\[({ ]at[\])} ]")


def _is_ip(text: str) -> bool:
    try:
        return str(ipaddress.ip_address(text)) not in _LOCAL_IPS
    except ValueError:
        return False


_NOUNS = (
    r"orders?|bookings?|reservations?|customer|accounts?|member(?:ship)?|tickets?|invoices?|case"
    r"|reference|confirmation|tracking|user"
    r"|client|claim|passport|licen[cs]e|loyalty|frequent flyer|pnr|ref|ssn|social security|policy"
    r"|contract|parcel|shipment|transaction|employee|patient|login|username"
)
_MARK = r"number|num|no\.|nr\.?|ids?|code|locator|ref|reference|#"
_AFTER_NOUN = re.compile(
    rf"(?i)\b({_NOUNS})((?:[ \t]{{0,2}}(?:{_MARK}|is|was|are|:|=|-|\(|'|\"|`)){{0,5}})[\s:#('\"`]{{0,4}}"
    r"(?<![^\W_])([A-Za-z0-9][\w-]{0,40})"
)
_ID_MARK = re.compile(rf"(?i){_MARK}|:")
_LISTED_ID = re.compile(r"(?:,| and| or|&)\s*(?:and\s+)?#?([A-Za-z]{0,4}-?\d[\w-]{1,30})")
_GENERIC_ID = re.compile(
    r"(?<![\w@.-])#?(?:[A-Za-z]{1,5}[-_]?\d{5,20}|[A-Z]{2,6}[-_/]\d{2,}(?:[-_/]\w{1,12})*"
    r"|(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z0-9]{6,20}"
    r"|[a-z]{2,20}(?:_[a-z]{2,20}){1,3}_\d{3,10}|[A-Z]\d{3,4})(?![\w]|-\w)|#[A-Za-z]{0,4}\d{2,20}\b"
)
ID_LIKE = re.compile(r"#?[\w-]{1,60}")
_DIGIT_RUN = re.compile(r"(?<![\w.,$€£-])\d{7,20}(?![\w]|[.,]\d)")


def labelled_ids(text: str, kept: Collection[str]) -> Iterator[Span]:
    """Yield ids that follow words such as "order number", except the ids in `kept`."""
    if not any(map(str.isdigit, text)) and not _STRONG_CODE.search(text):
        return
    for match in _AFTER_NOUN.finditer(text):
        id_text = match[3]
        if id_text.isdigit() and len(id_text) < 4 and not (_ID_MARK.search(match[2]) or "#" in match[0]):
            continue  # "a reservation for 2"
        is_code = (
            re.fullmatch(r"[A-Z]{5,8}", id_text) is not None and id_text.casefold() not in common_words()
        )
        if (any(map(str.isdigit, id_text)) or is_code) and plain_id(id_text) not in kept:
            label = re.sub(r"s$", "", match[1].casefold()).replace(" ", "_")
            yield Span(*match.span(3), ID, label)
            position = match.end()
            while next_id := _LISTED_ID.match(text, position):
                yield Span(*next_id.span(1), ID, label)
                position = next_id.end()


def loose_spans(text: str, kept: Collection[str]) -> Iterator[Span]:
    """Yield tokens that look like ids, and long numbers, except the ids in `kept`."""
    if not any(map(str.isdigit, text)):
        return
    for match in _GENERIC_ID.finditer(text):
        if plain_id(match[0]) not in kept:
            yield Span(match.start() + match[0].startswith("#"), match.end(), ID)
    for match in _DIGIT_RUN.finditer(text):
        if match[0] not in kept:
            yield Span(*match.span(), PHONE if 10 <= len(match[0]) <= 12 else ID)


_STRONG_CODE = re.compile(rf"(?i:{_NOUNS})[^\n]{{0,30}}?\b[A-Z]{{5,8}}\b")


# ---- fields in texts

_PAIR = re.compile(
    r"""(?<![^\W_])["']?([A-Za-z][A-Za-z0-9_ -]{1,40}?)["']?\s{0,3}[:=]\s{0,3}"""
    r"""(?:"([^"\n]{1,200})"|'([^'\n]{1,200})'|([^\s"'{}\[\],;][^"'{}\[\],;\n]{0,120}))"""
)


def pairs_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values in a text such as `Name: Ann Lee; phone = 555 1234`."""
    if ":" in text or "=" in text:
        for match in _PAIR.finditer(text):
            value = match[2] or match[3] or match[4]
            yield " ".join(match[1].split()[-3:]), value.strip().rstrip(".!?)")


def may_be_pair(kind: str, value: str) -> bool:
    """Whether a value after a name in a text, as in `Phone: 555 1234`, may be of a kind."""
    if kind == BIRTH:
        return len(value) <= 20
    if kind == ADDRESS:
        return len(value.split()) <= 5
    return bool(kind) and kind not in (PRODUCT, DOMAIN, IP)
