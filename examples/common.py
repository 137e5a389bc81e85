"""What the example scripts share: a small Llama, batches of tokens, and readings of their own.

With READINGS=FILE a script reads the allocator itself, at the instants of its own loop, and writes what it read: so that
a recording can be checked against it.
"""
import atexit
import json
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 32000


def llama(dtype=torch.float32, device="cuda", **changes):
    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8,
                 num_key_value_heads=4, max_position_embeddings=2048, use_cache=False)
    config = LlamaConfig(**{**sizes, **changes})
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM._from_config(config, attn_implementation="sdpa", dtype=dtype).train()
    finally:
        torch.set_default_dtype(torch.float32)


def batch(size=2, length=512):
    ids = torch.randint(0, VOCABULARY, (size, length), device="cuda")
    return dict(input_ids=ids, labels=ids.clone())


def padded(*lengths):
    """A batch padded to its longest sequence, with the attention mask that a tokenizer makes."""
    ids = torch.randint(1, VOCABULARY, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    labels = ids.masked_fill(~mask, -100)
    return {name: of.cuda() for name, of in dict(input_ids=ids, attention_mask=mask.long(), labels=labels).items()}


class Readings:
    """Allocated and its peak since the last reading, in bytes, as a training script would read them."""

    def __init__(self):
        self.path, self.rows = os.environ.get("READINGS"), []
        atexit.register(self.write)

    def read(self, name):
        if self.path:
            self.rows.append([name, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()])
            torch.cuda.reset_peak_memory_stats()

    def write(self):
        if self.path:
            with open(self.path, "w") as file:
                json.dump(self.rows, file)
