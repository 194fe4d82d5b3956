"""Answer a question from a folder of texts, with a language model in a GGUF file.

    python examples/answer_from_documents.py notes "when are refunds paid?" --generator SmolLM2-135M-Instruct.Q4_1.gguf

``search_folder.py`` finds the passages nearest to the question, and the model reads only these. A model of 135 million
parameters copies sentences at best: use a larger one for real answers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from search_folder import Passage, open_folder, search, update

from lattice_embed import NativeEmbeddingService
from lattice_inference import Chat, GenerateConfig, Session, load_model

SYSTEM = "You answer questions from the text that you are given, in one short sentence."


def question_with(passages: list[Passage], question: str) -> str:
    """Return the message to the model: the passages, then the question."""
    return "Text:\n" + "\n".join(passage.text for passage in passages) + f"\n\nQuestion: {question}"


def main() -> None:
    """Read the command line, find passages and print the answer with its sources."""
    parser = argparse.ArgumentParser(description="Answer a question from a folder of texts.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--generator", required=True, help="a GGUF file or a model's directory")
    parser.add_argument("--model", default="all-minilm-l6-v2", help="the embedding model")
    parser.add_argument("--top", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=60)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    with NativeEmbeddingService(arguments.model) as service, open_folder(folder, service) as store:
        update(store, service, folder)
        passages = search(store, service, arguments.question, arguments.top)
    with load_model(arguments.generator) as model, Session(model) as session:
        chat = Chat(session, system=SYSTEM, config=GenerateConfig.greedy(arguments.max_tokens))
        print(chat.send(question_with(passages, arguments.question)).text)
    print("from: " + ", ".join(passage.name for passage in passages))


if __name__ == "__main__":
    main()
