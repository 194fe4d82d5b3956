"""Random rows of logits and settings, on which the kernels and the readable form of sampling are compared.

``python packages/lattice-inference/tests/models/sampling_rows.py 1000000`` compares a million rows, in a few minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_inference.errors import NonFiniteError
from lattice_inference.generate.row_sampler import Draw, RowSampler, sample_rows
from lattice_inference.generate.sampler import Sampler, SamplingConfig, TokenLogprobs, token_logprobs

SIZES = (1, 2, 15, 16, 17, 63, 64, 65, 128, 200, 320)


Case = tuple[np.ndarray, SamplingConfig, list[int], list[int], "np.ndarray | None", "int | None"]
Result = tuple[int, "TokenLogprobs | None"] | str


def random_case(rng: np.random.Generator, size: int) -> Case:
    """Return logits, settings, prompt, generated tokens, a mask or None, and a number of log-probabilities or None."""
    chances = iter([float(chance) for chance in rng.random(64)])

    def happens(share: float) -> bool:
        return bool(next(chances) < share)

    def one_of(*values: float) -> float:
        return values[int(next(chances) * len(values))]

    def below(end: int) -> int:
        return int(next(chances) * end)

    spread = one_of(0.0, 1e-30, 0.01, 1.0, 3.0, 20.0, 1e4, 1e38)
    logits = (rng.standard_normal(size).clip(-3, 3) * spread).astype(np.float32)
    if happens(0.3):  # ties
        logits = np.round(logits / np.float32(one_of(1, 2, 8)))
    if happens(0.2):
        logits[rng.random(size) < one_of(0.1, 0.9)] = -np.inf
    if happens(0.05):
        logits[below(size)] = one_of(np.nan, np.inf, -0.0)
    config: dict[str, Any] = {"temperature": one_of(0.0, 1e-30, 0.1, 0.7, 1.0, 1.0, 1.3, 100.0)}
    if happens(0.4):
        config["top_k"] = 1 + below(size + 2) if happens(0.5) else int(one_of(1, 3, 50))
    if happens(0.5):
        config["top_p"] = one_of(0.0, 0.1, 0.5, 0.9, 0.99, 1 - 1e-9, next(chances))
    if happens(0.3):
        config["min_p"] = one_of(1e-300, 1e-9, 0.02, 0.5, 1.0, next(chances))
    if happens(0.25):
        config["typical_p"] = one_of(0.0, 0.2, 0.9, 0.999, next(chances))
    if happens(0.3):
        config["repetition_penalty"] = one_of(0.5, 1.1, 2.0, 1.18e-38, 100.0)
    if happens(0.2):
        config["presence_penalty"] = one_of(-100.0, 0.3, 2.0)
    if happens(0.2):
        config["frequency_penalty"] = one_of(-1.0, 0.25, 100.0)
    if happens(0.2):
        config["logit_bias"] = {below(size): one_of(-np.inf, -5.0, 2.5, 3e38) for _ in range(1 + below(4))}
    prompt = rng.integers(0, size, below(40)).tolist()
    generated = rng.integers(0, size, below(30)).tolist()
    allowed = None
    if happens(0.3):
        bits = np.zeros((size // 32 + 1) * 32, np.bool_)
        bits[:size] = rng.random(size) < one_of(0.02, 0.5, 0.99)
        allowed = np.packbits(bits, bitorder="little").view(np.uint32)
    logprobs = None if happens(0.6) else int(one_of(0, 1, 5, 20))
    return logits, SamplingConfig(**config), prompt, generated, allowed, logprobs


def by_the_readable_form(case: Case, seed: int, position: int) -> Result:
    """Return the token and its log-probabilities, or the text of the error."""
    logits, config, prompt, generated, allowed, logprobs = case
    sampler = Sampler(config, seed, prompt, logits.size)
    for token in generated:
        sampler.accept(token)
    try:
        with np.errstate(invalid="ignore"):  # infinities among logits
            token = sampler.sample(logits, position, allowed)
            return token, None if logprobs is None else token_logprobs(logits, token, logprobs)
    except NonFiniteError as error:
        return str(error)


def by_the_kernels(
    cases: Sequence[Case], seeds: Sequence[int], positions: Sequence[int], isa: str | None = None
) -> list[Result]:
    """Return the same of each case; all have one vocabulary."""
    draws = []
    for (logits, config, prompt, generated, allowed, logprobs), seed, position in zip(
        cases, seeds, positions, strict=True
    ):
        sampler = RowSampler(config, seed, prompt, logits.size, logprobs=logprobs)
        for token in generated:
            sampler.accept(token)
        draws.append(Draw(sampler, position, allowed))
    with np.errstate(invalid="ignore"):
        chosen = sample_rows(np.stack([case[0] for case in cases]), draws, isa=isa)
    return [str(one) if isinstance(one, NonFiniteError) else one for one in chosen]


def differing(
    rng: np.random.Generator, size: int, rows: int, isa: str | None = None
) -> list[tuple[Case, Result, Result]]:
    """Return the cases of ``rows`` random ones in which the two forms differ."""
    cases = [random_case(rng, size) for _ in range(rows)]
    seeds = rng.integers(0, 2**64, rows, np.uint64).tolist()
    positions = rng.integers(0, 2**20, rows).tolist()
    found = by_the_kernels(cases, seeds, positions, isa)
    expected = [by_the_readable_form(*of_row) for of_row in zip(cases, seeds, positions, strict=True)]
    return [(case, one, other) for case, one, other in zip(cases, found, expected, strict=True) if one != other]


def main(rows: int) -> int:
    """Compare at least ``rows`` rows; returns the exit status."""
    rng = np.random.default_rng(0)
    done = 0
    wrong: list[tuple[Case, Result, Result]] = []
    while done < rows and not wrong:
        size = int(
            rng.choice([rng.integers(1, 700), *SIZES]) if rng.random() < 0.999 else rng.choice([32_000, 151_936])
        )
        count = 500 if size < 1000 else 20
        wrong = differing(rng, size, count)
        done += count
        sys.stderr.write(f"\r{done:,} rows")
    print(f"\n{done:,} rows, {len(wrong)} differ", *wrong[:3], sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
