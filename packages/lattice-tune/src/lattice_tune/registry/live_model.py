"""The loaded live version.

Readers never wait, and see another process's promotion within the poll interval.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from lattice_tune.arguments import instance, number
from lattice_tune.errors import InvalidInputError, ModelNotFoundError, shown
from lattice_tune.registry.model_registry import ModelRegistry
from lattice_tune.registry.records import RegisteredModel
from lattice_tune.registry.stored_values import check_name

__all__ = ["LiveModel", "LoadedModel"]

POLL_SECONDS = 1.0
BUSY_SECONDS = 5.0

Value = TypeVar("Value")


@dataclass(frozen=True)
class LoadedModel(Generic[Value]):
    """A version and what was loaded from it.

    Attributes:
        model: the version, as it was when it was loaded.
        value: what the ``load`` of :class:`LiveModel` returned.
    """

    model: RegisteredModel
    value: Value


class LiveModel(Generic[Value]):
    """Follows the version in production of one name.

    :attr:`current` is one reference: reading it takes no lock, and gives a model and a value that belong together. A thread
    asks the registry at each interval, loads a new version in the background and then swaps the reference. If a version
    cannot be loaded, the one before stays, and :attr:`last_error` says why. Any number of threads may use it; after a fork
    the child makes another.

    Args:
        registry: where the models are. The thread opens it once more.
        name: of the model.
        load: gets a registry and a version, and returns what readers need. It runs in the background thread, but for the
            first time.
        poll_seconds: the interval; ``None`` starts no thread, and :meth:`refresh` does its work.

    Raises:
        InvalidInputError: an argument is out of range.
        ModelNotFoundError: no version is in production.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        name: str,
        load: Callable[[ModelRegistry, RegisteredModel], Value],
        *,
        poll_seconds: float | None = POLL_SECONDS,
    ) -> None:
        instance(registry, "registry", ModelRegistry)
        self._name = check_name(name)
        if not callable(load):
            raise InvalidInputError(f"load is {shown(load)}; it must be a function of a registry and a version")
        if poll_seconds is not None:
            poll_seconds = number(poll_seconds, "poll_seconds", least=0.001, most=86_400.0)
        self._load = load
        self._refreshing = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._registry = ModelRegistry(registry.path, create=False, busy_seconds=BUSY_SECONDS)
        self.last_error: Exception | None = None
        """What kept the last look at the registry from its end, or ``None``."""
        try:
            live = self._registry.get_production(self._name)
            if live is None:
                raise ModelNotFoundError(self._name, "in production")
            self._current: LoadedModel[Value] = LoadedModel(live, load(self._registry, live))
        except BaseException:
            self._registry.close()
            raise
        if poll_seconds is not None:
            self._thread = threading.Thread(target=self._poll, args=(poll_seconds,), name=f"live {name}", daemon=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def current(self) -> LoadedModel[Value]:
        """The version that is live and its value, as of the last look at the registry."""
        return self._current

    def refresh(self) -> bool:
        """Look at the registry now, and return whether another version went live.

        Raises:
            Exception: whatever the registry or ``load`` raises; the version before stays.
        """
        with self._refreshing:
            live = self._registry.get_production(self._name)
            if live is None:
                raise ModelNotFoundError(self._name, "in production")
            if live.id == self._current.model.id:
                if live.governance is not None:
                    live.governance.check_approved(live.reference)
                return False
            self._current = LoadedModel(live, self._load(self._registry, live))
            return True

    def close(self) -> None:
        """Stop following. :attr:`current` stays as it is. Calling it twice is allowed."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._refreshing:
            self._registry.close()

    def _poll(self, poll_seconds: float) -> None:
        while not self._stopped.wait(poll_seconds):
            try:
                self.refresh()
                self.last_error = None
            except Exception as error:
                self.last_error = error
