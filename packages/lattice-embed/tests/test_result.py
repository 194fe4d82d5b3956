"""EmbeddingResult behaves like the array of its vectors."""

import pickle

import numpy as np
import pytest

from lattice_embed import EmbeddingResult, InvalidInputError, Role


def make(count: int = 3, width: int = 4) -> EmbeddingResult:
    vectors = np.arange(count * width, dtype=np.float32).reshape(count, width)
    return EmbeddingResult(
        vectors, token_counts=[3, 4, 5][:count], truncated=[False, True, False][:count], model="m", role=Role.QUERY
    )


def test_result_is_read_like_an_array() -> None:
    result = make()
    assert np.asarray(result) is result.vectors
    assert np.asarray(result).dtype == np.float32
    assert len(result) == 3
    assert result.dimensions == 4
    assert np.array_equal(result[1], result.vectors[1])
    assert np.array_equal(result[-1:], result.vectors[-1:])
    assert [vector.shape for vector in result] == [(4,)] * 3


def test_conversion_copies_only_when_it_must() -> None:
    result = make()
    assert np.array(result) is not result.vectors
    assert not np.shares_memory(np.array(result, copy=True), result.vectors)
    assert np.asarray(result, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.asarray(result, dtype=np.float64, copy=False)


def test_counts_and_flags_stand_beside_the_vectors() -> None:
    result = make()
    assert result.token_counts.dtype == np.int32
    assert result.truncated.dtype == np.bool_
    assert result.total_tokens == 12
    assert "truncated=1" in repr(result)


def test_unknown_token_counts_are_not_invented() -> None:
    result = EmbeddingResult([[1, 2], [3, 4]])
    assert result.token_counts.tolist() == [-1, -1]
    assert result.total_tokens is None
    assert not result.truncated.any()


def test_fingerprint_is_worked_out_once_when_it_is_wanted() -> None:
    calls: list[str] = []

    def work_out() -> str:
        calls.append("called")
        return "print"

    result = EmbeddingResult([[1, 2]], fingerprint=work_out)
    assert calls == []
    assert (result.fingerprint, result.fingerprint) == ("print", "print")
    assert calls == ["called"]


def test_result_survives_pickling() -> None:
    result = EmbeddingResult([[1, 2]], token_counts=[3], truncated=[True], fingerprint=lambda: "print", prompt="p: ")
    copy = pickle.loads(pickle.dumps(result))
    assert copy.vectors.tolist() == [[1, 2]]
    assert (copy.token_counts.tolist(), copy.truncated.tolist()) == ([3], [True])
    assert (copy.fingerprint, copy.prompt, copy.role, copy.model) == ("print", "p: ", Role.GENERIC, "")


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="token_counts has shape"):
        EmbeddingResult([[1, 2]], token_counts=[1, 2])
    with pytest.raises(InvalidInputError, match="truncated has shape"):
        EmbeddingResult([[1, 2]], truncated=[[True]])
    with pytest.raises(InvalidInputError, match="1 dimensions"):
        EmbeddingResult([1, 2])
