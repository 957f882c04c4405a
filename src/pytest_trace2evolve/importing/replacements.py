"""Makes replacements that are recognizable, and reserved for fiction or not in use."""

import ipaddress
import re
from datetime import date, timedelta

from pytest_trace2evolve.importing.detect import passes_luhn


def laid_out(text: str, characters: str) -> str:
    """Replace the last letters and digits of a text by `characters`, and keep its layout."""
    result = list(text)
    positions = [position for position, character in enumerate(text) if character.isalnum()]
    for position, character in zip(reversed(positions), reversed(characters), strict=False):
        result[position] = character
    return "".join(result)


def made_phone(length: int, number: int) -> str:
    """A telephone number not in use: of nine digits, the end is from the range for fiction."""
    if length == 9:
        return f"{1 + number // 100 % 99:02d}55501{number % 100:02d}"
    return "555" + str(number).zfill(max(1, length - 3))


def made_card(length: int, number: int) -> str:
    """A card number with a valid check digit, in a range that is not issued."""
    body = "4000" + str(number).zfill(length - 5)
    return next(body + digit for digit in "0123456789" if passes_luhn(body + digit))


def made_iban(country: str, length: int, number: int) -> str:
    """An IBAN with valid check digits, and zeros in place of the bank."""
    account = str(number).zfill(length - 4)
    value = int("".join(str(int(character, 36)) for character in f"{account}{country}00"))
    return f"{country}{98 - value % 97:02d}{account}"


def made_ip(is_ipv6: bool, number: int) -> str:
    """An IP address from a block reserved for documentation; IPv4 continues in 240.0.0.0/4."""
    if is_ipv6:
        return str(ipaddress.IPv6Address((0x20010DB8 << 96) + number))
    return f"192.0.2.{number}" if number < 255 else str(ipaddress.IPv4Address((240 << 24) + number))


def made_address(text: str, number: int) -> str:
    """A unit, a postcode of the same form, or a street."""
    if re.match(r"(?i)\s*(?:apt|apartment|suite|ste|unit|flat|floor|fl|#)\b", text):
        return f"Unit {number} Example"
    if len(text.split()) <= 2 and len(text) <= 10 and re.fullmatch(r"[\w -]+", text):
        return made_id(text, number)
    return f"{100 + number} Example Street"


def made_birth_date(number: int) -> str:
    return (date(1900, 1, 1) + timedelta(days=max(number, 1) - 1)).isoformat()


def made_id(text: str, number: int) -> str:
    """An id of the same form. A short prefix stays, and 9 and a number replace the digits."""
    if re.fullmatch(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", text):
        return f"00000000-0000-4000-8000-{number:012d}"
    if match := re.fullmatch(r"([A-Za-z]{0,4}[-_/ .]?)(\d+)", text):
        return f"{match[1]}9{str(number).zfill(len(match[2]) - 1)}"
    return f"X9{str(number).zfill(max(2, min(len(text), 12) - 2))}"
