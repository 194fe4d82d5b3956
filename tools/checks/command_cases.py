"""One valid call of every command of the five command lines, and a folder of their inputs."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qwen3_files
from lattice_embed.stores import StoredDocument, create_store
from lattice_fann import Activation, NetworkBuilder
from lattice_inference import LoraAdapter, load_encoder
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.lora import LoraSite, save_peft_safetensors
from lattice_tune import Dataset, EncoderRecord, LabelSet, ModelRegistry, StudentModel
from tiny_decoders import write_drawn_model

from .conftest import ROOT

__all__ = [
    "CASES",
    "PROGRAMS",
    "command_names",
    "expected_status",
    "remove_results",
    "run_command_line",
    "write_command_folder",
]

#: The package of each program.
PROGRAMS = {
    "lattice": "lattice_inference",
    "lattice-embed": "lattice_embed",
    "lattice-fann": "lattice_fann",
    "lattice-transport": "lattice_transport",
    "lattice-tune": "lattice_tune",
}

_SHORT = ["--model", "decoder", "--max-tokens", "3", "--seed", "1"]
_WINDOWS = ["--model", "decoder", "--window", "16", "--stride", "8", "texts.txt"]
_LABELS = ["texts.txt", "--labels", "a,b", "--store", "out-labels.db"]
_STUDENT = ["--model", "encoder", "--epochs", "2", "--hidden", "4", "--output", "out.safetensors"]
_BENCH = ["--model", "decoder", "--prompt-tokens", "4", "--generate-tokens", "8", "--repeat", "1"]

#: Program, command and arguments of calls in the folder of :func:`write_command_folder`. They end with status 0, but for a
#: download, which has no connection.
CASES: dict[tuple[str, str], list[str]] = {
    ("lattice", "generate"): [*_SHORT, "a prompt"],
    ("lattice", "chat"): [*_SHORT, "a message"],
    ("lattice", "serve"): ["--model", "small=decoder", "--embedding", "vectors=encoder", "--port", "0", "--check"],
    ("lattice", "perplexity"): _WINDOWS,
    ("lattice", "compare-logits"): [*_WINDOWS, "--other-precision", "int8"],
    ("lattice", "bench"): _BENCH,
    ("lattice", "inspect"): ["decoder"],
    ("lattice", "quantize"): ["encoder", "out", "--precision", "int8"],
    ("lattice", "merge-adapter"): ["decoder", "adapter", "--output", "out-merged"],
    ("lattice", "tokenize"): ["--model", "decoder", "a text"],
    ("lattice", "detokenize"): ["--model", "decoder", "65", "66"],
    ("lattice", "doctor"): ["decoder"],
    ("lattice", "completion"): ["bash"],
    ("lattice-embed", "embed"): ["--model", "encoder", "--output", "out.npy", "a text"],
    ("lattice-embed", "similarity"): ["--model", "encoder", "a text", "another"],
    ("lattice-embed", "search"): ["vectors.npy", "a text", "--texts", "texts.txt", "--model", "encoder"],
    ("lattice-embed", "compare"): ["encoder", "encoder", "--input", "texts.txt", "--top", "1"],
    ("lattice-embed", "rerank"): ["--model", "ranker", "a query", "a text", "another"],
    ("lattice-embed", "serve"): ["--model", "encoder", "--reranker", "ranker", "--port", "0", "--check"],
    ("lattice-embed", "models"): [],
    ("lattice-embed", "download"): ["no/such-model"],
    ("lattice-embed", "cache"): ["stats", "--cache-folder", "cache"],
    ("lattice-embed", "store"): ["import", "out.db", "--input", "texts.txt"],
    ("lattice-embed", "backfill"): ["--from-store", "old.db", "--to-store", "out-new.db", "--model", "./encoder"],
    ("lattice-embed", "check-drift"): ["--update-baseline", "--model", "encoder", "--input", "texts.txt", "out.json"],
    ("lattice-embed", "doctor"): [],
    ("lattice-embed", "completion"): ["zsh"],
    ("lattice-tune", "lora"): [
        *("train", "pairs.jsonl", "--model", "decoder", "--output", "out-adapter", "--rank", "1", "--epochs", "1"),
        *("--max-tokens", "16"),
    ],
    ("lattice-fann", "train"): ["table.csv", "--target", "y", "--epochs", "2", "--output", "out.fann"],
    ("lattice-fann", "predict"): ["network.fann", "inputs.csv", "--output", "out.csv"],
    ("lattice-fann", "info"): ["network.fann"],
    ("lattice-fann", "bench"): ["network.fann", "--seconds", "0.01"],
    ("lattice-fann", "completion"): ["fish"],
    ("lattice-transport", "distance"): ["a.npy", "b.npy", "--method", "emd", "--plan", "out.npy"],
    ("lattice-transport", "drift"): ["a.npy", "b.npy", "--permutations", "19"],
    ("lattice-transport", "barycenter"): ["a.npy", "b.npy", "--points", "3", "--epsilon", "0.5", "--output", "out.npy"],
    ("lattice-transport", "completion"): ["bash"],
    ("lattice-tune", "registry"): ["export", "intent", "1.0.0", "out.zip", "--registry", "registry"],
    ("lattice-tune", "label"): [*_LABELS, "--teacher", "encoder:./encoder", "--output", "out.jsonl"],
    ("lattice-tune", "distill"): ["questions.txt", "--labels", "no,yes", "--teacher", "labelled.jsonl", *_STUDENT],
    ("lattice-tune", "train"): ["labelled.jsonl", *_STUDENT],
    ("lattice-tune", "eval"): ["student.safetensors", "labelled.jsonl", "--model", "encoder"],
    ("lattice-tune", "predict"): ["student.safetensors", "a text", "--model", "encoder"],
    ("lattice-tune", "dataset"): ["dedup", "labelled.jsonl", "--output", "out.jsonl"],
    ("lattice-tune", "doctor"): [],
    ("lattice-tune", "completion"): ["bash"],
}


def command_names(package: str) -> list[str]:
    """Return the names of the commands that the parser of ``package`` knows."""
    parser: argparse.ArgumentParser = importlib.import_module(f"{package}.cli.parser").build_parser()
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return list(commands.choices)


def write_command_folder(folder: Path) -> Path:
    """Write the files that :data:`CASES` read into ``folder``."""
    write_drawn_model(folder / "decoder", context=64)
    _write_adapter(folder)
    write_drawn_model(folder / "long-decoder", context=1024)
    shutil.copytree(ROOT / "packages" / "lattice-inference" / "tests" / "data" / "tiny_bert", folder / "encoder")
    qwen3_files.write(folder / "ranker", qwen3_files.reranker_files(qwen3_files.small_tokenizer(ends=False)))
    (folder / "pairs.jsonl").write_text('{"prompt": "a", "completion": "b"}\n', encoding="utf-8")
    (folder / "texts.txt").write_text("a text\nanother text\n" * 8, encoding="utf-8")
    with create_store(folder / "old.db") as store:
        store.put([StoredDocument.pending("1", "a text")])
    random = np.random.RandomState(0)
    for name in ("a", "b"):
        np.save(folder / f"{name}.npy", random.standard_normal((12, 3)))
    rows = random.standard_normal((24, 2)).round(3).tolist()
    (folder / "inputs.csv").write_text("p,q\n" + "".join(f"{p},{q}\n" for p, q in rows), encoding="utf-8")
    table = "p,q,y\n" + "".join(f"{p},{q},{'no' if p < q else 'yes'}\n" for p, q in rows)
    (folder / "table.csv").write_text(table, encoding="utf-8")
    NetworkBuilder().input(2).output(2, Activation.SOFTMAX).build(seed=0).save(folder / "network.fann")
    with ModelRegistry(folder / "registry") as registry:
        registry.register("intent", "1.0.0", folder / "network.fann", kind="student")
    _write_student(folder)
    return folder


def _write_adapter(folder: Path) -> None:
    """Write an adapter of the small decoder."""
    name = "model.layers.0.self_attn.q_proj"
    with open_checkpoint(folder / "decoder") as checkpoint:
        outputs, inputs = checkpoint.info(f"{name}.weight").shape
    site = LoraSite(np.full((1, inputs), 0.01, np.float32), np.ones((outputs, 1), np.float32), 1.0)
    save_peft_safetensors(LoraAdapter({name: site}), folder / "adapter")


def _write_student(folder: Path) -> None:
    questions = [f"{'is it' if i % 2 else 'there is'} number {i}" for i in range(40)]
    (folder / "questions.txt").write_text("\n".join(questions) + "\n", encoding="utf-8")
    labelled = Dataset([(text, "yes" if i % 2 else "no") for i, text in enumerate(questions)])
    labelled.write_jsonl(folder / "labelled.jsonl")
    with load_encoder(folder / "encoder") as encoder:
        np.save(folder / "vectors.npy", encoder.encode((folder / "texts.txt").read_text().splitlines()).vectors)
        network = NetworkBuilder().input(encoder.dimension).output(2, Activation.SOFTMAX).build(seed=0)
        record = EncoderRecord(fingerprint=encoder.fingerprint, source="encoder", dimension=encoder.dimension)
    StudentModel(network, LabelSet(["no", "yes"]), record).save(folder / "student.safetensors")


def run_command_line(
    program: str, arguments: Sequence[str], folder: Path, *, redirections: str = "", **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run ``program`` as a process in ``folder``.

    A shell applies ``redirections`` such as ``>&-``.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LATTICE_", "PYTHONUNBUFFERED"))
    }
    environment |= {
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "LATTICE_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "LATTICE_NUM_THREADS": "1",
        **options.pop("environment", {}),
    }
    command = [sys.executable, "-m", PROGRAMS[program], *arguments]
    if redirections:
        command = ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", *command]
    settings: dict[str, Any] = {"capture_output": True, "timeout": 60, "check": False, "stdin": subprocess.DEVNULL}
    return subprocess.run(command, cwd=folder, env=environment, **(settings | options))


def expected_status(program: str, command: str) -> int:
    """Return the status that a case ends with."""
    return 1 if (program, command) == ("lattice-embed", "download") else 0


def remove_results(folder: Path) -> list[str]:
    """Remove the files that a call has written, and return their names."""
    found = sorted(folder.glob("out*"))
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [path.name for path in found]
