#!/usr/bin/env bash
# Sets everything up in .quickstart/ and talks to the support agent. Needs Python 3.11 with pip.
#   ./quickstart.sh --approve "Please refund order 7"
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
environment="$here/.quickstart"

find_python() {
    local candidate
    for candidate in python3 python3.11 python3.12 python3.13 python3.14 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "quickstart.sh: there is no Python 3.11 or newer on PATH" >&2
    return 1
}

# A pip in the environment where the machine can make one; else the machine's pip fills it.
install() {
    local python="$1"
    shift
    if "$python" -m venv --clear "$environment" >/dev/null 2>&1; then
        "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    else
        "$python" -m venv --clear --without-pip "$environment"
        "$python" -m pip --python "$environment/bin/python" install --quiet "$@"
    fi
}

if [ ! -e "$environment/ready" ]; then
    echo "setting up, once ..." >&2
    python="$(find_python)"
    (cd "$here" && install "$python" -r examples/support_agent/requirements.txt)
    touch "$environment/ready"
fi
exec "$environment/bin/python" "$here/examples/support_agent/main.py" "$@"
