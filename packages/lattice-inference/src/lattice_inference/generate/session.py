"""A session: one growing context of a model, and the operations on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from lattice_inference.argument_checks import check_integer, checked_flag
from lattice_inference.errors import BusyError, InvalidInputError
from lattice_inference.generate.common_steps import CommonSteps
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.generation import Generation
from lattice_inference.generate.preparation import Preparation, Prompt
from lattice_inference.generate.result import GenerateResult
from lattice_inference.generate.session_drafts import SessionDrafts
from lattice_inference.generate.stream import GenerationStream, Steps
from lattice_inference.text_lists import check_text_list
from lattice_inference.token_ids import as_token_id
from lattice_inference.turn import Turn
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from types import TracebackType

    from lattice_inference.generate.causal_language_model import CacheType, CausalLanguageModel
    from lattice_inference.lora.attached_adapter import AttachedAdapter
    from lattice_inference.state import CachedSequence, KvCache
    from lattice_inference.tokenizer import Tokenizer
    from lattice_inference.tokenizer.chat_template import ChatTemplate

__all__ = ["Cancelled", "Prompt", "Session", "SessionConfig"]

Cancelled = threading.Event | Callable[[], bool]
"""What ends a generation early: an event that is set, or a function that returns true.

It is checked before every step.
"""

MOST_CHUNK = 2**20

BATCH_STEP_MS = 1e9
"""No reader waits between the steps of a batch, so they may take any time."""

CLOSED = "this session is closed: make another one"


@dataclass(frozen=True)
class SessionConfig:
    """The configuration of a session.

    Attributes:
        max_tokens: the longest context, prompt and generated tokens together; by default the model's context length.
        chunk_tokens: the most prompt tokens of a step; a cancellation is checked between steps. 1 to 2**20.
        cache_tokens: the most tokens in the cache, over all sequences of a batch and all forks; by default ``max_tokens``.
            Memory is allocated as tokens arrive.
        cache_dtype: the type of the cached keys and values.
        page_tokens: the number of tokens in a page of the cache.
        prefix_bytes: the most bytes of remembered prompts. A prompt with a remembered prefix runs only its other tokens.
        use_model_config: whether the model's own generation_config.json sets the fields that a :class:`GenerateConfig`
            does not.
        special_tokens_in_text: whether the spelling of a special token in a prompt becomes that token; a call may override
            it. A :class:`Chat` has its own setting.

    Raises:
        InvalidInputError: a value out of its range.
    """

    max_tokens: int | None = None
    chunk_tokens: int = 512
    cache_tokens: int | None = None
    cache_dtype: CacheType = "float16"
    page_tokens: Literal[16, 32, 64] = 32
    prefix_bytes: int = 0
    use_model_config: bool = True
    special_tokens_in_text: bool = True

    def __post_init__(self) -> None:
        checked_flag("special_tokens_in_text", self.special_tokens_in_text)
        check_integer("max_tokens", self.max_tokens, 1, 2**31)
        check_integer("chunk_tokens", self.chunk_tokens, 1, MOST_CHUNK)
        check_integer("cache_tokens", self.cache_tokens, 1, 2**40)
        if self.chunk_tokens is None:
            raise InvalidInputError(f"chunk_tokens is None; expected an integer from 1 to {MOST_CHUNK:,}")
        checked_flag("use_model_config", self.use_model_config)


class Session:
    """One context of a model: a prompt and its generated tokens, with cached keys and values.

    >>> session = Session(model)                                                          # doctest: +SKIP
    >>> session.generate("The capital of France is", GenerateConfig.greedy(20)).text      # doctest: +SKIP
    >>> for piece in session.stream("Once upon a time"):                                  # doctest: +SKIP
    ...     print(piece.text, end="", flush=True)

    A session is for one call at a time. A second call at the same time, or one while a stream is open, raises
    :class:`BusyError` and changes nothing. Several sessions of one model, and forks, may run in parallel. A context
    manager; :meth:`close` frees the cache. The last token of a generation is run only when another token follows it.

    Args:
        model: made by :func:`load_model`.
        tokenizer: by default the model's own. Without a tokenizer the session takes and returns token ids only, and the
            texts of its results are empty.
        config: see :class:`SessionConfig`.
        adapter: the name of one of ``model.adapters``, for all that the session runs. The session keeps the adapter even if
            the name is given to another one later.

    Raises:
        InvalidInputError: the configuration does not fit the model, or the model has no such adapter.
        UnsupportedError: the model's generation_config.json demands something that is not supported.

    Attributes:
        model: the model.
        tokenizer: the tokenizer, or ``None``.
        config: the session's configuration.
        max_tokens: the longest context.
        adapter: the adapter that the session runs with, or ``None``.
    """

    def __init__(
        self,
        model: CausalLanguageModel,
        tokenizer: Tokenizer | None = None,
        config: SessionConfig | None = None,
        *,
        adapter: str | None = None,
    ) -> None:
        if config is not None and not isinstance(config, SessionConfig):
            raise InvalidInputError(f"config is {value_text(config)}; expected a SessionConfig, or None")
        self.model = model
        self.config: SessionConfig
        self.config = config = SessionConfig() if config is None else config
        self._prepare = Preparation(
            model,
            tokenizer,
            max_tokens=config.max_tokens,
            use_model_config=config.use_model_config,
            special_tokens_in_text=config.special_tokens_in_text,
        )
        self.tokenizer: Tokenizer | None = self._prepare.tokenizer
        self.max_tokens: int = self._prepare.max_tokens
        self._cache: KvCache = model.open_cache(
            tokens=max(config.cache_tokens or 0, self.max_tokens),
            dtype=config.cache_dtype,
            page_tokens=config.page_tokens,
            prefix_bytes=config.prefix_bytes,
        )
        self._owns_cache = True
        self._sequence: CachedSequence = self._cache.sequence(adapter=adapter)
        self.adapter: AttachedAdapter | None = self._sequence.adapter
        self._pending: list[int] = []
        self._running: Steps | None = None
        self._drafts = SessionDrafts(model, self.tokenizer, self._prepare.vocab_size)
        self._turn = _turn()
        self._is_closed = False

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own chat template, read on first use, or ``None``."""
        return self.model.chat_template

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The tokens that end a text, from the model's files, the tokenizer and the chat template.

        The template is rendered on the first use of this property, not when the model is loaded.
        """
        return self._prepare.stop_token_ids

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The context: prompts, generated tokens and stop tokens, an open stream's included."""
        with self._turn:
            return self._context()

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys, values and recurrent state in this session's cache, forks included."""
        return self._cache.used_bytes

    @property
    def cache_token_bytes(self) -> int:
        """Bytes of keys and values that one token takes."""
        return self._cache.storage.page_bytes // self._cache.page_tokens

    def generate(
        self,
        prompt: Prompt,
        config: GenerateConfig | None = None,
        *,
        cancelled: Cancelled | None = None,
        special_tokens_in_text: bool | None = None,
    ) -> GenerateResult:
        """Begin a new context with ``prompt`` and generate.

        A prefix that it shares with the present context is not run again.

        Args:
            prompt: a text, or token ids.
            config: how to generate; see :class:`GenerateConfig`.
            cancelled: what ends the generation early.
            special_tokens_in_text: whether the spelling of a special token in the text becomes that token; by default as
                in the session's configuration.

        Raises:
            InvalidInputError: the prompt has no tokens, or an argument is malformed.
            TextTooLongError: the prompt does not fit into the context.
            NonFiniteError: the model computed NaN or infinity.
            BusyError: another call of this session runs, or a stream of it is open.
        """
        return self.stream(prompt, config, cancelled=cancelled, special_tokens_in_text=special_tokens_in_text).finish()

    def extend(
        self,
        text: Prompt,
        config: GenerateConfig | None = None,
        *,
        cancelled: Cancelled | None = None,
        special_tokens_in_text: bool | None = None,
    ) -> GenerateResult:
        """Append ``text`` to the present context and generate.

        ``max_new_tokens=0`` only appends it. No special tokens are added around it; write those that it needs in the text.
        It raises the errors of :meth:`generate`.
        """
        return self.stream(
            text, config, extend=True, cancelled=cancelled, special_tokens_in_text=special_tokens_in_text
        ).finish()

    def stream(
        self,
        prompt: Prompt,
        config: GenerateConfig | None = None,
        *,
        extend: bool = False,
        cancelled: Cancelled | None = None,
        continues: bool | None = None,
        special_tokens_in_text: bool | None = None,
    ) -> GenerationStream:
        """Generate piece by piece; iterate over the result with ``for`` or ``async for``.

        It raises the errors of :meth:`generate`.

        Args:
            prompt: a text, or token ids.
            config: how to generate.
            extend: append the prompt to the present context, as :meth:`extend` does.
            cancelled: what ends the generation early. Leaving the loop and ``stream.close()`` end it too.
            continues: whether the text continues the prompt's text, so that a leading blank is kept. By default it does,
                unless the prompt ends with a special token.
            special_tokens_in_text: as in :meth:`generate`.
        """
        extend = checked_flag("extend", extend)
        continues = None if continues is None else checked_flag("continues", continues)
        with self._turn:
            self._settle()
            before = self._context() if extend else ()
            ids = self._prepare.prompt_ids(prompt, not before, special_tokens_in_text)
            context = [*before, *ids]
            resolved = self._prepare.resolve(config)
            self._prepare.check_context(context, resolved)
            speculation = self._drafts.begin(resolved, context, self.max_tokens)
            self._move_to(context)
            if speculation is not None:
                self._drafts.watch(self._sequence)
            generation = Generation(
                self._sequence,
                self._pending,
                resolved,
                self.tokenizer,
                vocab_size=self._prepare.vocab_size,
                most_tokens=self.max_tokens,
                continues=self._prepare.continues(context, resolved) if continues is None else continues,
                cancelled=_as_function(cancelled),
                constraint=self._prepare.constraint(resolved),
                speculation=speculation,
            )
            self._running = Steps(self.model, generation, self.config.chunk_tokens)
            return GenerationStream(self._running)

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        config: GenerateConfig | Sequence[GenerateConfig] | None = None,
        *,
        cancelled: Cancelled | None = None,
        special_tokens_in_text: bool | None = None,
        adapter: Sequence[str | None] | None = None,
    ) -> list[GenerateResult]:
        """Generate for several prompts together.

        Each result equals that of :meth:`generate` for its prompt alone. The session's own context stays as it is. What
        prompts have in common at their beginnings is run once. Prompts that do not fit into the cache together wait, or are
        run again.

        Args:
            prompts: texts or token ids.
            config: how to generate: one configuration for all prompts, or a list with one for each.
            cancelled: what ends all of them early.
            special_tokens_in_text: as in :meth:`generate`.
            adapter: a list with the name of one of ``model.adapters``, or None, for each prompt. By default all prompts use
                the session's adapter.

        Raises:
            InvalidInputError, TextTooLongError, NonFiniteError, BusyError: as :meth:`generate` raises them; no results are
                returned then.
        """
        prompts = list(check_text_list(prompts, "prompts", "prompts"))
        configs = list(config) if isinstance(config, Sequence) else [config] * len(prompts)
        if len(configs) != len(prompts):
            raise InvalidInputError(f"there are {len(prompts)} prompts and {len(configs)} configurations")
        with self._turn:
            adapters = self._adapters_of(adapter, len(prompts))
            return self._generate_batch(prompts, configs, adapters, _as_function(cancelled), special_tokens_in_text)

    def _adapters_of(self, names: Sequence[str | None] | None, count: int) -> list[AttachedAdapter | None]:
        """Return the adapter of each prompt of a batch."""
        if names is None:
            return [self.adapter] * count
        if isinstance(names, (str, bytes)) or not isinstance(names, Sequence) or len(names) != count:
            raise InvalidInputError(
                f"adapter is {value_text(names)}; expected a list with a name or None for each of {count} prompts"
            )
        return [self.model._adapter(name) for name in names]

    def _generate_batch(
        self,
        prompts: Sequence[Prompt],
        configs: Sequence[GenerateConfig | None],
        adapters: Sequence[AttachedAdapter | None],
        cancelled: Callable[[], bool],
        special_tokens_in_text: bool | None,
    ) -> list[GenerateResult]:
        self._settle()
        requests = []
        for index, (prompt, one, adapter) in enumerate(zip(prompts, configs, adapters, strict=True)):
            ids = self._prepare.prompt_ids(prompt, True, special_tokens_in_text, f"prompt {index}")
            resolved = self._prepare.resolve(one)
            self._prepare.check_context(ids, resolved)
            self._drafts.check(resolved)
            requests.append((ids, resolved, adapter))

        steps = CommonSteps(
            self.model,
            self._prepare,
            self._drafts,
            self._cache,
            step_tokens=self.config.chunk_tokens,
            step_ms=BATCH_STEP_MS,
            remembers=bool(self.config.prefix_bytes),
        )
        made = [steps.request(*request, cancelled=lambda: self._is_closed or cancelled()) for request in requests]
        steps.add(made)
        results = steps.run_to_end(made)
        if self._is_closed:
            raise InvalidInputError(CLOSED)
        return results

    def reset(self) -> None:
        """Start again with an empty context."""
        self.rewind(0)

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens of :attr:`token_ids` and drop the others.

        Raises:
            InvalidInputError: ``length`` is not from 0 to the present length.
            BusyError: another call of this session runs, or a stream of it is open.
        """
        with self._turn:
            self._settle()
            context = self._context()
            kept = as_token_id(length)
            if kept is None or not 0 <= kept <= len(context):
                raise InvalidInputError(
                    f"a context of {len(context):,} tokens cannot be rewound to {value_text(length)}"
                )
            self._sequence.rewind(min(kept, self._sequence.length))
            self._pending = list(context[self._sequence.length : kept])

    def fork(self) -> Session:
        """Return another session with the same context.

        Both share one cache, and their common tokens are stored once. ``SessionConfig(cache_tokens=...)`` makes the cache
        larger than one context, so that both may run in parallel.

        Raises:
            BusyError: another call of this session runs, or a stream of it is open; fork before.
        """
        with self._turn:
            self._settle()
            other = object.__new__(type(self))
            other.__dict__.update(self.__dict__)
            other._owns_cache = False
            other._sequence = self._sequence.fork()
            other._pending = list(self._pending)
            other._running = None
            other._drafts = SessionDrafts(self.model, self.tokenizer, self._prepare.vocab_size)
            other._turn = _turn()
            return other

    def settle(self) -> None:
        """Add the result of the last generation to the context.

        Raises:
            BusyError: the generation has not ended, or another call of this session runs.
        """
        with self._turn:
            self._settle()

    def close(self) -> None:
        """Free the cache's memory; closing twice is harmless.

        A fork frees only what no other session holds. An open stream and a running batch end at their next step, and their
        callers get an error.

        Raises:
            BusyError: it is called from within a step, such as by ``cancelled``.
        """
        if self._running is not None:
            self._running.end(CLOSED)
        self._is_closed = True
        with self._turn.waited():
            if self._running is not None:  # it may have started while this call waited
                self._running.end(CLOSED)
                self._pending = list(self._running.generation.pending)
                self._running = None
            self._drafts.close()
            if self._owns_cache:
                self._cache.close()
            else:
                self._sequence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _settle(self) -> None:
        """Add the result of the last generation to the context; raise if its stream is open."""
        if self._is_closed:
            raise InvalidInputError(CLOSED)
        if self._running is None:
            return
        if self._running.is_open:
            raise BusyError(
                "a stream of this session is open: read it to its end or close() it first, or use a fork made before it, or "
                "another Session of the model"
            )
        self._running.end()
        self._pending = list(self._running.generation.pending)
        self._running = None
        if self.config.prefix_bytes:
            self._cache.remember(self._sequence)

    def _context(self) -> tuple[int, ...]:
        if self._running is None:
            return (*self._sequence.token_ids, *self._pending)
        return self._running.context()

    def _move_to(self, context: list[int]) -> None:
        """Make ``context`` the session's context and keep the cached prefix.

        Its last token is always left to run.
        """
        held = self._sequence.token_ids
        common = 0
        for mine, wanted in zip(held, context[:-1], strict=False):
            if mine != wanted:
                break
            common += 1
        if self.config.prefix_bytes:
            remembered = self._cache.start(context, adapter=self.adapter)
            if remembered.length > common:
                self._sequence.close()
                self._sequence, common = remembered, remembered.length
            else:
                remembered.close()
        self._sequence.rewind(common)
        self._pending = context[common:]


def _turn() -> Turn:
    return Turn("this session", "wait for it, or use Session.fork() before, or another Session of the model, for each")


def _as_function(cancelled: Cancelled | None) -> Callable[[], bool]:
    if cancelled is None:
        return bool
    if not callable(cancelled) and not hasattr(cancelled, "is_set"):
        raise InvalidInputError(f"cancelled is {value_text(cancelled)}; expected a threading.Event or a function")
    return cancelled.is_set if isinstance(cancelled, threading.Event) else cancelled
