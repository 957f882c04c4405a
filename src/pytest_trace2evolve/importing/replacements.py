"""Makes replacements that are recognizable, and reserved for fiction or not in use."""

import ipaddress
import re
from collections.abc import Callable
from datetime import date, timedelta

from pytest_trace2evolve.importing import detect
from pytest_trace2evolve.importing.detect import alphanumeric, digits_of, passes_luhn, plain_address


def laid_out(text: str, characters: str) -> str:
    """Replace the last letters and digits of a text by `characters`, and keep its layout."""
    result = list(text)
    positions = [position for position, character in enumerate(text) if character.isalnum()]
    for position, character in zip(reversed(positions), reversed(characters), strict=False):
        result[position] = character
    return "".join(result)


def _phone(digits: str, number: int) -> str:
    """A telephone number not in use: of nine digits, the end is from the range for fiction."""
    if len(digits) == 9:
        return f"{20 + number // 100 % 80}55501{number % 100:02d}"
    return "555" + str(number).zfill(max(1, len(digits) - 3))


def _card(digits: str, number: int) -> str:
    """A card number with a valid check digit, in a range that is not issued; of four digits, any number."""
    if len(digits) == 4:
        return str(9000 + number)[-4:]
    body = "4000" + str(number).zfill(len(digits) - 5)
    return next(body + digit for digit in "0123456789" if passes_luhn(body + digit))


def _iban(plain: str, number: int) -> str:
    """An IBAN with valid check digits, and zeros in place of the bank."""
    country, account = plain[:2], str(number).zfill(len(plain) - 4)
    value = int("".join(str(int(character, 36)) for character in f"{account}{country}00"))
    return f"{country}{98 - value % 97:02d}{account}"


def _ip(text: str, number: int) -> str:
    """An IP address from a block reserved for documentation; IPv4 continues in 240.0.0.0/4."""
    if ":" in text:
        return str(ipaddress.IPv6Address((0x20010DB8 << 96) + number))
    return f"192.0.2.{number}" if number < 255 else str(ipaddress.IPv4Address((240 << 24) + number))


def _address(plain: str, number: int) -> str:
    """A unit, a postcode of the same form, or a street."""
    if re.match(r"(?:apt|apartment|suite|ste|unit|flat|floor|fl)\b", plain):
        return f"Unit {number} Example"
    if len(plain.split()) <= 2 and len(plain) <= 10:
        return made_id(plain.upper(), number)
    return f"{100 + number} Example Street"


def made_id(text: str, number: int) -> str:
    """An id of the same form. A short prefix stays, and 9 and a number replace the digits."""
    if re.fullmatch(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", text):
        return f"00000000-0000-4000-8000-{number:012d}"
    if match := re.fullmatch(r"([A-Za-z]{0,4}[-_/ .]?)(\d+)", text):
        return f"{match[1]}9{str(number).zfill(len(match[2]) - 1)}"
    return f"X9{str(number).zfill(max(2, min(len(text), 12) - 2))}"


RULES: dict[str, tuple[Callable[[str], str], Callable[[str, int], str]]] = {
    detect.NAME: (str, lambda _, number: f"Name{number}"),
    detect.EMAIL: (str, lambda _, number: f"user{number}"),
    detect.PHONE: (lambda text: digits_of(text)[-9:], _phone),  # the same with and without a calling code
    detect.CARD: (digits_of, _card),
    detect.IBAN: (lambda text: alphanumeric(text).upper(), _iban),
    detect.DOMAIN: (lambda _: "", lambda _, number: "example.com"),
    detect.IP: (str.casefold, _ip),
    detect.ADDRESS: (plain_address, _address),
    detect.BIRTH: (str, lambda _, number: (date(1900, 1, 1) + timedelta(max(number, 1) - 1)).isoformat()),
    detect.SECRET: (str, lambda _, number: f"secret{number}"),
}
"""By kind, what makes the canonical form of a value, and what makes a replacement of it from a number."""

LAID_OUT = frozenset((detect.PHONE, detect.CARD, detect.IBAN))
"""Kinds whose replacements have the layout of the value."""
