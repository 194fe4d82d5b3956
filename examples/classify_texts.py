"""Train a small network on vectors of labelled texts, and label others.

    python examples/classify_texts.py labelled.tsv "the parcel never came" "how do I pay?"

Each line of the file is a label, a tab and a text. About twenty texts for each label are enough to start, because the
embedding model already knows the language. ``lattice-tune`` makes a model with versions from the same data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lattice_embed import NativeEmbeddingService
from lattice_fann import MLPClassifier


def main() -> None:
    """Read the command line, train, and print a label for each text."""
    parser = argparse.ArgumentParser(description="Label texts by a network trained on vectors.")
    parser.add_argument("file", type=Path)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--model", default="all-minilm-l6-v2")
    parser.add_argument("--save", type=Path, help="write the network, for example to labels.fann")
    arguments = parser.parse_args()
    lines = [line for line in arguments.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    labels, texts = zip(*(line.split("\t", 1) for line in lines), strict=True)
    with NativeEmbeddingService(arguments.model) as service:
        classifier = MLPClassifier(16, learning_rate_init=0.01, max_iter=300, tol=1e-3, random_state=0)
        classifier.fit(service.encode(texts), labels)
        probabilities = classifier.predict_proba(service.encode(arguments.texts))
    for text, row in zip(arguments.texts, probabilities, strict=True):
        print(f"{classifier.classes_[row.argmax()]}  {row.max():.2f}  {text}")
    if arguments.save:
        classifier.network_.save(arguments.save)


if __name__ == "__main__":
    main()
