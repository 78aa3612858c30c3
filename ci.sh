#!/usr/bin/env bash
# Everything that must pass, cheapest first. `./ci.sh` is the short run: it leaves out the tests
# marked `full`. `./ci.sh --full` is everything. It needs Python 3.11 or newer with pip, and git.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly minimum_uv="0.12.2"
selection=(-m "not full")
case "${1-}" in
    "") ;;
    --full) selection=() ;;
    *) echo "usage: ./ci.sh [--full]" >&2; exit 2 ;;
esac

# Only interpreters that are on this machine; nothing is downloaded in their place.
export UV_PYTHON_DOWNLOADS=never
# The environment is always .venv here, whichever one the caller has activated.
unset VIRTUAL_ENV UV_PROJECT_ENVIRONMENT PYTHONPATH

scratch="$(mktemp -d)"
timings=()
current=""
finish() {
    local code=$?
    rm -rf "$scratch"
    [ -z "$current" ] || timings+=("$(printf '%5ds  %s (failed)' "$((SECONDS - started))" "$current")")
    printf '\n'
    [ "${#timings[@]}" -eq 0 ] || printf '%s\n' "${timings[@]}"
    printf '%5ds  in all, exit code %d\n' "$SECONDS" "$code"
}
trap finish EXIT

# step NAME COMMAND...: never call it in a condition, which would switch `set -e` off inside.
step() {
    current="$1"
    started=$SECONDS
    printf '\n== %s\n' "$current"
    shift
    "$@"
    timings+=("$(printf '%5ds  %s' "$((SECONDS - started))" "$current")")
    current=""
}

is_recent_uv() {
    local version
    version="$("$1" --version 2>/dev/null | awk '{print $2}')" || return 1
    [ -n "$version" ] && printf '%s\n%s\n' "$minimum_uv" "$version" | sort -V -C
}

# A uv of its own in .uv/ when there is no recent one: many a system's pip may not install anything.
find_uv() {
    local python
    uv="$(command -v uv || true)"
    if [ -n "$uv" ] && is_recent_uv "$uv"; then return; fi
    uv="$PWD/.uv/bin/uv"
    if is_recent_uv "$uv"; then return; fi
    for python in python3 python3.11 python3.12 python3.13 python3.14 python; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            rm -rf .uv
            if ! "$python" -m venv .uv >"$scratch/venv.log" 2>&1; then
                # No ensurepip here: the pip of the machine fills the environment instead.
                "$python" -m venv --clear --without-pip .uv
                "$python" -m pip --python .uv/bin/python install --quiet "uv>=$minimum_uv"
                return
            fi
            .uv/bin/python -m pip install --quiet "uv>=$minimum_uv"
            return
        fi
    done
    echo "ci.sh: there is no Python 3.11 or newer on PATH" >&2
    return 1
}

run() { "$uv" run --no-sync "$@"; }

has_python() { [ -d "$1" ] && [ -n "$(find "$1" -name '*.py' -print -quit)" ]; }

# One run per package, since test files of two packages may have the same name; one per example,
# since each has a main.py.
check_types() {
    local package folder
    for package in packages/*/; do
        local folders=()
        for folder in "${package}src" "${package}tests"; do
            if has_python "$folder"; then folders+=("$folder"); fi
        done
        echo "$package"
        run mypy "${folders[@]}"
    done
    for folder in tests tools benchmarks integration-tests examples/*/; do
        if has_python "$folder"; then
            echo "$folder"
            run mypy "$folder"
        fi
    done
}

run_tests() {
    PYTHONWARNDEFAULTENCODING=1 run pytest ${selection[@]+"${selection[@]}"}
}

# The folder is new every time: uv takes a rebuilt wheel of the same version for the old one.
build_wheels() {
    "$uv" build --quiet --all-packages --wheel --out-dir "$scratch/wheels"
    "$uv" export --quiet --locked --all-packages --all-extras --no-dev --no-hashes --no-annotate \
        --no-header --no-emit-workspace --output-file "$scratch/constraints.txt"
    local wheel distribution
    for wheel in "$scratch"/wheels/*.whl; do
        distribution="$(basename "$wheel" | cut -d- -f1 | tr _ -)"
        echo "$distribution @ file://$wheel" >>"$scratch/constraints.txt"
    done
}

# Each wheel gets an environment with what it declares and nothing else: third-party packages in the
# locked versions, siblings from the wheels just built.
import_wheels() {
    local wheel environment failed=0
    for wheel in "$scratch"/wheels/*.whl; do
        environment="$scratch/environments/$(basename "$wheel" .whl)"
        "$uv" venv --quiet --no-project --python .venv/bin/python "$environment"
        "$uv" pip install --quiet --python "$environment/bin/python" \
            --constraints "$scratch/constraints.txt" "$wheel"
        "$environment/bin/python" -I tools/import_every_module.py \
            "$(basename "$wheel" | cut -d- -f1)" || failed=1
    done
    return "$failed"
}

step "find uv" find_uv
step "sync" "$uv" sync --locked --all-packages --dev
step "format" run ruff format --check
step "lint" run ruff check
step "types" check_types
step "tests" run_tests
step "build" build_wheels
step "import every module of each wheel" import_wheels
