"""A tiny Llama without weights, for vLLM's `--load-format dummy`: two layers and a byte tokenizer.

`python -m executors.engines.vllm.tiny_model FOLDER` writes the model. Nothing is downloaded. The
tokenizer has the 256 bytes and no merges, so a prompt has as many tokens as bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MAX_LEN = 4096
# Arguments of vLLM on a CPU: random weights, 128 MiB of KV cache (32,768 tokens).
ARGS = (
    "--load-format=dummy",
    "--dtype=float32",
    "--enforce-eager",
    "--distributed-executor-backend=uni",
    "--kv-cache-memory-bytes=134217728",
)
# Arguments for pipelines over several processes. The model must be compiled, because vLLM 0.32 for
# CPUs allocates the buffers between stages only then; the backend "eager" compiles nothing.
PIPELINE_ARGS = (
    "--load-format=dummy",
    "--dtype=float32",
    '--compilation-config={"mode":2,"backend":"eager"}',
    "--kv-cache-memory-bytes=134217728",
)
_SPECIAL = ("<unk>", "<s>", "</s>")
_CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": MAX_LEN,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def write(folder: Path) -> Path:
    """Write the model into `folder` and return the folder. Creates the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": MAX_LEN,
        "chat_template": _CHAT,
    }
    files = {
        "config.json": _CONFIG,
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": tokenizer_config,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    return folder


def _tokenizer() -> dict[str, Any]:
    symbols = [*_SPECIAL, *sorted(_byte_symbols())]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": text, **special, "special": True}
            for number, text in enumerate(_SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {symbol: number for number, symbol in enumerate(symbols)},
            "merges": [],
        },
    }


def _byte_symbols() -> list[str]:
    """The 256 characters of byte-level BPE: printable bytes as themselves, the others from U+0100
    on (Radford et al., GPT-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in printable]
    return [chr(b) for b in printable] + [chr(256 + n) for n in range(len(moved))]


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
