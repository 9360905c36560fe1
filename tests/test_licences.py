"""Test that installed dependencies may be used beside Apache-2.0 and are in the bill of materials.

Not covered: what wheels bundle without naming it, and the extras `dev` and `docs`, not needed to train.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import grpo_verl_ext

USERS_EXTRAS = ("cpu", "iterate", "ablation")
LEFT_OUT = {"torchaudio", "torchcodec", "torchvision", "llm", "llama-cpp-python"}
"""Of constraints/cpu-overrides.txt."""

ALLOWED = {
    *("0BSD", "BSD", "BSD License", "3-Clause BSD License", "BSD-2-Clause", "BSD-3-Clause"),
    *("MIT", "MIT License", "MIT-0", "MIT-CMU", "ISC", "ISC License (ISCL)", "BSL-1.0"),
    *("Apache-2.0", "Apache 2.0", "Apache 2.0 License", "Apache Software License"),
    *("Apache-2.0 WITH LLVM-exception", "CC0-1.0", "CNRI-Python", "The Unlicense (Unlicense)"),
    *("PSF-2.0", "Python Software Foundation License"),
    # copyleft of the file: unchanged files are used, none is copied
    *("MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)"),
}
"""SPDX names and those of the package index; the ones with OR and AND are put together of these."""

NAMED_BY_HAND = {
    # the licence itself: METADATA's field License has the whole text, or none; licenses/LICENSE in the wheel
    "tiktoken": "MIT",
    "openai-harmony": "Apache-2.0",
    # repoze's: BSD with 3 clauses and one on trademarks; LICENSES.txt in the wheel
    "supervisor": "BSD-3-Clause",
    # as its METADATA says: imported, unchanged, at the wish of vLLM's mistral-common; nothing is linked
    "pycountry": "LGPL-2.1-only",
    # Intel's End User License Agreement for Developer Tools, LICENSE.txt in the wheel: free to use and to
    # hand on unchanged, but not free software; vLLM's CPU build on x86-64 asks for it, a GPU machine does not
    "intel-openmp": "Intel EULA",
    "intel-cmplr-lib-ur": "Intel EULA",
}
"""Packages whose metadata names no licence, or one that is not in `ALLOWED` and was judged."""


def requirements_of(name: str, extras: set[str]) -> Iterator[Requirement]:
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield requirement


def asked_for_by() -> dict[str, str]:
    """Every package that the users' extras install → the one that asks for it."""
    todo, found, seen = [(Requirement(f"grpo-verl-ext[{','.join(USERS_EXTRAS)}]"), "you")], {}, set()
    while todo:
        requirement, asker = todo.pop()
        name = canonicalize_name(requirement.name)
        step = (name, frozenset(requirement.extras))
        if step in seen or name in LEFT_OUT:
            continue
        seen.add(step)
        found.setdefault(name, asker)
        todo += [(each, name) for each in requirements_of(name, requirement.extras)]
    return found


@pytest.fixture(scope="module")
def asked() -> dict[str, str]:
    try:
        return asked_for_by()
    except PackageNotFoundError as error:
        pytest.fail(f"{error.name} is not installed. Type: bash examples/setup_cpu.sh cpu,dev")


@pytest.fixture(scope="module")
def said(asked: dict[str, str]) -> dict[str, str]:
    """The licence of each of them."""
    command = [sys.executable, "-m", "piplicenses", "--with-system", "--format=json", "--packages", *asked]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    listed = json.loads(found.stdout)
    return {canonicalize_name(row["Name"]): row["License"] for row in listed}


def is_allowed(licence: str) -> bool:
    """AND and the classifiers' ``;`` need all, OR needs one."""
    parts = re.split(" AND |; ", licence)
    alternatives = [part[1:-1] if part.startswith("(") else part for part in parts]
    return all(ALLOWED.intersection(each.split(" OR ")) for each in alternatives)


def test_what_users_install_may_be_used_beside_our_licence(
    asked: dict[str, str], said: dict[str, str]
) -> None:
    assert set(said) == set(asked)
    offenders = {
        name: f"{said[name][:60]!r}, asked for by {asked[name]}"
        for name in sorted(said)
        if name not in NAMED_BY_HAND and not is_allowed(said[name])
    }
    assert offenders == {}


def test_the_licences_named_by_hand_are_needed(said: dict[str, str]) -> None:
    assert set(NAMED_BY_HAND) <= set(said)
    assert [name for name in NAMED_BY_HAND if is_allowed(said[name])] == []


def test_the_bill_of_materials_has_this_package_and_what_it_needs(
    asked: dict[str, str], tmp_path: Path
) -> None:
    """The command of SECURITY.md, without its check against CycloneDX's schema, which takes long."""
    file = tmp_path / "sbom.json"
    command = [Path(sys.executable).parent / "cyclonedx-py", "environment", "--no-validate"]
    subprocess.run(
        [*command, "--output-reproducible", "--output-file", file, sys.executable], check=True, timeout=300
    )
    bill = json.loads(file.read_text(encoding="utf-8"))
    versions = {canonicalize_name(part["name"]): part["version"] for part in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX"
    assert versions["grpo-verl-ext"] == grpo_verl_ext.__version__
    assert set(asked) <= set(versions)
    assert {name: versions[name] for name in asked} == {name: distribution(name).version for name in asked}
