"""A model loaded once, on first use, from any thread.

Base of the native services.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from lattice_embed.errors import ServiceClosedError

__all__ = ["LazyModel"]


class _Closable(Protocol):
    def close(self) -> None: ...

    def trim(self) -> None: ...


Loaded = TypeVar("Loaded", bound=_Closable)

# A fork while another thread loads would leave the child a lock that is never released.
_live_models: weakref.WeakSet[LazyModel[Any]] = weakref.WeakSet()


class LazyModel(ABC, Generic[Loaded]):
    """Loads, returns and closes one model.

    After a failed load the next call tries again. A context manager. Pickling keeps what :meth:`_recipe` returns, not
    the weights: the copy loads for itself.
    """

    _renewal: ClassVar[str] = "make a new one"
    """What the error of a closed model says to do."""

    def __init__(self) -> None:
        self._loaded: Loaded | None = None
        self._closed = False
        self._lock = threading.Lock()
        _live_models.add(self)

    @property
    @abstractmethod
    def name(self) -> str:
        """What errors call this."""

    @abstractmethod
    def _open(self) -> Loaded:
        """Load the model."""

    @abstractmethod
    def _recipe(self) -> tuple[Any, Mapping[str, Any]]:
        """Return the model and the keyword options that make an equal object of this class."""

    @property
    def is_loaded(self) -> bool:
        """Whether the model is in memory."""
        return self._loaded is not None

    def load(self) -> Self:
        """Load the model now instead of at the first call, and return this object.

        Raises:
            ModelNotFoundError: no place that may be searched holds the model's files (lattice_inference).
            UnsupportedModelError: this version cannot run the model.
            ServiceClosedError: this was closed.
        """
        self._load()
        return self

    def close(self) -> None:
        """Release the model's memory.

        It may be called twice; any other call afterwards is an error.
        """
        with self._lock:
            self._closed = True
            loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()

    def trim(self) -> None:
        """Return earlier calls' working memory to the operating system; the model stays loaded.

        Worth a call after a burst of long texts in a process that lives on.
        """
        loaded = self._loaded
        if loaded is not None:
            loaded.trim()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_remake, (type(self), *self._recipe()))

    def _load(self) -> Loaded:
        loaded = self._loaded
        if loaded is not None:
            return loaded
        with self._lock:
            if self._closed:
                raise ServiceClosedError(f"{self.name} was closed: {self._renewal}")
            if self._loaded is None:
                self._loaded = self._open()
            return self._loaded

    def _state(self) -> str:
        return "closed" if self._closed else "loaded" if self._loaded else "not loaded"


def _remake(kind: type[Any], model: Any, options: Mapping[str, Any]) -> Any:
    return kind(model, **options)


def _release_locks_after_fork() -> None:
    for model in _live_models:
        model._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_locks_after_fork)
