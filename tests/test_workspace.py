"""House rules that hold for every package, checked on the files as git sees them.

Each rule has one test, which lists every violation at once. What may be excepted is excepted in a
table here, with a reason, and an exception that is no longer needed fails too.
"""

import ast
import importlib
import re
import runpy
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent

# Which packages of ours each package may require. A package without a row fails.
ARROWS: dict[str, set[str]] = {
    "dex-agents-tool-policy": set(),
    "dex-agents": {"dex-agents-tool-policy"},
    "dex-agents-checkpoint-codec": set(),
    "dex-agents-encrypted-serializer": set(),
    "dex-agents-langgraph-tools": {"dex-agents-tool-policy"},
    "dex-agents-langgraph": {
        "dex-agents",
        "dex-agents-checkpoint-codec",
        "dex-agents-langgraph-tools",
        "dex-agents-tool-policy",
    },
    "dex-embedded-engine": set(),
    "ag-ui-langgraph": set(),
    "dex-agents-ag-ui": {"dex-agents", "ag-ui-langgraph"},
}

# The same for what an extra may bring: package -> extra -> packages of ours.
EXTRA_ARROWS: dict[str, dict[str, set[str]]] = {
    "dex-agents-langgraph": {"encryption": {"dex-agents-encrypted-serializer"}},
}

STANDARD_LIBRARY_ONLY = {"dex-agents-tool-policy", "dex-agents-checkpoint-codec"}

SOURCE_FILE_LINES = 500
TEST_FILE_LINES = 700
INIT_FILE_LINES = 100
FUNCTION_LINES = 60

# "path" or "path:function" -> why it is longer than the limit.
LENGTH_EXCEPTIONS: dict[str, str] = {}

# "path: module" -> why the private module of another package has to be imported there.
PRIVATE_IMPORT_EXCEPTIONS: dict[str, str] = {}

VAGUE_NAMES = {"base", "common", "manager", "misc", "types"}
VAGUE_WORDS = {"helper", "helpers", "util", "utils"}

UNSAFE_CODECS = {"_pickle", "cloudpickle", "dill", "jsonpickle", "marshal", "pickle", "shelve"}

# Written so that this file does not match itself.
PRIVATE_PLACES = {
    "a path of one machine": re.compile(r"(?<![\w.-])/(?:work|root|tmp|home|opt)/"),
    "a package registry": re.compile(
        r"pypi\.org|pythonhosted\.org|registry\.npmjs|registry\.yarnpkg|deb\.debian\.org"
        r"|proxy\.golang\.org|conda\.anaconda\.org"
    ),
}


@dataclass(frozen=True)
class Package:
    """One folder below packages/, as its pyproject.toml describes it."""

    folder: Path
    project: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.project["name"])

    @property
    def import_name(self) -> str:
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        return self.folder / "src" / self.import_name

    def requirements(self) -> list[Requirement]:
        return [Requirement(line) for line in self.project.get("dependencies", [])]

    def extra_requirements(self) -> dict[str, list[Requirement]]:
        extras = self.project.get("optional-dependencies", {})
        return {extra: [Requirement(line) for line in lines] for extra, lines in extras.items()}

    def all_requirements(self) -> list[Requirement]:
        by_extra = self.extra_requirements().values()
        return [*self.requirements(), *(r for requirements in by_extra for r in requirements)]


def read_toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


PACKAGES = [
    Package(file.parent, read_toml(file)["project"])
    for file in sorted(ROOT.glob("packages/*/pyproject.toml"))
]
IMPORT_NAMES = {name.replace("-", "_"): name for name in ARROWS}


@cache
def repository_files() -> list[Path]:
    """Every file that is, or with the next `git add` would be, part of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    files = {ROOT / name for name in listing.decode().split("\0") if name}
    return sorted(file for file in files if file.is_file())


def python_files(below: Path = ROOT) -> list[Path]:
    return [f for f in repository_files() if f.suffix == ".py" and f.is_relative_to(below)]


def is_test(file: Path) -> bool:
    return bool({"tests", "integration-tests"} & set(file.relative_to(ROOT).parts))


def where(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@cache
def syntax_tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imported_modules(file: Path) -> Iterator[str]:
    """Absolute imports anywhere in the file; `from a import b` yields `a` and `a.b`."""
    for node in ast.walk(syntax_tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def line_count(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def siblings(requirements: list[Requirement]) -> set[str]:
    names: set[str] = {canonicalize_name(r.name) for r in requirements}
    return names & set(ARROWS)


def test_workspace_has_packages_and_each_has_a_row_in_the_arrow_table() -> None:
    assert PACKAGES
    assert [p.name for p in PACKAGES if p.name not in ARROWS] == []
    assert [p.name for p in PACKAGES if p.folder.name != p.name] == []


def test_root_lists_every_package_as_a_workspace_source() -> None:
    sources = read_toml(ROOT / "pyproject.toml")["tool"]["uv"]["sources"]
    assert sources == {p.name: {"workspace": True} for p in PACKAGES}


def test_arrows_go_one_way() -> None:
    rows = {
        name: arrows.union(*EXTRA_ARROWS.get(name, {}).values()) for name, arrows in ARROWS.items()
    }
    assert {target for arrows in rows.values() for target in arrows} <= set(rows)
    while rows:
        leaves = {name for name, arrows in rows.items() if not arrows}
        assert leaves, f"these packages require each other in a circle: {sorted(rows)}"
        rows = {name: arrows - leaves for name, arrows in rows.items() if name not in leaves}


def test_every_package_has_the_same_version() -> None:
    versions = {p.name: p.project["version"] for p in PACKAGES}
    assert len(set(versions.values())) == 1, versions


def test_sibling_requirements_pin_the_same_version() -> None:
    """The lock file does not notice a sibling pin that its version no longer meets."""
    wrong = [
        f"{p.name} requires {requirement}"
        for p in PACKAGES
        for requirement in p.all_requirements()
        if canonicalize_name(requirement.name) in ARROWS
        and str(requirement.specifier) != f"=={p.project['version']}"
    ]
    assert wrong == []


def test_declared_dependencies_follow_the_arrows() -> None:
    wrong = []
    for p in PACKAGES:
        allowed = ARROWS.get(p.name, set())
        beyond = siblings(p.requirements()) - allowed
        wrong += [f"{p.name} -> {name}" for name in sorted(beyond)]
        for extra, requirements in p.extra_requirements().items():
            by_extra = EXTRA_ARROWS.get(p.name, {}).get(extra, set())
            beyond = siblings(requirements) - allowed - by_extra - {p.name}
            wrong += [f"{p.name}[{extra}] -> {name}" for name in sorted(beyond)]
    assert wrong == []


def test_packages_for_the_standard_library_alone_declare_no_dependency() -> None:
    declared = {p.name: p.project.get("dependencies") for p in PACKAGES}
    assert {n: d for n, d in declared.items() if n in STANDARD_LIBRARY_ONLY and d} == {}


def test_source_imports_only_siblings_that_its_package_may_and_does_require() -> None:
    wrong = set()
    for p in PACKAGES:
        declared = siblings(p.all_requirements())
        allowed = ARROWS.get(p.name, set()).union(*EXTRA_ARROWS.get(p.name, {}).values())
        for file in python_files(p.folder / "src"):
            for module in imported_modules(file):
                sibling = IMPORT_NAMES.get(module.partition(".")[0], p.name)
                if sibling != p.name and sibling not in (allowed & declared):
                    wrong.add(f"{where(file)} imports {sibling}")
    assert sorted(wrong) == []


def private_imports() -> Iterator[str]:
    for file in python_files():
        parts = file.relative_to(ROOT).parts
        own = parts[1].replace("-", "_") if parts[0] == "packages" else ""
        for module in imported_modules(file):
            first, *rest = module.split(".")
            if first in {own, "__future__"}:
                continue
            if any(part.startswith("_") and not part.startswith("__") for part in rest):
                yield f"{where(file)}: {module}"


def test_no_package_imports_a_private_name_of_another() -> None:
    found = set(private_imports())
    assert sorted(found - set(PRIVATE_IMPORT_EXCEPTIONS)) == []
    assert sorted(set(PRIVATE_IMPORT_EXCEPTIONS) - found) == []


def too_long() -> Iterator[tuple[str, int]]:
    for file in python_files():
        limit = TEST_FILE_LINES if is_test(file) else SOURCE_FILE_LINES
        if file.name == "__init__.py":
            limit = INIT_FILE_LINES
        if (lines := line_count(file)) > limit:
            yield where(file), lines
        for node in ast.walk(syntax_tree(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield f"{where(file)}:{node.name}", lines


def test_files_and_functions_stay_short() -> None:
    found = dict(too_long())
    assert {name: n for name, n in found.items() if name not in LENGTH_EXCEPTIONS} == {}
    assert sorted(set(LENGTH_EXCEPTIONS) - set(found)) == []


def test_every_source_module_says_what_it_owns() -> None:
    files = [file for p in PACKAGES for file in python_files(p.folder / "src")]
    assert [where(f) for f in files if not ast.get_docstring(syntax_tree(f))] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = set()
    for file in python_files():
        for part in file.relative_to(ROOT).with_suffix("").parts:
            words = part.strip("_")
            if words in VAGUE_NAMES or VAGUE_WORDS & set(words.split("_")):
                vague.add(where(file))
    assert sorted(vague) == []


def test_nothing_imports_a_codec_that_runs_code() -> None:
    unsafe = {
        f"{where(file)}: {module}"
        for file in python_files()
        for module in imported_modules(file)
        if module.partition(".")[0] in UNSAFE_CODECS
    }
    assert sorted(unsafe) == []


def declared_all(file: Path) -> list[str]:
    for node in syntax_tree(file).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        if isinstance(target, ast.Name) and target.id == "__all__":
            assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            return list(ast.literal_eval(node.value))
    pytest.fail(f"{where(file)} has no `__all__`")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_package_exports_exactly_the_reviewed_names(package: Package) -> None:
    reviewed = runpy.run_path(str(ROOT / "tests" / "public_exports.py"))["PUBLIC_EXPORTS"]
    assert package.import_name in reviewed, "tests/public_exports.py has no list for it"
    declared = declared_all(package.source / "__init__.py")
    assert sorted(declared) == reviewed[package.import_name]
    module = importlib.import_module(package.import_name)
    assert [name for name in declared if not hasattr(module, name)] == []


def test_reviewed_names_belong_to_packages_that_exist() -> None:
    reviewed = runpy.run_path(str(ROOT / "tests" / "public_exports.py"))["PUBLIC_EXPORTS"]
    assert sorted(set(reviewed) - {p.import_name for p in PACKAGES}) == []


def test_every_package_is_typed_and_laid_out_alike() -> None:
    wrong = []
    for p in PACKAGES:
        sources = sorted(d.name for d in (p.folder / "src").iterdir() if d.is_dir())
        if sources != [p.import_name]:
            wrong.append(f"{p.name}: src holds {sources}")
        if not (p.source / "py.typed").is_file():
            wrong.append(f"{p.name}: no py.typed")
        if p.project.get("license") != "MIT" or p.project.get("requires-python") != ">=3.11":
            wrong.append(f"{p.name}: another license or another Python")
    assert wrong == []


def second_level_headings(file: Path) -> list[str]:
    text = re.sub(r"^(```|~~~).*?^\1", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"^##[ \t]+(.+?)[ \t]*$", text, flags=re.M)


def test_every_readme_ends_with_limits_and_design_decisions() -> None:
    endings = {p.name: second_level_headings(p.folder / "README.md")[-2:] for p in PACKAGES}
    assert endings == {p.name: ["Limits", "Design decisions"] for p in PACKAGES}


def test_no_file_names_a_place_that_only_some_machines_have() -> None:
    found = []
    for file in repository_files():
        if file == ROOT / "uv.lock":
            continue
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, start=1):
            found += [
                f"{where(file)}:{number} names {what}"
                for what, pattern in PRIVATE_PLACES.items()
                if pattern.search(line)
            ]
    assert found == []
