"""The embedded model as a GGUF file, for the real llama.cpp in the package `xllamacpp`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import xllamacpp

CONTROL, USER_DEFINED, NORMAL = 3, 4, 1
"""Types of tokens in GGUF."""

PLAIN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
"""A chat template that does not know tools."""


def template_for_llama_cpp(template: str) -> str:
    """A chat template without what llama.cpp's Jinja lacks: `generation`, and joins of an object."""
    begin, end = "+ '(' + ", " | join(', ') + ')' }}"
    before, _, rest = template.partition(begin)
    names, _, after = rest.partition(end)
    loop = f"{{%- for name in {names} %}}{{{{- (', ' if not loop.first else '') + name }}}}{{%- endfor %}}"
    template = f"{before}+ '(' }}}}{loop}{{{{- ')' }}}}{after}"
    return template.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")


def write_gguf(folder: Path, target: Path) -> None:
    """Convert a Qwen3 model with float32 weights and a BPE tokenizer; the chat template stays as it is."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    texts = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    texts |= {number: token["content"] for number, token in added.items()}
    types = [
        (CONTROL if added[number]["special"] else USER_DEFINED) if number in added else NORMAL
        for number in range(config["vocab_size"])
    ]
    writer = gguf.GGUFWriter(target, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    # llama.cpp does not know the tokenizer's own expression. This one splits almost nothing, so that the
    # merges alone make the tokens, nearly as in the original.
    writer.add_tokenizer_pre("superbpe")
    writer.add_token_list([texts[number] for number in range(config["vocab_size"])])
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    raw = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    for name, tensor in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            first, last = tensor["data_offsets"]
            values = np.frombuffer(raw[start + first : start + last], "<f4").reshape(tensor["shape"])
            writer.add_tensor(names.get_name(name, (".weight",)), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextmanager
def llama_cpp(path: Path, **fields: Any) -> Iterator[str]:
    """A server of llama.cpp on one thread, with two slots that share a context; yields its base URL."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.cpuparams.n_threads = 1
    fixed = {"n_gpu_layers": 0, "fit_params": False, "warmup": False, "verbosity": 0}
    for name, value in {"n_ctx": 8192, "n_parallel": 2, "kv_unified": True, **fixed, **fields}.items():
        setattr(params, name, value)
    server = xllamacpp.Server(params)
    try:
        yield f"{server.listening_address}/v1"
    finally:
        del server  # which stops it
