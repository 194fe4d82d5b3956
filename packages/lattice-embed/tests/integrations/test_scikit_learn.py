"""``LatticeVectorizer`` as a step of scikit-learn."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from lattice_embed import InvalidInputError, InvalidTextError, NativeEmbeddingService

pytest.importorskip("sklearn")
from sklearn.base import clone  # type: ignore[import-untyped]
from sklearn.compose import ColumnTransformer  # type: ignore[import-untyped]
from sklearn.exceptions import NotFittedError  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from sklearn.model_selection import GridSearchCV  # type: ignore[import-untyped]
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]

from lattice_embed.integrations.scikit_learn import LatticeVectorizer

TEXTS = ["a cat", "", "naïve café", "the stock market fell", "a cat"]


def test_vectors_are_those_of_the_service(service: NativeEmbeddingService) -> None:
    made = LatticeVectorizer("minilm").fit_transform(TEXTS)
    assert made.tobytes() == service.encode(TEXTS).tobytes()
    assert made.dtype == np.float32
    assert LatticeVectorizer(service).fit(TEXTS).transform(TEXTS).tobytes() == made.tobytes()
    queries = LatticeVectorizer("bge-small-en-v1.5", role="query", normalize=False).fit_transform(TEXTS)
    expected = NativeEmbeddingService("bge-small-en-v1.5").encode(TEXTS, role="query", normalize=False)  # type: ignore[arg-type]
    assert queries.tobytes() == expected.tobytes()
    assert LatticeVectorizer("minilm").fit(TEXTS).transform([]).shape == (0, 384)


@pytest.mark.parametrize(
    "column",
    [
        np.array(TEXTS),
        np.array(TEXTS, object),
        np.array(TEXTS)[:, None],
        np.array(TEXTS, object)[:, None],
        tuple(TEXTS),
        iter(TEXTS),
    ],
    ids=["array", "objects", "one column", "one column of objects", "tuple", "iterator"],
)
def test_column_of_any_kind_is_taken(service: NativeEmbeddingService, column: Any) -> None:
    vectorizer = LatticeVectorizer("minilm").fit(TEXTS)
    assert vectorizer.transform(column).tobytes() == service.encode(TEXTS).tobytes()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables_of_one_column_are_taken_and_others_refused(service: NativeEmbeddingService, library: str) -> None:
    frames = pytest.importorskip(library)
    table = frames.DataFrame({"text": TEXTS, "year": list(range(len(TEXTS)))})
    vectorizer = LatticeVectorizer("minilm").fit(table[["text"]])
    assert vectorizer.transform(table[["text"]]).tobytes() == service.encode(TEXTS).tobytes()
    assert vectorizer.transform(table["text"]).tobytes() == service.encode(TEXTS).tobytes()
    with pytest.raises(InvalidInputError, match=r"\['text'\]"):
        vectorizer.transform(table)


def test_column_transformer_puts_vectors_beside_other_columns(service: NativeEmbeddingService) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": TEXTS, "year": range(len(TEXTS))}, index=[5, 3, 8, 1, 2])
    for columns in ("text", ["text"]):
        step = ColumnTransformer([("words", LatticeVectorizer("minilm"), columns)], remainder="passthrough")
        made = step.set_output(transform="pandas").fit_transform(table)
        assert list(made.columns) == [*(f"words__latticevectorizer{i}" for i in range(384)), "remainder__year"]
        assert list(made.index) == list(table.index)
        assert made.iloc[:, :384].to_numpy(np.float32).tobytes() == service.encode(TEXTS).tobytes()


def test_set_output_gives_named_columns(service: NativeEmbeddingService) -> None:
    names = [f"latticevectorizer{i}" for i in range(384)]
    vectorizer = LatticeVectorizer("minilm").fit(TEXTS)
    assert vectorizer.get_feature_names_out().tolist() == names
    pandas = pytest.importorskip("pandas")
    made = vectorizer.set_output(transform="pandas").transform(pandas.Series(TEXTS, index=list("edcba")))
    assert list(made.columns) == names
    assert list(made.index) == list("edcba")


def test_clone_has_the_parameters_and_is_not_fitted(service: NativeEmbeddingService) -> None:
    vectorizer = LatticeVectorizer("minilm", role="query", precision="bfloat16", max_tokens=9, threads=1).fit(TEXTS)
    copy = clone(vectorizer)
    assert copy.get_params() == vectorizer.get_params()
    with pytest.raises(NotFittedError):
        copy.transform(TEXTS)
    with pytest.raises(NotFittedError):
        copy.get_feature_names_out()
    assert copy.fit(TEXTS).service_.recipe() == vectorizer.service_.recipe()
    assert dict(copy.service_.recipe()[1]) | {"max_tokens": 9, "precision": "bfloat16", "threads": 1} == dict(
        copy.service_.recipe()[1]
    )
    with_service = clone(LatticeVectorizer(service))
    assert with_service.model is not service
    assert with_service.fit_transform(TEXTS).tobytes() == service.encode(TEXTS).tobytes()


def test_pickled_vectorizer_gives_the_same_vectors(service: NativeEmbeddingService) -> None:
    vectorizer = LatticeVectorizer("minilm").fit(TEXTS)
    copy = pickle.loads(pickle.dumps(vectorizer))
    assert copy.transform(TEXTS).tobytes() == vectorizer.transform(TEXTS).tobytes()


def test_wrong_input_is_told_with_its_place(service: NativeEmbeddingService) -> None:
    vectorizer = LatticeVectorizer("minilm").fit(TEXTS)
    for missing in (None, float("nan"), 5):
        with pytest.raises(InvalidTextError, match="text 1 is"):
            vectorizer.transform(["a", missing])
    with pytest.raises(InvalidInputError, match="one str"):
        vectorizer.fit("a cat")
    with pytest.raises(InvalidInputError, match=r"X has shape \(5, 2\): pass one column"):
        vectorizer.fit(np.array([TEXTS, TEXTS]).T)
    for wrong in ({"role": "other"}, {"normalize": "yes"}, {"precision": "int3"}, {"max_tokens": 0}):
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            LatticeVectorizer("minilm", **wrong).fit(TEXTS)
    with pytest.raises(InvalidInputError, match="threads given with a service"):
        LatticeVectorizer(service, threads=2).fit(TEXTS)
    with pytest.raises(NotFittedError):
        LatticeVectorizer("minilm").transform(TEXTS)


@pytest.mark.model
@pytest.mark.slow
def test_classifier_on_vectors_learns_what_words_it_never_saw_mean(minilm: NativeEmbeddingService) -> None:
    animals = ["a cat sleeps", "the dog barks", "horses run", "birds sing", "a cow eats grass", "fish swim"]
    money = ["stocks fell", "the bank lends", "interest rates rise", "investors buy bonds", "a tax", "prices grow"]
    pipeline = make_pipeline(LatticeVectorizer(str(minilm.directory), threads=1), LogisticRegression())
    search = GridSearchCV(pipeline, {"latticevectorizer__max_tokens": [3, None]}, cv=3)
    search.fit(animals + money, [0] * 6 + [1] * 6)
    assert search.best_params_ == {"latticevectorizer__max_tokens": None}
    assert search.predict(["an elephant", "a credit card", "wolves hunt", "my salary"]).tolist() == [0, 1, 0, 1]
