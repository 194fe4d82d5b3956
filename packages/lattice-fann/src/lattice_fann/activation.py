"""Activations: what a layer applies to its sums."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from lattice_fann.arguments import instance, real, shown, whole
from lattice_fann.errors import InvalidInputError

__all__ = ["DEFAULT_LEAKY_ALPHA", "Activation", "checked_activation"]

DEFAULT_LEAKY_ALPHA = 0.01

_LEAKY_RELU = 4
_TAGS = ("Linear", "Sigmoid", "Tanh", "ReLU", "LeakyReLU", "Softmax", "GELU", "SiLU")


@dataclass(frozen=True)
class Activation:
    """One activation function. Use the members (``Activation.RELU``, ...) or :meth:`leaky_relu`.

    ===============  =====================================================
    ``LINEAR``       z
    ``SIGMOID``      1 / (1 + exp(-z))
    ``TANH``         tanh(z)
    ``RELU``         max(0, z)
    ``LEAKY_RELU``   z, or alpha z where z < 0; alpha is 0.01
    ``SOFTMAX``      exp(z) / sum exp(z), on the last layer only
    ``GELU``         z (1 + erf(z / sqrt 2)) / 2
    ``SILU``         z / (1 + exp(-z))
    ===============  =====================================================

    Attributes:
        tag: the number that stands for it in files.
        alpha: the slope of the leaky ReLU below zero, 0 for the others. Kept as float32 keeps it.

    >>> Activation.from_name("relu") == Activation.RELU
    True
    >>> Activation.leaky_relu(0.2).alpha
    0.20000000298023224
    """

    tag: int
    alpha: float = 0.0

    LINEAR: ClassVar[Activation]
    SIGMOID: ClassVar[Activation]
    TANH: ClassVar[Activation]
    RELU: ClassVar[Activation]
    LEAKY_RELU: ClassVar[Activation]
    SOFTMAX: ClassVar[Activation]
    GELU: ClassVar[Activation]
    SILU: ClassVar[Activation]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tag", whole(self.tag, "tag", most=len(_TAGS) - 1))
        alpha = real(self.alpha, "alpha", "from -1e30 to 1e30", least=-1e30, most=1e30)
        if alpha and self.tag != _LEAKY_RELU:
            raise InvalidInputError(f"alpha is {alpha}; {self.name} has no slope, only LeakyReLU has")
        object.__setattr__(self, "alpha", struct.unpack("<f", struct.pack("<f", alpha))[0])

    @classmethod
    def leaky_relu(cls, alpha: float = DEFAULT_LEAKY_ALPHA) -> Activation:
        """Return the leaky ReLU with slope ``alpha`` below zero."""
        return cls(_LEAKY_RELU, alpha)

    @classmethod
    def from_name(cls, name: str, alpha: float | None = None) -> Activation:
        """Return the activation called ``name``, in any case, with or without ``_``.

        For example ``"relu"`` or ``"LeakyReLU"``.
        """
        instance(name, "the name of an activation", str)
        wanted = name.replace("_", "").replace("-", "").lower()
        wanted = {"logistic": "sigmoid", "identity": "linear", "swish": "silu"}.get(wanted, wanted)
        for tag, known in enumerate(_TAGS):
            if known.lower() == wanted:
                if tag == _LEAKY_RELU:
                    return cls.leaky_relu(DEFAULT_LEAKY_ALPHA if alpha is None else alpha)
                return cls(tag, 0.0 if alpha is None else alpha)
        raise InvalidInputError(f"there is no activation named {shown(name)}; there are {', '.join(_TAGS)}")

    @property
    def name(self) -> str:
        """The activation's name, as it stands in :meth:`Network.architecture`."""
        return _TAGS[self.tag]

    @property
    def is_softmax(self) -> bool:
        """Whether this is the softmax, which normalises a whole row."""
        return self.tag == 5

    @property
    def is_bounded(self) -> bool:
        """Whether every output lies in [-1, 1]."""
        return self.name in ("Sigmoid", "Tanh", "Softmax")

    def __repr__(self) -> str:
        return f"Activation.leaky_relu({self.alpha!r})" if self.tag == _LEAKY_RELU else f"<Activation {self.name}>"


def checked_activation(activation: object, name: str = "activation") -> Activation:
    """Return ``activation`` if it is one.

    Raises:
        InvalidInputError: it is something else, such as a name.
    """
    return instance(activation, name, Activation, ": Activation.RELU, or Activation.from_name('relu')")


Activation.LINEAR = Activation(0)
Activation.SIGMOID = Activation(1)
Activation.TANH = Activation(2)
Activation.RELU = Activation(3)
Activation.LEAKY_RELU = Activation.leaky_relu()
Activation.SOFTMAX = Activation(5)
Activation.GELU = Activation(6)
Activation.SILU = Activation(7)
