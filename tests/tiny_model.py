"""A real language model of two layers, trained in a second or two to make Hermes calls, and LoRA adapters.

Small enough to build anew in every session of tests. It has learned its dialogues by heart, so that greedy
answers do not hang on the last bits of a float; what it says to anything else is noise, which is as good.
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

for _name, _value in {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
    "HF_HUB_OFFLINE": "1",
}.items():
    os.environ.setdefault(_name, _value)

TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + ' ' }}{%- endif %}{{- 'Tools:' }}
{%- for tool in tools %}{{- ' ' + tool.function.name }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or message.role == 'tool' %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}{%- generation %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>' }}
{%- endgeneration %}{{- '\\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"To {name}.",
            "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        },
    }
    for name in ("look", "close")
]

CONTEXT = 1024


def dialogue(number: int, done: bool = False) -> list[dict[str, Any]]:
    """A conversation that the model knows: it looks at an order and says that it is done."""
    call = {"type": "function", "function": {"name": "look", "arguments": {"id": f"W{number}"}}}
    said: list[dict[str, Any]] = [
        {"role": "system", "content": "Help."},
        {"role": "user", "content": f"Look at W{number}."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": f"W{number} is open"},
        {"role": "assistant", "content": f"W{number} is open, all is well."},
    ]
    return said if done else said[:2]


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    text = (
        '{"name": "look", "arguments": {"id": "W close open is all is well. Look at Help. Tools: system user'
    )
    raw.train_from_iterator(
        [text, "assistant tool"] * 50,
        trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_model(folder: Path, *, steps: int = 120, **sizes: int) -> Path:
    """Build and train the model; `sizes` are fields of its config."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    tokenizer = _tokenizer()
    fields: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.08,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = Qwen3Config(**{**fields, **sizes})
    tokenizer.model_max_length = config.max_position_embeddings
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draws = random.Random(0)
    for _ in range(steps):
        said = [dialogue(draws.randrange(1, 6), done=True) for _ in range(8)]
        batch = tokenizer.apply_chat_template(
            said,
            tools=TOOLS,
            return_dict=True,
            return_assistant_tokens_mask=True,
            padding=True,
            return_tensors="pt",
        )
        labels = batch["input_ids"].masked_fill(torch.as_tensor(batch["assistant_masks"]) == 0, -100)
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.generation_config = GenerationConfig(max_new_tokens=12, eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def build_adapter(base: Path, folder: Path, *, seed: int, rank: int = 4, strength: float = 0.15) -> Path:
    """A LoRA adapter that changes what the model says, drawn from a seed; with a strength of 0, nothing."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(r=rank, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=strength)
    adapted.save_pretrained(folder)
    return folder


def conversations() -> list[list[dict[str, Any]]]:
    """Conversations of different lengths: some that the model knows, some that it does not."""
    known = [dialogue(number) for number in range(1, 6)]
    answered = [dialogue(number, done=True)[:4] for number in (2, 4)]
    strange = [[{"role": "user", "content": "Tell me all of it. " * count}] for count in (1, 3, 9)]
    return known + answered + strange


def _references(base: Path, adapters: dict[str, Path]) -> list[dict[str, Any]]:
    """What transformers, called directly and for one prompt at a time, says to each conversation."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    found = []
    for name in (base.name, *adapters):
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
        if name in adapters:
            model = PeftModel.from_pretrained(model, adapters[name])
        model.eval()
        for messages in conversations():
            prompt = tokenizer.apply_chat_template(
                messages, tools=TOOLS, add_generation_prompt=True, return_dict=True, return_tensors="pt"
            )
            length = prompt["input_ids"].shape[1]
            with torch.no_grad():
                whole = model.generate(**prompt, do_sample=False, max_new_tokens=40)
                logits = model(input_ids=whole).logits[0, length - 1 : -1]
            drawn = whole[0, length:]
            table = torch.log_softmax(logits.double(), dim=-1)
            best = table.topk(5, dim=-1)
            found.append(
                {
                    "model": name,
                    "messages": messages,
                    "prompt_tokens": length,
                    "tokens": [tokenizer.decode([token]) for token in drawn],
                    "text": tokenizer.decode(drawn, skip_special_tokens=True),
                    "logprobs": table.gather(-1, drawn.unsqueeze(-1)).squeeze(-1).tolist(),
                    "top": best.values.tolist(),
                }
            )
    return found


def main(folder: Path) -> None:
    """Build everything in a folder: `base`, adapters `one` and `two`, and `references.json`."""
    import torch

    torch.set_num_threads(1)
    base = build_model(folder / "base")
    adapters = {
        name: build_adapter(base, folder / name, seed=seed) for seed, name in enumerate(("one", "two"))
    }
    (folder / "references.json").write_text(json.dumps(_references(base, adapters)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
