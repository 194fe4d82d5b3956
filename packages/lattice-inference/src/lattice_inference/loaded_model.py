"""What every loaded model shares: where it came from, closing, giving memory back, and pickling."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from lattice_inference.files.fingerprint import ModelSnapshot
from lattice_inference.files.hub import ModelFiles
from lattice_inference.precision import Precision
from lattice_inference.runtime import NUMERICS_VERSION

__all__ = ["LoadedModel"]


class _OwnedProgram(Protocol):
    @property
    def device(self) -> str: ...

    @property
    def device_identity(self) -> str | None: ...

    @property
    def numerics(self) -> str | None: ...

    def close(self) -> None: ...

    def trim(self) -> None: ...


Owned = TypeVar("Owned", bound=_OwnedProgram)


class LoadedModel(Generic[Owned]):
    """A loaded model that owns its program. A context manager; pickling stores how to load it, not its weights.

    Attributes:
        source: where the files were found; see :func:`lattice_inference.files.hub.find_model`.
        directory: the files, or the GGUF file.
        precision: what the weights are kept in.
        device: the kind of device that computes: ``"cpu"`` or ``"wgpu"``.
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
        reload: partial[Any],
    ) -> None:
        self.source = files.source
        self.directory = files.directory
        self.precision: Precision = precision
        self.device = program.device
        self.device_name = program.device_identity
        self._program = program
        self._reload = reload
        self._snapshot = snapshot
        numerics = program.numerics
        # bfloat16 is rounded otherwise by every instruction that multiplies it, so results depend on which this CPU has
        self._numerics = f"n{NUMERICS_VERSION}" + (f":{numerics}" if numerics else "")
        # stands last in a fingerprint: vectors of two devices differ in last bits, and may be compared
        self._device_mark = f"@{self.device_name}" if self.device_name else ""

    def close(self) -> None:
        """Give the weights back. Further use raises InvalidInputError; closing twice is harmless."""
        self._program.close()

    def trim(self) -> None:
        """Give the working memory of earlier calls back to the operating system; weights stay, and so does every result.

        Worth a call after a burst of long texts in a process that lives on; the next call asks for memory again.
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
