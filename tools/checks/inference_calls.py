"""Valid calls of lattice_inference's public callables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import lattice_inference
from lattice_inference.lora import LoraSite, save_peft_safetensors

from .call_registry import Call, call, calls

_text = {"text": "a text"}


def encoder() -> lattice_inference.Encoder:
    """Return a small encoder."""
    return lattice_inference.load_encoder("encoder")


def tokenizer() -> lattice_inference.Tokenizer:
    """Return the tokenizer of the small decoder."""
    return lattice_inference.load_tokenizer("decoder")


def decoder() -> lattice_inference.CausalLanguageModel:
    """Return a small decoder."""
    return lattice_inference.load_model("decoder")


def session() -> lattice_inference.Session:
    """Return a session of the small decoder."""
    return lattice_inference.Session(decoder())


def started_session() -> lattice_inference.Session:
    """Return a session that has a text."""
    started = session()
    started.generate("a", _short())
    return started


def reranker() -> lattice_inference.CrossEncoder:
    """Return a small cross-encoder."""
    return lattice_inference.load_cross_encoder("reranker")


def adapter() -> lattice_inference.LoraAdapter:
    """Return the adapter of the small decoder."""
    return lattice_inference.load_adapter_file("adapter")


def adapted(model: Any) -> Any:
    """Return a loaded model with an adapter ``mine``."""
    model.attach_adapter(adapter_of(model), "mine")
    return model


def adapter_of(model: Any) -> lattice_inference.LoraAdapter:
    """Return an adapter of one linear of a loaded model."""
    name, (outputs, inputs) = next(iter(model.adapter_sites.items()))
    site = LoraSite(np.ones((1, inputs), np.float32), np.ones((outputs, 1), np.float32), 0.1)
    return lattice_inference.LoraAdapter({name: site})


def _short() -> lattice_inference.GenerateConfig:
    return lattice_inference.GenerateConfig(max_new_tokens=2, seed=1)


def _cache() -> lattice_inference.KvCache:
    return decoder().open_cache(tokens=64)


_model = {"model": decoder}
calls(
    "lattice_inference",
    lambda: lattice_inference,
    {
        "load_encoder": {"path_or_name": "encoder"},
        "load_cross_encoder": {"path_or_name": "reranker"},
        "load_model": {"path_or_name": "decoder"},
        "load_tokenizer": {"path": "decoder"},
        "load_chat_template": {"path": "decoder"},
        "Session": _model,
        "SessionConfig": {},
        "GenerateConfig": {},
        "JsonSchema": {"schema": {"type": "integer"}},
        "Regex": {"pattern": "[a-z]+"},
        "Gbnf": {"text": 'root ::= "a"'},
        "Lark": {"text": 'start: "a"'},
        "Choice": {"texts": ["yes", "no"]},
        "AfterReasoning": {"grammar": lattice_inference.Choice(["yes", "no"])},
        "ChatTemplate": {"source": "{{ messages[0].content }}"},
        "Chat": {"session": session},
        "perplexity": _model | {"text": "a text that is long enough", "window": 8, "stride": 4},
        "compare_logits": {"reference": decoder}
        | _model
        | {"text": "a text that is long enough", "window": 8, "stride": 4},
        "memory_report": _model,
        "load_adapter_file": {"path": "adapter"},
        "LoraAdapter": {"sites": lambda: dict(adapter().sites)},
        "merge_adapter": {"base": "decoder", "adapter": adapter, "output": "out-merged", "overwrite": True},
        "find_model": {"name": "./encoder"},
        "set_num_threads": {"threads": 1},
        "VectorCache": {"folder": "vector-cache"},
    },
)
calls(
    "lattice_inference.Encoder",
    encoder,
    {
        "encode": {"texts": ["a text"]},
        "count_tokens": {"texts": ["a text"]},
        "packed_tokens": {"texts": ["a text"]},
        "encode_tokens": {"token_ids": [[1, 2]]},
        "token_vectors": {"texts": ["a text"]},
        "token_offsets": _text,
    },
)


def _adapter_calls(name: str, make: Callable[[], Any]) -> None:
    def own() -> lattice_inference.LoraAdapter:
        return adapter_of(make())

    def directory() -> str:
        return str(save_peft_safetensors(own(), f"out-adapter-{name}", overwrite=True))

    calls(
        f"lattice_inference.{name}",
        lambda: adapted(make()),
        {
            "load_adapter": {"path": directory},
            "attach_adapter": {"adapter": own, "name": "other"},
            "remove_adapter": {"name": "mine"},
            "fingerprint_with": {"adapter": "mine"},
        },
    )


_adapter_calls("Encoder", encoder)
_adapter_calls("CrossEncoder", reranker)
_adapter_calls("CausalLanguageModel", decoder)
calls(
    "lattice_inference.CrossEncoder",
    reranker,
    {
        "score": {"query": "a", "documents": ["a text"]},
        "score_pairs": {"pairs": [("a", "b")]},
        "count_tokens": {"pairs": [("a", "b")]},
        "packed_tokens": {"pairs": [("a", "b")]},
    },
)
calls(
    "lattice_inference.CausalLanguageModel",
    decoder,
    {"open_cache": {"tokens": 32}},
)


@call("lattice_inference.CausalLanguageModel.forward")
def _forward() -> Call:
    model = decoder()
    cache = model.open_cache(tokens=32)
    return model.forward, {"extensions": [lattice_inference.Extension(cache.start([1, 2]), [1, 2])]}


calls("lattice_inference.KvCache", _cache, {"start": {"token_ids": [1, 2]}, "sequence": {}, "forget": {"pages": 1}})


@call("lattice_inference.KvCache.remember")
def _remember() -> Call:
    cache = _cache()
    return cache.remember, {"sequence": cache.start([1])}


@call("lattice_inference.KvCache.save")
def _save() -> Call:
    model = decoder()
    cache = model.open_cache(tokens=32)
    sequence = cache.start([1, 2])
    model.forward([lattice_inference.Extension(sequence, [1, 2])])
    return cache.save, {"path": "out-cache", "sequence": sequence}


@call("lattice_inference.KvCache.restore")
def _restore() -> Call:
    save, given = _save()
    save(**given)
    return _cache().restore, {"path": "out-cache"}


def _sequence() -> lattice_inference.CachedSequence:
    return _cache().start([1, 2])


calls("lattice_inference.CachedSequence", _sequence, {"extend": {"token_ids": [1, 2]}, "rewind": {"length": 0}})


class _Room:
    """Room for a scheduler's plans, of which nothing is taken."""

    page_tokens, pages, free_pages, forgettable_pages, free_slots = 16, 8, 8, 0, None

    def start(self, name: object) -> int:
        return 0

    def pages_for(self, name: object, tokens: int) -> int:
        return -(-tokens // 16)

    def forget(self, pages: int) -> None:
        pass

    def release(self, name: object) -> None:
        pass


def _scheduler() -> lattice_inference.Scheduler:
    scheduler = lattice_inference.Scheduler(_Room(), step_tokens=8)
    scheduler.submit("a", 5, 5, now=0.0)
    return scheduler


calls(
    "lattice_inference",
    lambda: lattice_inference,
    {"Scheduler": {"room": _Room, "step_tokens": 8, "step_ms": 50.0}},
)
calls(
    "lattice_inference.Scheduler",
    _scheduler,
    {
        "submit": {"name": "b", "prompt_tokens": 5, "new_tokens": 5, "now": 0.0, "key": "k", "priority": 0},
        "finish": {"name": "a"},
        "park": {"name": "a"},
        "unpark": {"name": "a"},
        "begin": {"name": "a"},
        "is_running": {"name": "a"},
        "plan": {"drafts": lambda: {"a": 2}},
        "complete": {"step": lambda: _scheduler().plan(), "seconds": 0.1, "lengths": lambda: {"a": (5, 1)}},
    },
)


@functools.cache  # each has a thread
def _engine(use: str = "submit") -> lattice_inference.Engine:
    return lattice_inference.Engine(decoder(), lattice_inference.EngineConfig(max_tokens=32))


calls(
    "lattice_inference",
    lambda: lattice_inference,
    {
        "Engine": {"model": decoder, "config": lambda: lattice_inference.EngineConfig(max_tokens=32)},
        "EngineConfig": {"cache_tokens": 32, "step_ms": 50.0, "stall_timeout": 1.0},
    },
)
calls(
    "lattice_inference.Engine",
    _engine,
    {
        "submit": {"prompt": "a", "config": _short, "priority": 1, "deadline": 9.0, "key": "k"},
        "submit_choices": {"prompt": "a", "n": 2, "config": _short, "priority": 1, "deadline": 9.0, "key": "k"},
    },
)
calls("lattice_inference.Engine", lambda: _engine("between_steps"), {"between_steps": {"function": dict}})
calls("lattice_inference.Engine", lambda: _engine("drain"), {"drain": {"timeout": 0.0}})


def _chat() -> lattice_inference.Chat:
    chat = lattice_inference.Chat(session(), config=_short())
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat.messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [call]}]
    return chat


calls(
    "lattice_inference.Session",
    started_session,
    {
        "generate": {"prompt": "a", "config": _short},
        "extend": {"text": "a", "config": _short},
        "stream": {"prompt": "a", "config": _short},
        "generate_batch": {"prompts": ["a"], "config": _short},
        "rewind": {"length": 0},
    },
)
calls(
    "lattice_inference.Chat",
    _chat,
    {
        "send": _text,
        "stream": _text,
        "send_tool_results": {"results": {"a": "text"}},
        "stream_tool_results": {"results": {"a": "text"}},
    },
)
calls(
    "lattice_inference.AfterReasoning",
    lambda: lattice_inference.AfterReasoning(lattice_inference.Choice(["yes"])),
    {"engine_grammar": {"special_ids": {"<think>": 1}}},
)
calls(
    "lattice_inference.GenerateConfig",
    lattice_inference.GenerateConfig,
    {"greedy": {}, "filled_from": {"other": lattice_inference.GenerateConfig()}, "resolve": {}},
)
calls(
    "lattice_inference.ChatTemplate",
    lambda: lattice_inference.ChatTemplate("{{ messages[0].content }}"),
    {name: {"messages": [{"role": "user", "content": "a"}]} for name in ("render", "render_answers", "render_marked")},
)
calls(
    "lattice_inference.Tokenizer",
    tokenizer,
    {
        "encode": _text,
        "encode_batch": {"texts": ["a"]},
        "encode_packed": {"texts": ["a"]},
        "decode": {"ids": [65]},
        "count": _text,
        "stream": {},
        "token_of": {"token_id": 65, "skip_special_tokens": True},
        "id_to_token": {"token_id": 65},
        "token_to_id": {"token": "a"},
        "special_token_count": {},
    },
)
calls(
    "lattice_inference.Encoding",
    lambda: tokenizer().encode("a"),
    {"padded": {"length": 8, "left": False, "token_id": 0, "type_id": 0}},
)
calls(
    "lattice_inference.VectorCache",
    lambda: lattice_inference.VectorCache("vector-cache"),
    {
        "get_many": {"keys": [b"k" * 32]},
        "look_up": {"keys": [b"k" * 32]},
        "put_many": {"entries": [(b"k" * 32, b"abcd")], "space": "s"},
        "clear": {},
    },
)
calls("lattice_inference.LoraAdapter", lambda: lattice_inference.LoraAdapter, {"load": {"path": "adapter"}})
calls(
    "lattice_inference.LoraAdapter",
    adapter,
    {
        "factors": {"site": "model.layers.0.self_attn.q_proj"},
        "validate_against": {"linears": lambda: dict(decoder().adapter_sites)},
    },
)
