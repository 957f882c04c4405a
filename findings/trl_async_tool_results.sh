#!/usr/bin/env bash
# Packages:  trl 1.16.0 with transformers 5.24.0 and torch 2.13.0 (2026-11-30)
# Input:     GRPOTrainer with two tools, of which get_weather is async and get_time is not, and Qwen3's chat template. The
#            model (a scripted generation; the weights are random) calls both tools in one message: first get_weather,
#            then get_time. Then the same with two plain tools, and with two async tools.
# Expected:  the results follow in the order of the calls, as the template needs it: it renders a result as
#            <tool_response>, without the tool's name or the call's id.
# Observed:  if one tool is async and the other is not, the results of the plain tool come first, whatever the order of
#            the calls: the model reads the time as the answer to get_weather, and the weather as the answer to get_time.
#            Two plain tools and two async tools keep the order.
# Source:    trl/trainer/grpo_trainer.py, _tool_call_loop, which appends the results of plain tools at once, and those of
#            async tools after all calls of the message.
# Matters:   the policy is trained on exchanged results, and learns from rewards that it could earn only by guessing which
#            result is which. At inference the order is right, so the trained model meets other conversations. Make all
#            tools async or none.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet trl==1.16.0 transformers==5.24.0 torch==2.13.0
cd "$work"
export HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES= TQDM_DISABLE=1 PYTHONWARNINGS=ignore
"$work/venv/bin/python" - <<'PYTHON'
import contextlib
import io
import re
import sys

from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

CALLS = "".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "Oslo"}}}}\n</tool_call>\n'
    for name in ("get_weather", "get_time")
)
RESULTS = {"get_weather": "cloudy", "get_time": "noon"}


def make_tokenizer():
    """A tokenizer of bytes with the special tokens of Qwen3's template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    tokenizer.add_tokens([AddedToken(text) for text in ("<tool_call>", "</tool_call>", "<think>", "</think>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=qwen3_chat_template,
    )


class Scripted(GRPOTrainer):
    """Generates the calls first, and then an answer."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        prompts = [self.processing_class.decode(ids) for ids in prompt_ids]
        self.read = prompts[0]
        texts = ["Done.<|im_end|>" if "<tool_response>" in prompt else f"{CALLS}<|im_end|>" for prompt in prompts]
        return self.processing_class(texts)["input_ids"], None


def make_tools(async_names):
    async def later_weather(city: str) -> str:
        return RESULTS["get_weather"]

    async def later_time(city: str) -> str:
        return RESULTS["get_time"]

    def weather(city: str) -> str:
        return RESULTS["get_weather"]

    def time(city: str) -> str:
        return RESULTS["get_time"]

    tools = [
        later_weather if "get_weather" in async_names else weather,
        later_time if "get_time" in async_names else time,
    ]
    for tool, name in zip(tools, RESULTS, strict=True):
        tool.__name__ = name
        tool.__doc__ = "Answer for a city.\n\nArgs:\n    city: The city."
    return tools


def observe(async_names):
    tokenizer = make_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=4096,
    )  # fmt: skip
    trainer = Scripted(
        model=Qwen3ForCausalLM(config),
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir="out", max_steps=1, per_device_train_batch_size=2, num_generations=2, report_to="none",
            max_completion_length=1024, use_cpu=True, save_strategy="no", bf16=False, gradient_checkpointing=False,
        ),  # fmt: skip
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "Weather and time in Oslo?"}]}]),
        processing_class=tokenizer,
        tools=make_tools(async_names),
    )
    with contextlib.redirect_stdout(io.StringIO()):  # the trainer's log
        trainer.train()
    after_calls = trainer.read.rpartition("</tool_call>")[2]
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", after_calls)
    print(f"async: {async_names or 'none'}; the model reads {after_calls!r}")
    return results


seen = {
    "plain": observe([]),
    "first async": observe(["get_weather"]),
    "second async": observe(["get_time"]),
    "async": observe(["get_weather", "get_time"]),
}
print(seen)
right, exchanged = ["cloudy", "noon"], ["noon", "cloudy"]
expected = {"plain": right, "first async": exchanged, "second async": right, "async": right}
sys.exit(0 if seen == expected else "changed: the order of the results differs from the description above")
PYTHON
