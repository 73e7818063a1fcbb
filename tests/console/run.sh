#!/usr/bin/env bash
# The console by clicking: Chromium against a server over three real Redis servers.
#
#   tests/console/run.sh
#
#   QUORATE_BIN=FILE            the binary to test, instead of building it
#   QUORATE_SCREENSHOTS=FOLDER  also leaves pictures of each page there, two widths and both themes
#
# Chromium comes from the system's package manager, what drives it from npm, into
# ${TMPDIR:-/tmp}/quorate-console-tools, where it stays for the next run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
root=$(cd ../.. && pwd)

as_root() { if [[ $(id -u) = 0 ]]; then "$@"; else sudo "$@"; fi; }
need() {
  command -v "$1" >/dev/null && return
  if command -v apt-get >/dev/null; then
    as_root apt-get update -qq && as_root apt-get install -y -qq --no-install-recommends "$2" >/dev/null
  fi
  command -v "$1" >/dev/null || { echo "skipped: no $1 to be had"; exit 77; }
}
need chromium chromium
need redis-server redis-server
command -v npm >/dev/null || { echo "skipped: no npm"; exit 77; }

tools=${TMPDIR:-/tmp}/quorate-console-tools
mkdir -p "$tools"
if ! cmp -s package.json "$tools/package.json"; then
  cp package.json package-lock.json "$tools/"
  (cd "$tools" && npm ci --silent --no-audit --no-fund >&2)
fi

if [[ -z ${QUORATE_BIN-} ]]; then
  (cd "$root" && cargo build --locked)
  QUORATE_BIN=${CARGO_TARGET_DIR:-$root/target}/debug/quorate
fi
export QUORATE_BIN
export QUORATE_CHROMIUM=${QUORATE_CHROMIUM:-$(command -v chromium)}
# Node looks for packages beside the file that imports them.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp ./*.mjs "$copy/" && ln -s "$tools/node_modules" "$copy/node_modules"
node --test --test-concurrency=1 ${QUORATE_CONSOLE_TESTS:+--test-name-pattern="$QUORATE_CONSOLE_TESTS"} "$copy/console.test.mjs"
