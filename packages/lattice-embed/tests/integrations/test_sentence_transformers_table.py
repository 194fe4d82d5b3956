"""The manual's table of what ``SentenceEncoder`` shares with ``SentenceTransformer``: made by calling both.

Each line is evaluated with both classes. Where both are to give the same, the results are compared; where ours refuses,
the error must hold the name, and its reason is what the table says. A name of that class without a line fails.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed import InvalidInputError, NativeEmbeddingService
from lattice_embed.integrations.sentence_options import MISSING_METHODS
from lattice_embed.integrations.sentence_transformers import SentenceEncoder

pytestmark = pytest.mark.model

PAGE = Path(__file__).parents[4] / "docs" / "integrations.md"
BEGIN, END = "<!-- sentence-transformers, by test_sentence_transformers_table.py -->\n\n", "\n<!-- end -->\n"

TEXTS = [
    "a cat",
    "a kitten sleeps",
    "naïve café, Straße",
    "短い日本語のテストです。",
    "stocks fell",
    "the market lost",
    "word " * 300,
]

# name, or names: what is called. M is the class, m a model, texts the texts above
CONSTRUCTOR = {
    "model_name_or_path": "M(model_name_or_path=folder).encode(texts)",
    "modules": "M(folder, modules=[object()])",
    "device": "M(folder, device='cpu').encode(texts)",
    "device of another kind": "M(folder, device='meta')",
    "prompts": "M(folder, prompts={'q': 'find: '}).encode(texts, prompt_name='q')",
    "default_prompt_name": "M(folder, prompts={'q': 'find: '}, default_prompt_name='q').encode(texts)",
    "cache_folder": "M(folder, cache_folder='models').encode(texts)",
    "trust_remote_code": "M(folder, trust_remote_code=True).encode(texts)",
    "local_files_only": "M(folder, local_files_only=True).encode(texts)",
    "revision": "M(name, revision=commit, local_files_only=True).encode(texts)",
    "token": "M(folder, token='hf_0').encode(texts)",
    "use_auth_token": "M(folder, use_auth_token='hf_0').encode(texts)",
    "model_kwargs": "M(folder, model_kwargs={'torch_dtype': 'float32'})",
    "processor_kwargs": "M(folder, processor_kwargs={'use_fast': True})",
    "tokenizer_kwargs": "M(folder, tokenizer_kwargs={'use_fast': True})",
    "config_kwargs": "M(folder, config_kwargs={'use_cache': False})",
    "model_card_data": "M(folder, model_card_data=card)",
    "backend": "M(folder, backend='torch').encode(texts)",
    "backend of another kind": "M(folder, backend='onnx')",
    "similarity_fn_name": "M(folder, similarity_fn_name='dot').similarity(tensor, tensor)",
    "truncate_dim": "M(folder, truncate_dim=100).encode(texts, normalize_embeddings=True)",
}
ENCODE = {
    "inputs": "m.encode(inputs=texts)",
    "sentences": "m.encode(sentences=texts)",
    "prompt_name": "m.encode(texts, prompt_name='query')",
    "prompt": "m.encode(texts, prompt='find: ')",
    "batch_size": "m.encode(texts, batch_size=2)",
    "show_progress_bar": "m.encode(texts, show_progress_bar=True)",
    "output_value": "[m.encode(x, prompt='find: ', output_value='token_embeddings') for x in (texts, '')]",
    "output_value of another kind": "m.encode(texts, output_value=None)",
    "precision": "[m.encode(texts, precision=p) for p in ('float32', 'int8', 'uint8', 'binary', 'ubinary')]",
    "convert_to_numpy": "m.encode(texts, convert_to_numpy=False)",
    "convert_to_tensor": "m.encode(texts, convert_to_tensor=True, precision='binary')",
    "device": "m.encode(texts, device='cpu')",
    "normalize_embeddings": "m.encode(texts, normalize_embeddings=True)",
    "truncate_dim": "m.encode(texts, truncate_dim=100)",
    "pool, chunk_size": "m.encode(texts, pool=pool, chunk_size=3)",
    "task": "m.encode(texts, task='query')",
    "processing_kwargs": "m.encode(texts, processing_kwargs={'text': {'max_length': 9}})",
    "another option": "m.encode(texts, colour=1)",
}
METHODS = {
    "encode_query": "m.encode_query(texts, prompt='find: ')",
    "encode_document": "m.encode_document(sentences=texts)",
    "encode_multi_process": "m.encode_multi_process(texts, pool)",
    "start_multi_process_pool, stop_multi_process_pool": "m.stop_multi_process_pool(m.start_multi_process_pool(['cpu']))",
    "similarity": "m.similarity(tensor, tensor)",
    "similarity_pairwise": "m.similarity_pairwise(tensor, tensor)",
    "similarity_fn_name": "m.similarity_fn_name",
    "max_seq_length": "m.max_seq_length",
    "max_seq_length, set": "shortened(m).encode(texts)",
    "get_max_seq_length": "m.get_max_seq_length()",
    "get_embedding_dimension": "m.get_embedding_dimension()",
    "get_sentence_embedding_dimension": "m.get_sentence_embedding_dimension()",
    "truncate_embeddings, truncate_sentence_embeddings": "truncated(m)",
    "tokenizer": "ids(m.tokenizer, 'a cat sleeps')",
    "tokenize": "m.tokenize(texts)",
    "preprocess": "m.preprocess(texts, prompt='find: ')",
    "device": "m.device.type",
    "to": "m.to('cpu').encode(texts)",
    "device of to": "M(folder).to('meta')",
    "eval": "m.eval().encode(texts)",
    "train": "m.train(False).encode(texts)",
    "train, to learn": "m.train(True)",
    "cpu": "m.cpu().encode(texts)",
    "util.paraphrase_mining": "util.paraphrase_mining(m, texts)",
    "util.semantic_search": "util.semantic_search(m.encode('a cat', convert_to_tensor=True), tensor)",
}
AREAS = {"constructor": CONSTRUCTOR, "encode": ENCODE, "the object": METHODS}
ROWS = [(area, names, call) for area, rows in AREAS.items() for names, call in rows.items()]

# Where a result is the same numbers in another class: what ours is.
OTHER_CLASSES = {
    "output_value": "same numbers as NumPy arrays",
    "tokenizer": "same ids; our own class, `encode(text).ids`",
    "tokenize": "same numbers as NumPy arrays",
    "preprocess": "same numbers as NumPy arrays",
    "pool, chunk_size": "same; the pool is an `EncodingPool`",
}


def test_every_name_of_the_library_has_a_line() -> None:
    library = pytest.importorskip("sentence_transformers").SentenceTransformer
    torch = pytest.importorskip("torch")
    for method, rows in ((library.__init__, CONSTRUCTOR), (library.encode, ENCODE)):
        names = set(inspect.signature(method).parameters) - {"self", "kwargs"}
        assert names - {name for row in rows for name in row.split(", ")} == set()
    public = {name for name in set(dir(library)) - set(dir(torch.nn.Sequential)) if not name.startswith("_")}
    lines = {name for row in METHODS for name in row.split(", ")} | set(MISSING_METHODS) | {"encode"}
    assert public - lines == set()
    assert [name for name in MISSING_METHODS if hasattr(SentenceEncoder, name)] == []


@pytest.fixture(scope="module")
def names(minilm: NativeEmbeddingService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What the calls may use: of their library, and of ours."""
    library, torch = pytest.importorskip("sentence_transformers"), pytest.importorskip("torch")
    torch.set_num_threads(1)  # its threads spin where others work
    commit = "0" * 39 + "1"
    hub = tmp_path_factory.mktemp("hub") / "hub"
    snapshot = hub / "models--somebody--minilm" / "snapshots" / commit
    for file in filter(Path.is_file, minilm.directory.rglob("*")):
        (snapshot / file.relative_to(minilm.directory)).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / file.relative_to(minilm.directory)).symlink_to(file.resolve())
    shared = {
        "folder": str(minilm.directory),
        "texts": TEXTS,
        "util": library.util,
        "card": library.SentenceTransformerModelCardData(),
        "tensor": torch.from_numpy(minilm.encode(TEXTS)),
        "commit": commit,
        "name": "somebody/minilm",
        "shortened": shortened,
        "truncated": truncated,
        "ids": lambda tokenizer, text: (
            list(getattr(tokenizer(text) if callable(tokenizer) else None, "input_ids", ()))
            or tokenizer.encode(text).ids.tolist()
        ),
    }
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(hub))
        patch.setattr(constants, "HF_HUB_CACHE", str(hub))
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        made = [
            shared | {"M": of, "m": of(str(minilm.directory), device="cpu")} for of in (TheirsOnCpu(), SentenceEncoder)
        ]
        yield made


@pytest.fixture(scope="module")
def pools(names: list[dict[str, Any]]) -> Iterator[list[Any]]:
    theirs, ours = (each["m"] for each in names)
    with ours.start_multi_process_pool(["cpu"]) as pool:
        started = theirs.start_multi_process_pool(["cpu"])
        yield [started, pool]
        theirs.stop_multi_process_pool(started)


class TheirsOnCpu:
    """``SentenceTransformer`` on the CPU, wherever the tests run."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        import sentence_transformers

        return sentence_transformers.SentenceTransformer(*arguments, **{"device": "cpu"} | options)


def shortened(model: Any) -> Any:
    model = type(model)(model.service.directory if isinstance(model, SentenceEncoder) else model[0].model.name_or_path)
    model.max_seq_length = 7
    return model


def truncated(model: Any) -> Any:
    with model.truncate_embeddings(50):
        first = model.encode(TEXTS)
    with model.truncate_sentence_embeddings(20):
        return [first, model.encode(TEXTS), np.array(model.get_embedding_dimension())]


def result(call: str, names: dict[str, Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # theirs warns of earlier names
            return eval(call, dict(names))
    except Exception as error:
        return error


def stated_lines() -> list[str]:
    """The lines of the manual's table, without its head."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].splitlines()[2:]


def missing_lines() -> list[str]:
    names = {reason: [] for reason in MISSING_METHODS.values()}  # type: dict[str, list[str]]
    for name, reason in MISSING_METHODS.items():
        names[reason].append(f"`{name}`")
    return [f"| the object | {', '.join(each)} | refused: {reason} |" for reason, each in names.items()]


def test_table_of_the_manual_has_the_lines_that_are_called_here() -> None:
    lines = stated_lines()
    assert [line.rpartition(" | ")[0] for line in lines[: len(ROWS)]] == [
        f"| {area} | `{row}`" for area, row, _ in ROWS
    ]
    assert lines[len(ROWS) :] == missing_lines(), "\n".join(missing_lines())


@pytest.mark.slow
@pytest.mark.parametrize(("area", "row", "call"), ROWS, ids=[f"{area}, {row}" for area, row, _ in ROWS])
def test_line_of_the_table_says_what_both_do(
    names: list[dict[str, Any]], area: str, row: str, call: str, request: pytest.FixtureRequest
) -> None:
    pools = request.getfixturevalue("pools") if "pool" in row or "pool" in call else [None, None]
    theirs, ours = (result(call, each | {"pool": pool}) for each, pool in zip(names, pools, strict=True))
    if row != "another option":  # their library knows the name, whatever it makes of the value
        assert not isinstance(theirs, TypeError | AttributeError), theirs
    if isinstance(ours, Exception):
        assert isinstance(ours, InvalidInputError), ours
        assert ("colour" if row == "another option" else re.split("[, ]", row)[0]) in str(ours)
        here = f"refused: {str(ours).rpartition('does not exist here: ')[2]}"
    else:
        assert not isinstance(theirs, Exception), theirs
        check_equal(ours, theirs, row, same_class=row not in OTHER_CLASSES or "pool" in row)
        here = OTHER_CLASSES.get(row, "same")
    line = f"| {area} | `{row}` | {here} |"
    assert line in stated_lines(), f"the table of {PAGE.name} needs this line:\n{line}"


def test_what_is_missing_is_told_with_its_reason(names: list[dict[str, Any]]) -> None:
    for name, reason in MISSING_METHODS.items():
        with pytest.raises(AttributeError, match=re.escape(f"SentenceEncoder has no {name}: {reason}")):
            getattr(names[1]["m"], name)


def check_equal(ours: Any, theirs: Any, where: str, *, same_class: bool) -> None:
    """Fail unless both results are the same: classes, shapes, types, and values up to rounding."""
    if isinstance(theirs, list) and not same_class and isinstance(theirs[0], int):
        assert ours == theirs, where
    elif isinstance(theirs, list):
        assert type(ours) is list, where
        assert len(ours) == len(theirs), where
        for one, other in zip(ours, theirs, strict=True):
            check_equal(one, other, where, same_class=same_class)
    elif hasattr(theirs, "keys"):
        # theirs also says that these are texts, and how long a prompt is that a pooling may leave out
        known = [name for name in theirs if name not in ("modality", "prompt_length")]
        assert list(ours) == known, where
        for name in ours:
            check_equal(ours[name], theirs[name], f"{where}: {name}", same_class=same_class)
    elif hasattr(theirs, "shape"):
        assert type(ours) is (type(theirs) if same_class else np.ndarray), where
        one, other = np.asarray(ours), np.asarray(theirs)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, atol=5e-6, err_msg=where)
        elif one.dtype == np.int64:
            np.testing.assert_array_equal(one, other, err_msg=where)
        elif one.shape[-1] == 48:  # bits, of which some lie at the threshold
            assert np.unpackbits((one ^ other).view(np.uint8)).mean() < 0.005, where
        else:  # levels: rounding may fall on the next one
            assert np.abs(one.astype(int) - other).max() <= 1, where
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=5e-6), where
    else:
        assert type(ours) is type(theirs), where
        assert ours == theirs, where
