#!/usr/bin/env bash
# Types, drift from the OpenAPI document, the tests against real servers over real redis-servers, and the packages.
# QUORATE_BIN names the server's binary. Tools come from PyPI into ${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-python-tools.
set -euo pipefail
cd "$(dirname "$0")"
tools=${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-python-tools
: "${QUORATE_BIN:?the binary of the server to test against}"
export QUORATE_BIN
export PYTHONDONTWRITEBYTECODE=1
if ! cmp -s pyproject.toml "$tools/pyproject.toml"; then
    rm -rf "$tools"
    if ! python3 -m venv "$tools" || ! "$tools/bin/pip" install -q --disable-pip-version-check httpx 'pytest>=8' 'pytest-xdist>=3.5' mypy pyright build hatchling; then
        echo "skipped: no python3 with venv, or PyPI was out of reach"
        exit 0
    fi
    cp pyproject.toml "$tools/pyproject.toml"
fi
"$tools/bin/python" tools/generate.py --check
"$tools/bin/mypy" --strict --cache-dir "$tools/mypy" src
# It brings its program from npm.
if PYRIGHT_PYTHON_IGNORE_WARNINGS=1 "$tools/bin/pyright" --version >/dev/null 2>&1; then
    "$tools/bin/pyright" --pythonpath "$tools/bin/python"
else
    echo "skipped: pyright, whose program was out of reach"
fi
PYTHONPATH=src "$tools/bin/python" -m pytest -p no:cacheprovider -n 4
dist=$(mktemp -d)
trap 'rm -rf "$dist"' EXIT
"$tools/bin/python" -m build --no-isolation --outdir "$dist" . >"$dist/log" || { cat "$dist/log"; exit 1; }
ls "$dist"/quorate-*
