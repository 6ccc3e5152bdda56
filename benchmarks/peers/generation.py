"""Decoding by `generate` of transformers; the sampler of tunix is named and not measured."""

from __future__ import annotations

import lengths
import numpy as np
from contest import Way, absent

from peers.threads import torch_ways


def generators(shape, prompts: np.ndarray) -> list[Way]:
    """Every peer on `rollout.Decode`; prompts: [B, 16]."""
    untried = absent("tunix sampler", ("google-tunix",), "its sampler was not tried")
    return [*_generate(shape, prompts), untried]


def llama(size: str, eos: int | None = None):
    """A LLaMA with random parameters, of the size of `lengths.network`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, width = lengths.SIZES[size]
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=lengths.VOCABULARY,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            num_key_value_heads=width // 32,
            max_position_embeddings=1024,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=eos,
            pad_token_id=0,
        )
    )


def _generate(shape, prompts: np.ndarray) -> list[Way]:
    packages = ("torch", "transformers")
    if gone := absent("transformers generate", packages):
        return [gone]
    import torch

    model = llama(shape.size).eval()
    tokens = torch.from_numpy(np.array(prompts)).long()
    every = torch.ones_like(tokens)

    def generate():
        with torch.inference_mode():
            rows = model.generate(
                tokens,
                attention_mask=every,
                do_sample=True,
                top_k=0,
                max_new_tokens=shape.tokens,
            )
        assert rows.shape[1] == lengths.PROMPT + shape.tokens
        return rows

    return torch_ways("transformers generate", generate, packages[1:])
