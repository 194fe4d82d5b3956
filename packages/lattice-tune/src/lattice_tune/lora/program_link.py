"""Between the vector of trained numbers and the program that runs the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lattice_inference.errors import InvalidInputError as InferenceInputError
from lattice_tune.errors import TrainingError
from lattice_tune.lora.config import LoraTrainingConfig
from lattice_tune.lora.draws import part_number
from lattice_tune.lora.parameters import TrainedParameters

if TYPE_CHECKING:
    from lattice_inference.training import Dropout, Noise, TrainingProgram

__all__ = ["ProgramLink"]


class ProgramLink:
    """Copies factors into a program, and gradients out of it.

    Args:
        program: the model.
        parameters: what is trained.
        dropout: of the inputs of each A.
        config: seed, and noise on the embeddings.
    """

    def __init__(
        self, program: TrainingProgram, parameters: TrainedParameters, dropout: float, config: LoraTrainingConfig
    ) -> None:
        self.program, self.parameters = program, parameters
        self._dropout, self._config = dropout, config

    def write(self) -> None:
        """Give the program the factors as they are now.

        Raises:
            TrainingError: one is not finite.
        """
        try:
            for site, a, b in self.parameters.factors():
                self.program.write_factors(site, a, b)
        except InferenceInputError as error:
            raise TrainingError(f"the last update made a number that is not finite: {error}") from error

    def read_gradients(self) -> None:
        """Copy the program's gradients into the vector."""
        parameters = self.parameters
        for site in parameters.shapes:
            d_a, d_b = self.program.gradients(site)
            parameters.view(parameters.gradients, site, "a")[:] = d_a
            parameters.view(parameters.gradients, site, "b")[:] = d_b

    def draws(self, step: int, part: int) -> tuple[Dropout | None, Noise | None]:
        """Return dropout and noise of one part of an update, or None for what is not asked for."""
        from lattice_inference.training import Dropout, Noise

        number = part_number(step, part)
        dropout = Dropout(self._dropout, self._config.seed, number) if self._dropout else None
        noise = Noise(self._config.noise, self._config.seed, number) if self._config.noise else None
        return dropout, noise
