"""One engine's steps of training, in a process alone.

It reads what to do as JSON, and prints seconds and memory.

``lattice`` runs a decoder's gradients with :mod:`lattice_inference.training`, ``peft`` with PyTorch and PEFT;
``lattice_pairs`` and ``peft_pairs`` those of an encoder. ``write`` writes a model of SmolLM2's shape with drawn weights.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from lattice_inference.training import TrainingProgram

SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK = 16


def drawn_tokens(count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Draw token ids."""
    return np.random.default_rng(0).integers(0, 49000, count).astype(np.int32)


def write(task: dict[str, Any]) -> dict[str, Any]:
    """Write a drawn model in float32 with transformers; return the versions of the peers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(task["model"])
    return {"versions": {name: metadata.version(name) for name in ("torch", "transformers", "peft")}}


def opened_program(task: dict[str, Any], loss: Literal["tokens", "vectors"]) -> TrainingProgram:
    """Return this library's program for a task, with drawn factors at every linear."""
    from lattice_inference.training import open_training_program

    program = open_training_program(
        task["model"],
        sites="all-linear",
        rank=RANK,
        scaling=2.0,
        loss=loss,
        keep=task["keep"],
        activations=task["dtype"],
        threads=task["threads"],
    )
    rng = np.random.default_rng(1)
    for site in program.sites:
        shapes = (RANK, site.inputs), (site.outputs, RANK)
        program.write_factors(site.name, *[(rng.standard_normal(s) * 0.02).astype(np.float32) for s in shapes])
    return program


def lattice(task: dict[str, Any]) -> dict[str, Any]:
    """Time steps with this library: forward, loss and gradients."""
    ids = drawn_tokens(task["tokens"])
    bounds, targets = np.array([0, len(ids)], np.int32), np.roll(ids, -1)
    program = opened_program(task, "tokens")

    def step() -> None:
        program.zero_gradients()
        program.accumulate_tokens(ids, bounds, targets)

    return timed(step, task["steps"])


def peft(task: dict[str, Any]) -> dict[str, Any]:
    """Time the same with PyTorch and PEFT."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(task["threads"])
    base = AutoModelForCausalLM.from_pretrained(task["model"], dtype=getattr(torch, task["dtype"]))
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=LINEARS))
    if task["keep"] == "layers":
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    model.train()
    ids = torch.from_numpy(drawn_tokens(task["tokens"]).astype(np.int64))[None]

    def step() -> None:
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()

    return timed(step, task["steps"])


def lattice_pairs(task: dict[str, Any]) -> dict[str, Any]:
    """Time an encoder's steps with this library: vectors, CoSENT, gradients; packed."""
    from lattice_tune.lora.losses import cosent_loss

    program = opened_program(task, "vectors")
    batches = iter(task["batches"])

    def step() -> None:
        batch = next(batches)
        texts = [ids for column in batch["sentences"] for ids in column]
        bounds = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        ids = np.concatenate(texts).astype(np.int32)
        program.zero_gradients()
        first, second = np.split(program.vectors(ids, bounds), 2)
        _, *gradients, _ = cosent_loss(first, second, np.array(batch["scores"]), 20.0)
        program.accumulate_vectors(ids, bounds, np.concatenate(gradients).astype(np.float32))

    return timed(step, task["steps"])


def peft_pairs(task: dict[str, Any]) -> dict[str, Any]:
    """Time the same with PyTorch and PEFT, padded, without the pooler that vectors do not need."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    torch.set_num_threads(task["threads"])
    base = AutoModel.from_pretrained(task["model"], add_pooling_layer=False, dtype=getattr(torch, task["dtype"]))
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear"))
    model.train()
    batches = iter(task["batches"])

    def vectors(texts: list[list[int]]) -> Any:
        ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = torch.tensor(text), 1
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(pooled, dim=1)

    def step() -> None:
        batch = next(batches)
        model.zero_grad()
        first, second = map(vectors, batch["sentences"])
        cosines, scores = (first * second).sum(1), torch.tensor(batch["scores"])
        terms = 20.0 * (cosines[None, :] - cosines[:, None])[scores[:, None] > scores[None, :]]
        torch.logsumexp(torch.cat([torch.zeros(1), terms]), 0).backward()

    return timed(step, task["steps"])


def timed(step: Callable[[], None], steps: int) -> dict[str, Any]:
    """Return the processor's seconds of steps after a first one, and the peak memory in MB."""
    step()
    seconds = []
    for _ in range(steps):
        before = time.process_time()
        step()
        seconds.append(time.process_time() - before)
    return {"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    given = json.load(sys.stdin)
    engines = (write, lattice, lattice_pairs, peft, peft_pairs)
    print(json.dumps({engine.__name__: engine for engine in engines}[given["engine"]](given)))
