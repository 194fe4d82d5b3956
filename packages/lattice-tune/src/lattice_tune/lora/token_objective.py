"""Cross-entropy of a language model's next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from lattice_inference.errors import NonFiniteError
from lattice_tune.errors import TrainingError
from lattice_tune.lora.objective import LoraEvaluation, SummedLoss
from lattice_tune.lora.packing import pack_tokens
from lattice_tune.lora.program_link import ProgramLink
from lattice_tune.lora.token_examples import TokenExample

__all__ = ["TokenObjective"]


class TokenObjective:
    """The loss of trained tokens, each of them counting the same, whatever example it is in.

    Args:
        link: the program, opened for tokens.
        examples: to train on.
        validation: to measure.
        most_tokens: computed at a time.
    """

    def __init__(
        self,
        link: ProgramLink,
        examples: Sequence[TokenExample],
        validation: Sequence[TokenExample],
        most_tokens: int,
    ) -> None:
        self._link, self._examples, self._validation = link, examples, validation
        self._most_tokens = most_tokens

    @property
    def count(self) -> int:
        """Examples to train on."""
        return len(self._examples)

    @property
    def digest(self) -> str:
        """Tells other examples: ids, and what is trained."""
        digest = blake2b(digest_size=16)
        for group in (self._examples, self._validation):
            digest.update(len(group).to_bytes(8, "little"))
            for example in group:
                digest.update(len(example.token_ids).to_bytes(8, "little"))
                digest.update(example.token_ids.tobytes() + example.trained.tobytes())
        return digest.hexdigest()

    def accumulate(self, chosen: Sequence[int], step: int) -> SummedLoss:
        """Set the gradients to those of the summed loss of the chosen examples.

        Raises:
            TrainingError: the loss is not finite.
        """
        program = self._link.program
        program.zero_gradients()
        total, weight = 0.0, 0
        packs = pack_tokens([self._examples[index] for index in chosen], self._most_tokens)
        for part, packed in enumerate(packs):
            dropout, noise = self._link.draws(step, part)
            try:
                loss, tokens = program.accumulate_tokens(
                    packed.token_ids, packed.cu_seqlens, packed.targets, dropout=dropout, noise=noise
                )
            except NonFiniteError as error:
                raise TrainingError(f"the loss is not finite: {error}") from error
            total, weight = total + loss, weight + tokens
        self._link.read_gradients()
        return SummedLoss(total, float(weight))

    def write(self) -> None:
        """Give the program the parameters as they are now."""
        self._link.write()

    def evaluate(self) -> LoraEvaluation | None:
        """Measure the validation examples; None without any."""
        return self.measure(self._validation) if self._validation else None

    def measure(self, examples: Sequence[TokenExample]) -> LoraEvaluation:
        """Return the mean loss of the trained tokens of some examples.

        Raises:
            TrainingError: it is not finite.
        """
        total, weight = 0.0, 0
        for packed in pack_tokens(examples, self._most_tokens):
            try:
                loss, tokens = self._link.program.loss_of_tokens(packed.token_ids, packed.cu_seqlens, packed.targets)
            except NonFiniteError as error:
                raise TrainingError(f"the loss of the validation examples is not finite: {error}") from error
            total, weight = total + loss, weight + tokens
        return LoraEvaluation(total / weight, float(weight))
