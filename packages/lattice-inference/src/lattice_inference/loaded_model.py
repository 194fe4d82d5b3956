"""Base of loaded models: their source, closing, trimming memory, and pickling."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from lattice_inference.files.fingerprint import ModelSnapshot
from lattice_inference.files.hub import ModelFiles
from lattice_inference.models.adapter_sites import AdapterBase
from lattice_inference.precision import Precision
from lattice_inference.runtime import NUMERICS_VERSION

if TYPE_CHECKING:
    from lattice_inference.backends.protocol import AdaptingProgram
    from lattice_inference.lora.attached_adapter import AttachedAdapter
    from lattice_inference.lora.attaching import ModelAdapters
    from lattice_inference.lora.hook import LoraHook

__all__ = ["LoadedModel"]


class _OwnedProgram(Protocol):
    @property
    def device(self) -> str: ...

    @property
    def device_identity(self) -> str | None: ...

    @property
    def numerics(self) -> str | None: ...

    def adapting(self) -> AdaptingProgram: ...

    def close(self) -> None: ...

    def trim(self) -> None: ...


Owned = TypeVar("Owned", bound=_OwnedProgram)


class LoadedModel(Generic[Owned]):
    """A loaded model that owns its program.

    A context manager; pickling stores how to load it, not its weights or adapters.

    Attributes:
        source: where the files were found; see :func:`lattice_inference.files.hub.find_model`.
        directory: the files, or the GGUF file.
        precision: what the weights are kept in.
        device: the kind of device that computes: ``"cpu"``, ``"wgpu"`` or ``"metal"``.
        device_name: device and driver, with the word "software" where a CPU computes what the device should; None for the
            CPU.
    """

    def __init__(
        self,
        *,
        files: ModelFiles,
        snapshot: ModelSnapshot,
        program: Owned,
        precision: Precision,
        adapter_base: AdapterBase,
        reload: partial[Any],
    ) -> None:
        self.source = files.source
        self.directory: Path = files.directory
        self.precision: Precision = precision
        self.device: str = program.device
        self.device_name: str | None = program.device_identity
        self._program = program
        self._reload = reload
        self._snapshot = snapshot
        self._adapter_base = adapter_base
        self._adapters: ModelAdapters | None = None
        self._adapters_lock = threading.Lock()
        numerics = program.numerics
        # bfloat16 is rounded otherwise by every instruction that multiplies it, so results depend on which this CPU has
        self._numerics = f"n{NUMERICS_VERSION}" + (f":{numerics}" if numerics else "")
        # stands last in a fingerprint: vectors of two devices differ in last bits, and may be compared
        self._device_mark = f"@{self.device_name}" if self.device_name else ""

    def load_adapter(
        self, path: str | os.PathLike[str], name: str | None = None, *, replace: bool = False
    ) -> AttachedAdapter:
        """Read a LoRA adapter and attach it under a name; calls choose it by ``adapter=name``.

        What runs ends with the adapters that it began with. When the call raises, nothing has changed.

        Args:
            path: a directory of PEFT's or mlx-lm's, or a GGUF adapter.
            name: what it is called; by default the name of the directory, or of the file without ``.gguf``.
            replace: let it take the place of an adapter of that name.

        Raises:
            ModelNotFoundError, ModelConfigError, CheckpointError: a file is missing or malformed.
            InvalidInputError: it is for another model (what does not fit is listed), or the name is taken.
            UnsupportedError: it holds what is only merged, or adapters are not built for the model.
        """
        return self._open_adapters().load(path, name, replace=replace)

    def attach_adapter(self, adapter: LoraHook, name: str, *, replace: bool = False) -> AttachedAdapter:
        """Attach an adapter that is in memory: a :class:`LoraAdapter`, or a trainer's, as it is now.

        Copies are kept: what a trainer changes later is seen when it is attached again, with ``replace=True``.

        Raises:
            InvalidInputError, UnsupportedError: as :meth:`load_adapter` does.
        """
        return self._open_adapters().attach(adapter, name, replace=replace)

    def remove_adapter(self, name: str) -> None:
        """Forget an adapter by its name; what runs with it ends with it.

        Raises:
            InvalidInputError: there is none of that name.
        """
        self._open_adapters().remove(name)

    @property
    def adapters(self) -> Mapping[str, AttachedAdapter]:
        """The attached adapters by name, as they are now."""
        return MappingProxyType({}) if self._adapters is None else self._adapters.attached

    @property
    def adapter_sites(self) -> Mapping[str, tuple[int, int]]:
        """Outputs and inputs of each linear that an adapter may change, by its path.

        A path is, for example, ``model.layers.0.mlp.up_proj``.

        Raises:
            UnsupportedError: adapters are not built for the model.
            InvalidInputError: the model is closed.
        """
        return self._open_adapters().linears

    def _adapter(self, adapter: str | AttachedAdapter | None) -> AttachedAdapter | None:
        """Return the adapter that a call names."""
        return None if adapter is None else self._named_adapter(adapter)

    def _named_adapter(self, adapter: str | AttachedAdapter) -> AttachedAdapter:
        return self._open_adapters().named(adapter)

    def _open_adapters(self) -> ModelAdapters:
        if self._adapters is not None:  # without the lock, which a fork may leave taken
            return self._adapters
        with self._adapters_lock:
            if self._adapters is None:
                from lattice_inference.lora.attaching import ModelAdapters

                self._adapters = ModelAdapters(self._adapter_base, self._program.adapting())
            return self._adapters

    def close(self) -> None:
        """Give the weights back. Further use raises InvalidInputError; closing twice is harmless."""
        self._program.close()

    def trim(self) -> None:
        """Return earlier calls' working memory to the operating system.

        Weights stay, and so does every result. Worth a call after a burst of long texts in a process that lives on;
        the next call asks for memory again.
        """
        self._program.trim()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reload, ()
