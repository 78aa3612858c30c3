"""Imports every module of one installed distribution and loads its console scripts.

Run it with `python -I` in an environment that holds the distribution and what it declares, nothing
else: a module that needs an undeclared package then fails here. It knows nothing of the workspace.
"""

import importlib
import sys
from importlib import metadata
from pathlib import PurePosixPath


def module_names(distribution: metadata.Distribution) -> list[str]:
    """The importable modules among the installed files; `__main__` would run the program."""
    names = set()
    for file in distribution.files or []:
        path = PurePosixPath(file)
        if path.suffix != ".py" or ".." in path.parts or path.name == "__main__.py":
            continue
        parts = path.with_suffix("").parts
        names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(names)


def main(distribution_name: str) -> int:
    """Report each module that cannot be imported; the exit code says whether there was one."""
    distribution = metadata.distribution(distribution_name)
    names = module_names(distribution)
    failures = 0
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module raises at import is the finding
            failures += 1
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    for script in distribution.entry_points:
        try:
            script.load()
        except Exception as error:  # as above
            failures += 1
            print(f"script {script.name}: {type(error).__name__}: {error}", file=sys.stderr)
    if not any(PurePosixPath(file).name == "py.typed" for file in distribution.files or []):
        failures += 1
        print(f"{distribution_name}: the wheel has no py.typed", file=sys.stderr)
    print(f"{distribution_name}: {len(names)} modules, {failures} failures")
    return 1 if failures or not names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
