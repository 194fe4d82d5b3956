"""The texts: as long as they say, and always the same."""

import json
import random
from pathlib import Path

import pytest

from harness.corpus import CELLS, SEED, WORDS_FILE, Cell, make_text, make_texts
from lattice_inference.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(minilm_directory: Path) -> Tokenizer:
    """The tokenizer of the model that is measured; its ids are those of Hugging Face (lattice-inference's tests)."""
    return load_tokenizer(minilm_directory)


@pytest.mark.model
def test_words_have_the_tokens_that_the_file_says(tokenizer: Tokenizer) -> None:
    groups = json.loads(Path(WORDS_FILE).read_text(encoding="utf-8"))
    for pieces in "123":
        wrong = [word for word in groups[pieces] if tokenizer.count(word) != int(pieces) + 2]
        assert groups[pieces]
        assert not wrong, f"not {pieces} tokens: {wrong}"


@pytest.mark.model
def test_text_has_exactly_the_tokens_asked_for(tokenizer: Tokenizer) -> None:
    lengths = [*range(2, 257)] * 3
    texts = make_texts(lengths, seed=1)
    assert [tokenizer.count(text) for text in texts] == lengths


@pytest.mark.model
@pytest.mark.parametrize("cell", CELLS.values(), ids=lambda cell: cell.name)
def test_cell_has_the_tokens_that_it_names(tokenizer: Tokenizer, cell: Cell) -> None:
    assert [tokenizer.count(text) for text in cell.texts()] == list(cell.lengths)


def test_texts_are_the_same_for_ever() -> None:
    # every recorded figure is about these very texts: a change of this value is a change of all of them
    assert make_texts([2, 3, 4, 10], seed=SEED) == ["", "part", "Before.", "Teaspoon had in into of."]


def test_mixed_cell_is_a_thousand_lengths_from_2_to_200() -> None:
    lengths = CELLS["mixed"].lengths
    assert len(lengths) == 1_000
    assert (min(lengths), max(lengths)) == (2, 200)
    assert sum(lengths) == 99_015


def test_text_shorter_than_its_special_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        make_text(1, random.Random(0))


@pytest.mark.parametrize(("repeats", "turns"), [(1, 1), (2, 2), (3, 3), (9, 3), (30, 10)])
def test_cells_that_take_seconds_get_a_third_of_the_turns(repeats: int, turns: int) -> None:
    assert CELLS["mixed"].turns(repeats) == turns
    assert CELLS["1x10"].turns(repeats) == repeats
