"""The memory of a process that loads Qwen3 and embeds a text, as Linux counts it, is what is promised and told before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import qwen3_files as files
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.checkpoint.rounding import quantize_rows
from lattice_inference.memory.fit import estimate_memory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts the memory of a process"),
]

#: Resident memory before a block, and the most during it.
COUNTED = """
import json, sys
def kib(field):
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(field))
def begin():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the most so far is what there is now
    return kib("VmRSS:")
"""


def counted(code, *arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "LATTICE_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COUNTED + code, *map(str, arguments)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def write_drawn(path, *, experts, kind):
    """A file of some 40 to 90 MB without a tokenizer, whose matrices repeat some rows."""
    hidden, heads, width, vocabulary = 1024, 1024, 512, 16_000
    architecture = "qwen3moe" if experts else "qwen3"
    shapes = {"token_embd.weight": (vocabulary, hidden), "output.weight": (vocabulary, hidden)}
    vectors = {"output_norm.weight": hidden}
    for layer in range(3):
        at = f"blk.{layer}."
        vectors |= {f"{at}{name}_norm.weight": hidden for name in ("attn", "ffn")}
        vectors |= {f"{at}attn_{name}_norm.weight": 64 for name in "qk"}
        shapes |= {f"{at}attn_{name}.weight": (heads, hidden) for name in ("q", "k", "v", "output")}
        if experts:
            shapes[f"{at}ffn_gate_inp.weight"] = (experts, hidden)
            shapes |= {f"{at}ffn_{name}_exps.weight": (experts, width, hidden) for name in ("gate", "up")}
            shapes[f"{at}ffn_down_exps.weight"] = (experts, hidden, width)
        else:
            shapes |= {f"{at}ffn_{name}.weight": (3 * hidden, hidden) for name in ("gate", "up")}
            shapes[f"{at}ffn_down.weight"] = (hidden, 3 * hidden)
    keys = {"block_count": 3, "context_length": 4096, "embedding_length": hidden, "feed_forward_length": 3 * hidden}
    keys |= {"attention.head_count": 16, "attention.head_count_kv": 16, "attention.key_length": 64}
    keys |= {"attention.value_length": 64, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": 4, "expert_feed_forward_length": width}
    metadata = {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in keys.items()}}

    def matrix(name, shape):
        type_name = "F32" if name.endswith("ffn_gate_inp.weight") else kind
        rows = np.random.default_rng(len(name)).standard_normal((8, shape[-1]), np.float32) * np.float32(0.02)
        content = quantize_rows(rows, type_name).tobytes()
        return TensorToWrite(name, shape, type_name, lambda: [content] * (int(np.prod(shape[:-1])) // 8))

    def scales(name, width):
        return TensorToWrite(name, (width,), "F32", lambda: [np.ones(width, np.float32).tobytes()])

    tensors = [scales(*each) for each in vectors.items()] + [matrix(*each) for each in shapes.items()]
    write_gguf(path, metadata, tensors)
    return path


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("experts", [0, 16], ids=["dense", "experts"])
def test_a_loaded_model_takes_its_file_and_little_more(tmp_path, experts, kind):
    path = write_drawn(tmp_path / "m.gguf", experts=experts, kind=kind)
    found = counted(
        """
from lattice_inference import load_model
before = begin()
with load_model(sys.argv[1]) as model:
    print(json.dumps({"added": kib("VmRSS:") - before, "weights": sum(each.nbytes for each in model.weight_sizes)}))
""",
        path,
    )
    size = path.stat().st_size
    assert size > 40e6
    assert 0.9 * size <= found["weights"] <= found["added"] <= 1.05 * size + 20e6


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_a_text_takes_what_was_told_and_at_most_64_kib_a_token(tmp_path, precision):
    """A layer has the shape of those of Qwen3-Embedding-0.6B: their number does not matter, since they share buffers."""
    tokens = 2000
    shape = {"hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128, "num_attention_heads": 16}
    shape |= {"num_key_value_heads": 8, "num_hidden_layers": 2}
    content = files.embedding_files(**shape)
    content["1_Pooling/config.json"]["word_embedding_dimension"] = 1024
    directory = tmp_path / "m"
    for name, value in content.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(json.dumps(value))
    rng = np.random.default_rng(0)
    shapes = files.tensors_of(content["config.json"], prefix="")
    tensors = {name: rng.standard_normal(shape, np.float32) * np.float32(0.02) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    told = estimate_memory(directory, context=tokens)
    assert told.text_bytes <= tokens * 64 * 1024
    assert told.text_fits is not False
    found = counted(
        """
from lattice_inference import load_encoder
with load_encoder(sys.argv[1], precision=sys.argv[2]) as encoder:
    encoder.encode(["x"])
    before = begin()
    tokens = int(encoder.encode(["x" * (int(sys.argv[3]) - 1)]).token_counts[0])
    print(json.dumps({"tokens": tokens, "added": kib("VmHWM:") - before}))
""",
        directory,
        precision,
        tokens,
    )
    assert found["tokens"] == tokens
    assert 0.8 * told.text_bytes <= found["added"] <= told.text_bytes + 8e6  # and the scratch of a thread
