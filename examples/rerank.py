"""Search lines of a file in two stages: vectors find candidates, a cross-encoder orders them.

    python examples/rerank.py faq.txt "how do I reset my password?" --reranker cross-encoder/ms-marco-MiniLM-L6-v2

Comparing vectors is cheap, but query and text are read separately. A cross-encoder reads both together, which is
better and costs one model pass for each candidate.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lattice_embed import CrossEncoder, NativeEmbeddingService
from lattice_embed.vectors import top_k


def main() -> None:
    """Read the command line and print the best lines."""
    parser = argparse.ArgumentParser(description="Search lines of a file in two stages.")
    parser.add_argument("file", type=Path)
    parser.add_argument("query")
    parser.add_argument("--reranker", required=True, help="a cross-encoder's directory or hub id")
    parser.add_argument("--model", default="all-minilm-l6-v2", help="the embedding model")
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--top", type=int, default=5)
    arguments = parser.parse_args()
    lines = [line for line in arguments.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    with NativeEmbeddingService(arguments.model) as service:
        query = service.embed_query(arguments.query)
        found = top_k(query, service.embed_passage(lines), min(arguments.candidates, len(lines)))
    candidates = [lines[index] for index in found.indices]
    with CrossEncoder(arguments.reranker) as reranker:
        for hit in reranker.rank(arguments.query, candidates, top_k=arguments.top):
            print(f"{hit.score:.3f}  (was {hit.index + 1} of {len(candidates)})  {candidates[hit.index]}")


if __name__ == "__main__":
    main()
