"""The pocket model's tokenizer: byte-level BPE, made so that dialogues with records of a store are short.

A JSON key with the signs around it may become one token, and so may three digits: ids are copied a few tokens
at a time. Every text can be written, as bytes where nothing longer fits.
"""

import importlib.resources
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_trace2evolve.utils.optional import require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CALL = ("<tool_call>", "</tool_call>")

_PIECES = (
    r'(?:[\]}", ]*"[A-Za-z_]+": null)+'  # fields that are not set
    r'|[\]\[{}",: ]*"[A-Za-z_]+[12]?": ?[\[{]*(?:"(?![A-Za-z_]+[12]?":))?'  # a key of JSON, signs around it
    r"|#W"
    r"|\d{1,3}"
    r"| (?=[A-Z#\d]|[\w.]+@)"  # names, ids and mail addresses are written alike wherever they stand
    r"| ?[a-z_][A-Za-z_]*"
    r"|[A-Za-z_]+"
    r"| ?(?:[^\sA-Za-z\d_#]|#(?!W))+"
    r"|\s+"
)


def build_tokenizer(texts: Iterable[str], size: int) -> "PreTrainedTokenizerFast":
    """A tokenizer trained on texts.

    Args:
        texts: What it shall write in few tokens.
        size: Tokens in its vocabulary at most.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    tokenizers = require("tokenizers", extra="local")
    transformers = require("transformers", extra="local")
    pieces = tokenizers.Regex(_PIECES)
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(pieces, "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size - len(CALL),
        special_tokens=[PAD, START, END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    made: PreTrainedTokenizerFast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    made.add_special_tokens({"additional_special_tokens": [START]})
    made.add_tokens(list(CALL))
    folder = importlib.resources.files("research.pocket")
    made.chat_template = (folder / "chat_template.jinja").read_text(encoding="utf-8").rstrip("\n")
    made.response_template = RESPONSE
    return made


RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {
            "close_pattern": r"<\|im_end\|>\s*",
            "content": "text",
            "repeats": True,
            "join": "\n",
        },
    },
}
"""How an answer is read back, in the form that transformers' `parse_response` takes."""
