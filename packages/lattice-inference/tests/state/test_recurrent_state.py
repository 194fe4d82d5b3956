"""A sequence with recurrent layers has the bits of one that ran from the start, whatever was done to it before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from lattice_inference.errors import CacheFullError, CheckpointError, InvalidInputError
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK

from .hybrid import VOCABULARY, cache_of, decoder

TOKENS = np.random.default_rng(7).integers(0, VOCABULARY, 2000).astype(np.int32)


@pytest.fixture(scope="module")
def model():
    return decoder()


@pytest.fixture(scope="module")
def alone(model):
    """The logits of 150 tokens in one call."""
    with cache_of(model) as cache:
        return model.run([(cache.sequence(), TOKENS[:150], "all")])


def run(model, sequence, token_ids, logits="all"):
    return model.run([(sequence, np.asarray(token_ids, np.int32), logits)])


def rows_run(model, call):
    """The rows that reach the backend in ``call``."""
    counts, submit = [], model._program.submit
    model._program.submit = lambda batch, **options: counts.append(batch.tokens) or submit(batch, **options)
    try:
        call()
    finally:
        model._program.submit = submit
    return sum(counts)


@pytest.mark.parametrize("cuts", [[1] * 150, [5, 27, 1, 31, 33, 3, 50], [100, 50]], ids=["tokens", "chunks", "two"])
def test_chunks_give_the_bits_of_one_call(model, alone, cuts):
    with cache_of(model) as cache:
        sequence, first, rows = cache.sequence(), 0, []
        for count in cuts:
            rows.append(run(model, sequence, TOKENS[first : first + count]))
            first += count
    assert np.array_equal(np.concatenate(rows), alone)


def test_sequences_in_company_have_the_bits_they_have_alone(model, alone):
    with cache_of(model) as cache:
        sequences = [cache.sequence() for _ in range(3)]
        at, rows = [0, 0, 0], [[], [], []]
        for _ in range(12):
            counts = (1, 7, 12)
            logits = model.run([(s, TOKENS[a : a + n], "all") for s, a, n in zip(sequences, at, counts, strict=True)])
            for index, part in enumerate(np.split(logits, np.cumsum(counts)[:-1])):
                rows[index].append(part)
                at[index] += counts[index]
    for index in range(3):
        assert np.array_equal(np.concatenate(rows[index]), alone[: at[index]])


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 63, 64, 65, 95, 96, 97, 100, 127, 128, 129, 139, 140])
@pytest.mark.parametrize("cuts", [[140], [64, 76], [128, 12], [90, 20, *[1] * 30]], ids=str)
def test_a_rewind_to_any_length_goes_on_with_the_same_bits(model, alone, length, cuts):
    with cache_of(model) as cache:
        sequence, first = cache.sequence(), 0
        for count in cuts:
            run(model, sequence, TOKENS[first : first + count])
            first += count
        sequence.rewind(length)
        assert np.array_equal(run(model, sequence, TOKENS[length:150]), alone[length:])
        assert sequence.slots.length == 150


def test_rejected_drafts_are_a_cut_that_runs_nothing_again(model, alone):
    with cache_of(model) as cache:
        sequence = cache.sequence()
        run(model, sequence, TOKENS[:20])
        for length in range(20, 140):
            drafts = [*TOKENS[length : length + 1], *TOKENS[500:516]]

            def step(drafts=drafts, length=length):
                assert np.array_equal(run(model, sequence, drafts)[0], alone[length])

            assert rows_run(model, step) == 17
            sequence.rewind(length + 1)
        assert cache.slots.used <= 3


def test_forks_do_not_see_one_another(model, alone):
    with cache_of(model) as cache:
        first = cache.sequence()
        run(model, first, TOKENS[:70])
        second, third = first.fork(), first.fork()
        run(model, second, TOKENS[900:950])
        assert np.array_equal(run(model, first, TOKENS[70:100]), alone[70:100])
        third.rewind(68)
        assert np.array_equal(run(model, third, TOKENS[68:150]), alone[68:])
        second.rewind(70)
        assert np.array_equal(run(model, second, TOKENS[70:150]), alone[70:])
        first.close()
        second.close()
        third.close()
        assert cache.slots.used == 0
        assert cache.used_bytes == 0


def test_a_prompt_is_run_again_from_the_boundary_before_its_end(model, alone):
    with cache_of(model) as cache:
        for end in range(40, 110, 5):
            sequence = cache.sequence()
            sequence.slots.prompt_end = end
            run(model, sequence, TOKENS[: end // 2], "none")
            run(model, sequence, TOKENS[end // 2 : end], "none")
            for token in TOKENS[900:945]:
                run(model, sequence, [token], "none")
            for kept in (end, end - 8):
                sequence.rewind(min(kept, sequence.length))
                assert rows_run(model, lambda sequence=sequence: run(model, sequence, [1], "none")) <= DELTA_BLOCK
            sequence.close()
        assert cache.slots.used == 0


def test_a_beginning_is_found_where_its_state_is_remembered(model, alone):
    with cache_of(model, prefix_bytes=10**7) as cache:
        first = cache.sequence()
        first.slots.prompt_end = 100
        run(model, first, TOKENS[:100], "none")
        for token in TOKENS[900:950]:
            run(model, first, [token], "none")
        cache.remember(first)
        second = cache.start(TOKENS[:150].tolist())
        assert second.length == 96
        assert np.array_equal(run(model, second, TOKENS[96:150]), alone[96:])
        assert cache.start(TOKENS[900:950].tolist()).length == 0
        third = cache.start(TOKENS[:150].tolist())  # after the first sequence has gone, and while the second one lives
        first.close()
        assert np.array_equal(run(model, third, TOKENS[96:150]), alone[96:])
        third.rewind(97)
        fourth = cache.start([*TOKENS[:100].tolist(), *TOKENS[900:950].tolist(), 1])
        assert fourth.length == 128
        second.close(), third.close(), fourth.close()
        assert cache.remembered_bytes == cache.used_bytes
        cache.forget()
        assert cache.used_bytes == 0


def test_a_closed_cache_has_no_memory_left(model):
    cache = cache_of(model)
    sequence, slots = cache.sequence(), cache.slots
    run(model, sequence, TOKENS[:40], "none")
    for _ in range(2):
        cache.close()
    with pytest.raises(InvalidInputError, match="these slots are closed"):
        slots.storage.native  # noqa: B018
    with pytest.raises(InvalidInputError, match="closed"):
        slots.storage.copy(0, 1)
    sequence.close()


def test_a_sequence_that_is_closed_within_a_call_gives_all_slots_back(model):
    """As an interrupt may leave it, between two steps of a long prompt."""
    with cache_of(model) as cache:
        for steps in range(6):
            sequence = cache.sequence()
            run(model, sequence, TOKENS[:40], "none")
            other = sequence.fork()
            other.slots.begin()
            for _ in range(steps):
                other.slots.step(20)
            assert cache.slots.used > 0
            other.close()
            other.close()
            assert run(model, sequence, TOKENS[40:41]).shape[0] == 1
            sequence.close()
            assert cache.slots.used == 0


def test_pages_without_tokens_are_not_remembered(model):
    with cache_of(model, prefix_bytes=10**7) as cache:
        sequence = cache.sequence()
        run(model, sequence, TOKENS[: 2 * cache.page_tokens], "none")
        sequence.reserve(sequence.length, 5 * cache.page_tokens)  # as a layer for further tokens does
        assert len(sequence.pages) == 5
        cache.remember(sequence)
        assert cache.remembered_pages == 2
        sequence.close()
        assert cache.used_pages == 2


def test_two_sequences_go_on_from_one_remembered_state(model, alone):
    with cache_of(model, prefix_bytes=10**7) as cache:
        first = cache.sequence()
        run(model, first, TOKENS[:100], "none")
        cache.remember(first)
        second = cache.start([*TOKENS[:100].tolist(), 1])
        assert second.length == 96
        run(model, second, TOKENS[900:920], "none")
        assert np.array_equal(run(model, first, TOKENS[100:110]), alone[100:110])
        run(model, second, TOKENS[920:925], "none")
        assert np.array_equal(run(model, first, TOKENS[110:150]), alone[110:])


def test_states_of_a_long_prompt_are_remembered_within_their_budget(model):
    storage = cache_of(model).storage
    budget = 6 * storage.recurrent.slot_bytes + 130 * storage.page_bytes
    with cache_of(model, tokens=4096, prefix_bytes=budget) as cache:
        first = cache.sequence()
        first.slots.prompt_end = 2000
        for start in range(0, 2000, 400):
            run(model, first, TOKENS[start : start + 400], "none")
        cache.remember(first)
        assert cache.remembered_bytes <= budget
        assert cache.start([*TOKENS[:1500].tolist(), 1, 2, 3]).length >= 1024 - 400
        assert cache.start(TOKENS.tolist()).length == 1984


def test_states_of_long_prompts_leave_the_slots_that_sequences_need(model, monkeypatch):
    """Eight prompts beside one another never wait for a slot, though each would keep states of its middle."""
    monkeypatch.setattr("lattice_inference.state.recurrent_slots.MARK_TOKENS", 64)
    with cache_of(model, tokens=8192, slots=45 + 6, prefix_bytes=10**9, sequences=8) as cache:
        sequences = [cache.sequence() for _ in range(8)]
        for sequence in sequences:
            sequence.slots.prompt_end = 700
            for start in range(0, 700, 70):
                run(model, sequence, TOKENS[start : start + 70], "none")
        assert cache.slots.used > 8
        for token in TOKENS[:70]:
            model.run([(sequence, np.array([token], np.int32), "last") for sequence in sequences])


@pytest.mark.slow
def test_a_conversation_runs_only_what_differs(model):
    """A template writes the header of an answer otherwise once it is answered, and drops what was thought."""
    rng = np.random.default_rng(3)

    def drawn(count):
        return rng.integers(2, VOCABULARY, count).tolist()

    with cache_of(model, tokens=4096) as cache:
        sequence, history = cache.sequence(), []
        for _turn in range(20):
            prompt = [*history, *drawn(int(rng.integers(5, 60))), 1, 1, 1, 0, 0]  # it ends with a header of five tokens
            common = 0
            while common < min(sequence.length, len(prompt) - 1) and sequence.token_ids[common] == prompt[common]:
                common += 1
            sequence.rewind(common)
            sequence.slots.prompt_end = len(prompt)
            rows = rows_run(model, lambda prompt=prompt: run(model, sequence, prompt[sequence.length :], "last"))
            assert rows <= len(prompt) - common + DELTA_BLOCK
            thought, answer = drawn(int(rng.integers(1, 90))), drawn(int(rng.integers(1, 50)))
            for token in [*thought, *answer]:
                logits = run(model, sequence, [token])
            with cache_of(model) as other:
                fresh = (
                    run(model, other.sequence(), [*prompt, *thought, *answer], "last") if len(prompt) < 900 else logits
                )
            assert np.array_equal(logits, fresh)
            history = [*prompt[:-2], *answer]


def test_a_full_cache_forgets_states_before_it_refuses_and_nothing_changes(model, alone):
    with cache_of(model, slots=6, prefix_bytes=10**7) as cache:
        first = cache.sequence()
        run(model, first, TOKENS[:70], "none")
        cache.remember(first)
        first.close()
        assert cache.slots.used > 0
        others = [cache.sequence() for _ in range(3)]
        for sequence in others[:2]:
            run(model, sequence, TOKENS[:70], "none")
        with pytest.raises(CacheFullError, match="6 slots of recurrent state"):
            run(model, others[2], TOKENS[:70], "none")
        assert [sequence.length for sequence in others] == [70, 70, 0]
        others[0].close()
        assert np.array_equal(run(model, others[2], TOKENS[:70]), alone[:70])
        assert np.array_equal(run(model, others[1], TOKENS[70:100]), alone[70:100])


def test_a_step_that_fails_leaves_the_state_as_it_was(model, alone, monkeypatch):
    with cache_of(model, tokens=4096) as cache:
        sequence = cache.sequence()
        run(model, sequence, TOKENS[:70], "none")
        submit, calls = model._program.submit, []

        def failing(batch, **options):
            calls.append(batch.tokens)
            if len(calls) == 2:
                raise MemoryError
            return submit(batch, **options)

        monkeypatch.setattr(model._program, "submit", failing)
        with pytest.raises(MemoryError):
            run(model, sequence, TOKENS[:1600], "none")
        monkeypatch.undo()
        assert len(calls) == 2
        assert sequence.length == 70
        assert rows_run(model, lambda: np.array_equal(run(model, sequence, TOKENS[70:150]), alone[70:])) == 80 + 0
        sequence.rewind(70)
        assert np.array_equal(run(model, sequence, TOKENS[70:150]), alone[70:])


def test_a_copy_that_fails_keeps_no_slot(model, alone, monkeypatch):
    with cache_of(model) as cache:
        sequence = cache.sequence()
        run(model, sequence, TOKENS[:40])
        fork, used = sequence.fork(), cache.slots.used
        monkeypatch.setattr(type(cache.slots.storage), "copy", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(model, fork, TOKENS[40:50])
        monkeypatch.undo()
        assert (fork.length, cache.slots.used) == (40, used)
        assert np.array_equal(run(model, fork, TOKENS[40:50]), alone[40:50])


@pytest.mark.slow
def test_a_saved_state_goes_on_in_another_process(model, alone, tmp_path):
    path = tmp_path / "saved"
    with cache_of(model) as cache:
        sequence = cache.sequence()
        run(model, sequence, TOKENS[:75], "none")
        cache.save(path, sequence)
        sequence.rewind(20)  # who restores it has to run its state again
        cache.save(tmp_path / "cut", sequence)
    script = (
        "import sys, numpy as np\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from state.hybrid import cache_of, decoder\n"
        "model = decoder()\n"
        "cache = cache_of(model)\n"
        "sequence = cache.restore(sys.argv[1])\n"
        "ids = np.load(sys.argv[2])[sequence.length:150]\n"
        "np.save(sys.argv[3], model.run([(sequence, ids, 'all')]))\n"
    )
    np.save(tmp_path / "ids.npy", TOKENS)
    for name, length in (("saved", 75), ("cut", 20)):
        files = [str(tmp_path / part) for part in (name, "ids.npy", "logits.npy")]
        subprocess.run([sys.executable, "-c", script, *files], check=True)
        assert np.array_equal(np.load(tmp_path / "logits.npy"), alone[length:])


def test_a_state_of_another_block_is_refused(model, tmp_path, monkeypatch):
    with cache_of(model) as cache:
        sequence = cache.sequence()
        run(model, sequence, TOKENS[:75], "none")
        cache.save(tmp_path / "saved", sequence)
        monkeypatch.setattr("lattice_inference.state.prefix_file.DELTA_BLOCK", 64)
        with pytest.raises(CheckpointError, match="block 32, and here it is 64"):
            cache.restore(tmp_path / "saved")


def random_calls(model, seed, calls):
    """Do anything to sequences of one cache; each logits row must be that of its tokens run alone."""
    rng = np.random.default_rng(seed)
    known: dict[bytes, np.ndarray] = {}

    def fresh(token_ids):
        """The last row of the tokens in a cache of their own."""
        key = np.asarray(token_ids, np.int32).tobytes()
        if key not in known:
            with cache_of(model) as other:
                known[key] = run(model, other.sequence(), token_ids, "last")[0]
        return known[key]

    with cache_of(
        model, tokens=2048, slots=int(rng.integers(14, 30)), prefix_bytes=int(rng.integers(0, 10**6))
    ) as cache:
        sequences = [cache.sequence()]
        for _ in range(calls):
            index = int(rng.integers(len(sequences)))
            sequence, kind = (
                sequences[index],
                rng.choice(["run", "run", "run", "rewind", "fork", "remember", "start", "close"]),
            )
            if kind == "run":
                chosen = [s for s in sequences if s is sequence or rng.random() < 0.3][:3]
                counts = [int(rng.choice([1, 1, 2, 5, 17, 40, 70])) for _ in chosen]
                if any(s.length + n > 250 for s, n in zip(chosen, counts, strict=True)):
                    continue
                # few tokens, so that sequences agree often
                texts = [rng.integers(0, 2, n).astype(np.int32) for n in counts]
                try:
                    rows = model.run([(s, text, "last") for s, text in zip(chosen, texts, strict=True)])
                except CacheFullError:
                    continue
                for one, row in zip(chosen, rows, strict=True):
                    assert np.array_equal(row, fresh(one.token_ids))
            elif kind == "rewind":
                sequence.rewind(int(rng.integers(max(0, sequence.length - 60), sequence.length + 1)))
            elif kind == "fork" and len(sequences) < 4:
                sequences.append(sequence.fork())
            elif kind == "remember":
                cache.remember(sequence)
            elif kind == "start":
                sequences[index] = cache.start([*sequence.token_ids, 1])
                sequence.close()
            elif kind == "close":
                sequence.close()
                sequences[index] = cache.sequence()
        for sequence in sequences:
            sequence.close()
        cache.forget()
        assert cache.used_bytes == 0


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_every_row_is_that_of_its_tokens_alone(model, seed):
    random_calls(model, seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 12))
def test_whatever_is_done_at_length(model, seed):
    random_calls(model, seed, 200)
