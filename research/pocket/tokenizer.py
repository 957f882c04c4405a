"""The pocket model's tokenizer: byte-level BPE that keeps dialogues with a store's records short.

A JSON key with the signs around it may become one token, and so may three digits: ids are copied a few tokens
at a time. Every text can be written, as bytes if nothing longer fits."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
import transformers

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

RESPONSE_TEMPLATE = {
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
"""How an answer is read, in the form that transformers' `parse_response` takes."""


def build_tokenizer(texts: Iterable[str], size: int) -> Any:
    """A tokenizer that writes these texts in few tokens, with at most `size` in its vocabulary."""
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(_PIECES), "isolated"),
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
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [START]})
    tokenizer.add_tokens(list(CALL))
    template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    tokenizer.chat_template = template.rstrip("\n")
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer
