"""Light transformer inference: checkpoints, tokenizers, model programs and CPU kernels.

>>> import lattice_inference
>>> with lattice_inference.load_encoder("sentence-transformers/all-MiniLM-L6-v2") as encoder:
...     encoded = encoder.encode(["A text.", "Another one."])
>>> encoded.vectors.shape
(2, 384)

Names are imported on first use, so importing the package costs next to nothing.
"""

TYPE_CHECKING = False  # typing's, which type checkers know by its name: the package imports nothing ahead
if TYPE_CHECKING:
    from typing import Any

    from lattice_inference._version import __version__
    from lattice_inference.encode.cross_encoder import CrossEncoder, load_cross_encoder
    from lattice_inference.encode.encoder import EncodedTexts, Encoder, load_encoder
    from lattice_inference.errors import (
        BusyError,
        CacheFullError,
        CheckpointError,
        ChecksumError,
        DeviceLostError,
        DeviceMemoryError,
        DeviceUnavailableError,
        DownloadError,
        GrammarError,
        InvalidInputError,
        LatticeError,
        ModelConfigError,
        ModelNotFoundError,
        NonFiniteError,
        TextTooLongError,
        TokenizerError,
        UnsupportedError,
        VectorCacheError,
        WriteError,
    )
    from lattice_inference.files.hub import ModelFiles, find_model
    from lattice_inference.generate.causal_language_model import CausalLanguageModel, Extension, load_model
    from lattice_inference.generate.chat import Chat
    from lattice_inference.generate.compare_logits import LogitComparison, compare_logits
    from lattice_inference.generate.config import GenerateConfig
    from lattice_inference.generate.engine import Engine
    from lattice_inference.generate.engine_config import EngineConfig, EngineStats
    from lattice_inference.generate.engine_request import EngineStream
    from lattice_inference.generate.perplexity import Perplexity, perplexity
    from lattice_inference.generate.result import FinishReason, GenerateResult, StreamPiece
    from lattice_inference.generate.sampler import TokenLogprobs
    from lattice_inference.generate.scheduler import Scheduler
    from lattice_inference.generate.session import Session, SessionConfig
    from lattice_inference.generate.stream import GenerationStream
    from lattice_inference.grammar.reasoning import AfterReasoning
    from lattice_inference.grammar.specification import Choice, Gbnf, JsonSchema, Lark, Regex
    from lattice_inference.lora.adapter import LoraAdapter
    from lattice_inference.lora.loading import load_adapter_file
    from lattice_inference.lora.merging import MergeReport, merge_adapter
    from lattice_inference.memory.use import MemoryReport, memory_report
    from lattice_inference.runtime import NUMERICS_VERSION, cpu_info, get_num_threads, set_num_threads
    from lattice_inference.state import CachedSequence, KvCache
    from lattice_inference.tokenizer import Encoding, Tokenizer, load_tokenizer
    from lattice_inference.tokenizer.chat_template import ChatTemplate
    from lattice_inference.tokenizer.chat_template_file import load_chat_template
    from lattice_inference.tools.calls import ToolCall, ToolCallDelta
    from lattice_inference.tools.stream import ToolStream
    from lattice_inference.vector_cache import VectorCache

__all__ = [
    "load_encoder",
    "Encoder",
    "EncodedTexts",
    "load_cross_encoder",
    "CrossEncoder",
    "load_model",
    "CausalLanguageModel",
    "Extension",
    "KvCache",
    "CachedSequence",
    "Session",
    "SessionConfig",
    "GenerateConfig",
    "GenerateResult",
    "FinishReason",
    "StreamPiece",
    "GenerationStream",
    "TokenLogprobs",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "EngineStream",
    "Scheduler",
    "JsonSchema",
    "Regex",
    "Gbnf",
    "Lark",
    "Choice",
    "AfterReasoning",
    "Chat",
    "ToolCall",
    "ToolCallDelta",
    "ToolStream",
    "ChatTemplate",
    "load_chat_template",
    "perplexity",
    "Perplexity",
    "compare_logits",
    "LogitComparison",
    "load_adapter_file",
    "LoraAdapter",
    "merge_adapter",
    "MergeReport",
    "memory_report",
    "MemoryReport",
    "load_tokenizer",
    "Tokenizer",
    "Encoding",
    "find_model",
    "ModelFiles",
    "set_num_threads",
    "get_num_threads",
    "cpu_info",
    "NUMERICS_VERSION",
    "VectorCache",
    "LatticeError",
    "BusyError",
    "CacheFullError",
    "CheckpointError",
    "ChecksumError",
    "DeviceLostError",
    "DeviceMemoryError",
    "DeviceUnavailableError",
    "DownloadError",
    "GrammarError",
    "InvalidInputError",
    "ModelConfigError",
    "ModelNotFoundError",
    "NonFiniteError",
    "TextTooLongError",
    "TokenizerError",
    "UnsupportedError",
    "VectorCacheError",
    "WriteError",
    "__version__",
]

_HOMES = {
    "load_encoder": "encode.encoder",
    "Encoder": "encode.encoder",
    "EncodedTexts": "encode.encoder",
    "load_cross_encoder": "encode.cross_encoder",
    "CrossEncoder": "encode.cross_encoder",
    "load_model": "generate.causal_language_model",
    "CausalLanguageModel": "generate.causal_language_model",
    "Extension": "generate.causal_language_model",
    "KvCache": "state",
    "CachedSequence": "state",
    "Session": "generate.session",
    "SessionConfig": "generate.session",
    "GenerateConfig": "generate.config",
    "GenerateResult": "generate.result",
    "FinishReason": "generate.result",
    "StreamPiece": "generate.result",
    "GenerationStream": "generate.stream",
    "TokenLogprobs": "generate.sampler",
    "AfterReasoning": "grammar.reasoning",
    "ToolCall": "tools.calls",
    "ToolCallDelta": "tools.calls",
    "ToolStream": "tools.stream",
    "Engine": "generate.engine",
    "EngineConfig": "generate.engine_config",
    "EngineStats": "generate.engine_config",
    "EngineStream": "generate.engine_request",
    "Scheduler": "generate.scheduler",
    "JsonSchema": "grammar.specification",
    "Regex": "grammar.specification",
    "Gbnf": "grammar.specification",
    "Lark": "grammar.specification",
    "Choice": "grammar.specification",
    "Chat": "generate.chat",
    "ChatTemplate": "tokenizer.chat_template",
    "load_chat_template": "tokenizer.chat_template_file",
    "perplexity": "generate.perplexity",
    "Perplexity": "generate.perplexity",
    "compare_logits": "generate.compare_logits",
    "LogitComparison": "generate.compare_logits",
    "load_adapter_file": "lora.loading",
    "LoraAdapter": "lora.adapter",
    "merge_adapter": "lora.merging",
    "MergeReport": "lora.merging",
    "memory_report": "memory.use",
    "MemoryReport": "memory.use",
    "load_tokenizer": "tokenizer",
    "Tokenizer": "tokenizer",
    "Encoding": "tokenizer",
    "find_model": "files.hub",
    "ModelFiles": "files.hub",
    "set_num_threads": "runtime",
    "get_num_threads": "runtime",
    "cpu_info": "runtime",
    "NUMERICS_VERSION": "runtime",
    "VectorCache": "vector_cache",
    "BusyError": "errors",
    "CacheFullError": "errors",
    "CheckpointError": "errors",
    "ChecksumError": "errors",
    "DeviceLostError": "errors",
    "DeviceMemoryError": "errors",
    "DeviceUnavailableError": "errors",
    "DownloadError": "errors",
    "GrammarError": "errors",
    "InvalidInputError": "errors",
    "LatticeError": "errors",
    "ModelConfigError": "errors",
    "ModelNotFoundError": "errors",
    "NonFiniteError": "errors",
    "TextTooLongError": "errors",
    "TokenizerError": "errors",
    "UnsupportedError": "errors",
    "VectorCacheError": "errors",
    "WriteError": "errors",
    "__version__": "_version",
}


def __getattr__(name: str) -> "Any":
    import importlib

    if name == "errors":
        return importlib.import_module(f"{__name__}.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
