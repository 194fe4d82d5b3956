"""Adapters for other libraries. Each module needs its library and is imported by name:

    from lattice_embed.integrations.langchain import LatticeEmbeddings
    from lattice_embed.integrations.llama_index import LatticeEmbedding
    from lattice_embed.integrations.chroma import LatticeEmbeddingFunction
    from lattice_embed.integrations.haystack import LatticeDocumentEmbedder, LatticeRanker, LatticeTextEmbedder
    from lattice_embed.integrations.scikit_learn import LatticeVectorizer
    from lattice_embed.integrations.sentence_transformers_module import LatticeModule
    from lattice_embed.integrations.sentence_transformers import SentenceEncoder

The extras ``langchain``, ``llama-index``, ``chroma``, ``haystack``, ``scikit-learn`` and ``sentence-transformers`` bring the
libraries; the last needs none.
"""
