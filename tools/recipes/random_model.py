"""A Qwen3-shaped model with random weights, made from nothing but installed packages: python random_model.py OUT SHAPE.

Same bytes on every machine: the weights come from seeded generators, the tokenizer is trained on the source of a pinned
package.  The weights are scaled so that greedy output depends on the prompt; plain random ones repeat one token.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD, BEGIN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
CORPUS = 4 << 20
"""Bytes of source text that the tokenizer is trained on."""


@dataclass(frozen=True)
class Shape:
    """What decides the size of a Qwen3 model."""

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int


SHAPES = {
    "tiny": Shape(4096, 256, 768, 2, 4, 2, 64),
    "0.6b": Shape(32768, 1024, 3072, 28, 16, 8, 128),
}


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the given number of words."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 10,
        special_tokens=[PAD, BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(corpus(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=PAD)
    fast.chat_template = CHAT
    return fast


def corpus() -> list[str]:
    """Source files of the pinned transformers package, in a fixed order."""
    texts, size = [], 0
    for path in sorted(Path(transformers.__file__).parent.rglob("*.py")):
        texts.append(path.read_text(errors="replace"))
        size += len(texts[-1])
        if size > CORPUS:
            break
    return texts


def model(shape: Shape) -> Qwen3ForCausalLM:
    """The model with its seeded weights, in bfloat16."""
    torch.manual_seed(0)
    made = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    generator = torch.Generator().manual_seed(1)
    deviation = 0.15 * (256 / shape.hidden) ** 0.5
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "q_norm" in name or "k_norm" in name:
                weight.fill_(2.0)
            elif weight.dim() == 2 and ".layers." in name:
                weight.normal_(0, deviation, generator=generator)
    return made.to(torch.bfloat16)


def main() -> None:
    """Write tokenizer and model into OUT."""
    out, name = sys.argv[1:]
    tokenizer(SHAPES[name].vocabulary).save_pretrained(out)
    model(SHAPES[name]).save_pretrained(out)


if __name__ == "__main__":
    main()
