"""A message as the sentences that are looked at: as much of a text as can be searched in no time.

Agents and customers are not trusted: a text made to be slow must cost no more than its length.
"""

import re
from collections.abc import Iterator

TEXT_LIMIT = 10_000
"""Letters of a message that are looked at, seven times the longest in the recorded runs."""
SENTENCE_LIMIT = 1_000
"""Letters of a sentence that are looked at."""

_RUNS = re.compile(r"([^\w\s])\1{3,}")
_ENDS = re.compile(r"(?<=[.!?…])[*_\"'“”)\]]{0,4} |\n")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a message, in their order, none empty.

    White space is one blank, a sign that is repeated stands three times, and what lies behind `TEXT_LIMIT`
    letters of the message, or behind `SENTENCE_LIMIT` letters of a sentence, is left out.
    """
    lines = (" ".join(line.split()) for line in text[:TEXT_LIMIT].replace("’", "'").splitlines())
    for sentence in _ENDS.split(_RUNS.sub(r"\1\1\1", "\n".join(line for line in lines if line))):
        if sentence:
            yield sentence[:SENTENCE_LIMIT]
