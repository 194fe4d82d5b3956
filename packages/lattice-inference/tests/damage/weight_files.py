"""Small weight files of each kind that a reader of ours takes, changes of their bytes, and all that readers do with them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors.numpy

from lattice_inference import GenerateConfig, Session, load_encoder, load_model
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS
from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.checkpoint.ggml_types import GGML_TYPES
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.checkpoint.summary import summarize
from lattice_inference.errors import LatticeError
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.quantize import export_bert_gguf
from lattice_inference.tokenizer import load_tokenizer

__all__ = ["change_weight_file", "use_weight_file", "write_weight_files"]

EXTREMES = [0, 1, 2, 7, 8, 9, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**33, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def write_weight_files(folder: Path, tiny_bert: Path) -> None:
    """Write a file of each kind into a folder."""
    kinds = ["F32", "F16", "BF16", *BLOCK_FORMATS]
    sizes = {kind.name: kind for kind in GGML_TYPES.values()}
    tensors = [
        TensorToWrite(kind, (2, 256), kind, lambda kind=kind: [bytes(512 // sizes[kind].elements * sizes[kind].nbytes)])
        for kind in kinds
    ]
    sizes_of_a_model = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": [2, 2],
    }
    vocabulary = {
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", "ab", "<0x0A>"],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1, 6],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -4.0, -1.0, -2.0, -3.0, -2.5, 0.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    decoder = {
        **sizes_of_a_model,
        "llama.attention.head_count_kv": 2,
        "llama.feed_forward_length": 48,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    llama = {**sizes_of_a_model, "tokenizer.ggml.model": "llama", **vocabulary}
    bpe = {**llama, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.merges": ["a b"]}
    unigram = {**llama, "tokenizer.ggml.model": "t5", "tokenizer.ggml.remove_extra_whitespaces": True}
    write_gguf(folder / "types.gguf", sizes_of_a_model, tensors)
    write_gguf(folder / "decoder.gguf", llama | decoder, list(decoder_tensors(2, 32, 4, 2, 48, 9)))
    for name, metadata in (("llama.gguf", llama), ("bpe.gguf", bpe), ("unigram.gguf", unigram)):
        write_gguf(folder / name, metadata, [])
    export_bert_gguf(tiny_bert, folder / "bert.gguf", "Q8_0")
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float16)}
    (folder / "plain.safetensors").write_bytes(safetensors.numpy.save(arrays, {"k": "v"}))


def decoder_tensors(
    layers: int, hidden: int, heads: int, kv_heads: int, inner: int, tokens: int
) -> Iterator[TensorToWrite]:
    """The tensors of a small decoder of architecture ``llama``."""
    kv_width = hidden // heads * kv_heads
    shapes = {"token_embd": (tokens, hidden), "output_norm": (hidden,)}
    for layer in range(layers):
        parts = {
            "attn_norm": (hidden,),
            "ffn_norm": (hidden,),
            "attn_q": (hidden, hidden),
            "attn_k": (kv_width, hidden),
        }
        parts |= {"attn_v": (kv_width, hidden), "attn_output": (hidden, hidden), "ffn_down": (hidden, inner)}
        parts |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden)}
        shapes |= {f"blk.{layer}.{part}": shape for part, shape in parts.items()}
    generator = np.random.default_rng(0)
    for name, shape in shapes.items():
        content = generator.standard_normal(shape).astype(np.float32).tobytes()
        yield TensorToWrite(f"{name}.weight", shape, "F32", lambda content=content: [content])


def change_weight_file(content: bytes, generator: random.Random) -> bytes:
    """Return ``content`` with a few changes of one kind, most of them near the beginning, where the claims are."""
    changed = bytearray(content)
    for _ in range(generator.choice((1, 1, 1, 2, 4))):
        end = min(len(changed), generator.choice((64, 256, 2_000, len(changed))))
        position = generator.randrange(max(end, 1))
        match generator.randrange(7):
            case 0:
                del changed[position:]
            case 1 if changed:
                changed[position % len(changed)] ^= 1 << generator.randrange(8)
            case 2:
                width, form = generator.choice(((4, "<I"), (8, "<Q")))
                value = generator.choice(EXTREMES) % 2 ** (8 * width)
                changed[position : position + width] = struct.pack(form, value)
            case 3:
                del changed[position : position + generator.choice((1, 4, 8, 40))]
            case 4:
                changed[position:position] = generator.randbytes(generator.choice((1, 4, 8, 40)))
            case 5:
                changed[position : position + 16] = generator.randbytes(16)
            case _:
                start = generator.randrange(max(end, 1))
                changed[position : position + 24] = changed[start : start + 24]
    return bytes(changed)


def use_weight_file(path: Path) -> None:
    """Do with a file what readers do: list it, read every tensor, tokenize with it, load it as its kind of model."""
    summarize(path)
    estimate_memory(path)
    with open_weights(path) as checkpoint:
        is_decoder = checkpoint.metadata.get("general.architecture") == "llama"
        for name in checkpoint.names():
            try:
                checkpoint.array(name)
                checkpoint.float32(name)
            except LatticeError:
                pass
    if path.suffix == ".gguf":
        load_tokenizer(path).encode("a b ab \n")
        if not is_decoder:
            load_encoder(path, pooling="mean").encode(["a b"])
            return
        with load_model(path) as model, Session(model) as session:
            session.generate("a b", GenerateConfig.greedy(2))
