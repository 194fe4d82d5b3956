"""Names, versions, changelogs and tags agree, and sdists depend on the sources alone."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from .conftest import ROOT

sys.path.insert(0, str(ROOT / "ci"))
import distributions
import release
import source_archive

PACKAGES = distributions.distributions()
INFERENCE = PACKAGES[0]


def changed(**fields: object) -> list[distributions.Distribution]:
    """The packages, the first of them with other facts."""
    return [dataclasses.replace(INFERENCE, **fields), *PACKAGES[1:]]


def test_the_packages_agree_with_their_changelogs():
    assert list(distributions.faults(PACKAGES, [])) == []
    assert {package.folder for package in PACKAGES} == {path.parent for path in ROOT.glob("packages/*/pyproject.toml")}


def test_a_name_that_is_taken_is_refused_for_an_upload_only():
    refused = [
        fault for fault in distributions.faults(PACKAGES, [], for_upload=True) if "must not be uploaded" in fault
    ]
    taken = [package.name for package in PACKAGES if package.name in distributions.TAKEN_NAMES]
    assert [fault.split(": ")[1].split(" ")[0] for fault in refused] == taken
    other = [dataclasses.replace(package, name=f"{package.short}-of-ours") for package in PACKAGES]
    assert not [fault for fault in distributions.faults(other, [], for_upload=True) if "must not be uploaded" in fault]


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"version": "0.2.0"}, "its first entry is not of version 0.2.0"),
        ({"version": "1.0"}, "the version '1.0' is not of the form"),
        ({"requirements": ("lattice-embed[remote]>=0.1",)}, "it needs lattice-embed, which is uploaded after it"),
        ({"name": "other"}, "it needs lattice-inference, which no package of the workspace is called"),
        ({"changelog": "## 0.1.0 (soon)\n\n### Added\n"}, "its first entry is not of version 0.1.0"),
        ({"changelog": "## 0.1.0 (unreleased)\n\n* x\n"}, "0.1.0 has none of the sections"),
        ({"changelog": "## 0.1.0 (unreleased)\n\n### Fixed\n\n### Added\n"}, "0.1.0 has the sections Fixed, Added"),
        ({"changelog": "## 0.1.0 (unreleased)\n\n### Removed\n"}, "0.1.0 has the sections Removed"),
    ],
)
def test_disagreement_is_named(facts, fault):
    assert any(fault in line for line in distributions.faults(changed(**facts), []))


def test_a_tag_must_be_of_the_version_and_the_changelog_dated():
    dated = changed(changelog=INFERENCE.changelog.replace("(unreleased)", "(2026-12-01)", 1))
    assert list(distributions.faults(dated, [INFERENCE.tag, "other-9.9.9", "v1"])) == []
    (wrong,) = distributions.faults(dated, ["inference-9.9.9"])
    assert "the tag inference-9.9.9 is on this commit" in wrong
    (undated,) = distributions.faults(PACKAGES, [INFERENCE.tag])
    assert "whose changelog says unreleased" in undated


def test_the_command_refuses_an_upload(capsys):
    assert release.main(["check", "--packages", "transport", "--for-upload"]) == 1
    assert "version" in capsys.readouterr().err
    assert release.main(["check"]) == 0
    assert release.main(["check", "--tag", "nothing-1.0"]) == 1
    assert "names no package" in capsys.readouterr().err


def archive(names: list[str], *, time: int, owner: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as target:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.mode = len(name), time, owner, 0o600
            target.addfile(member, io.BytesIO(name.encode()))
    return packed.getvalue()


def test_an_sdist_depends_on_its_files_alone():
    one = source_archive.normalize(archive(["x-1/a", "x-1/b"], time=5, owner="me"), 1_000)
    other = source_archive.normalize(archive(["x-1/b", "x-1/a"], time=7, owner="you"), 1_000)
    assert one == other
    assert one != source_archive.normalize(archive(["x-1/a", "x-1/c"], time=5, owner="me"), 1_000)
    with tarfile.open(fileobj=io.BytesIO(one)) as read:
        members = read.getmembers()
        assert [(member.name, member.mtime, member.uname, member.mode) for member in members] == [
            ("x-1/a", 1_000, "", 0o644),
            ("x-1/b", 1_000, "", 0o644),
        ]
        assert read.extractfile(members[0]).read() == b"x-1/a"


def test_wheels_are_built_for_what_is_promised():
    for package in PACKAGES:
        settings = tomllib.loads((package.folder / "pyproject.toml").read_text(encoding="utf-8"))
        wheels = settings.get("tool", {}).get("cibuildwheel")
        assert (wheels is not None) == package.is_native
        if wheels is not None:
            assert wheels["build"] == ["cp311-*", "cp312-*", "cp313-*", "cp314-*"]
            assert wheels["linux"]["archs"] == ["x86_64", "aarch64"]
            assert wheels["macos"]["archs"] == ["arm64", "x86_64"]
            assert not [pattern for pattern in wheels["skip"] if "musl" in pattern or "many" in pattern]


def test_every_tag_of_a_package_starts_a_release():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    listed = re.search(r"^    tags: \[(.*)\]$", text, re.MULTILINE)
    assert sorted(listed[1].replace('"', "").split(", ")) == sorted(f"{package.short}-*" for package in PACKAGES)
    assert "ci/release.py check --for-upload" in text
    whole = Path(ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    shorts = [package.short for package in PACKAGES]
    for named in re.findall(r"'\[([^]]+)\]'", whole):
        assert re.findall(r'"(\w+)"', named) == shorts
