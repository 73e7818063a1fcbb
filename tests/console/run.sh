#!/usr/bin/env bash
# The console by clicking: Chromium against a server over three real Redis servers.
#
#   tests/console/run.sh
#
#   QUORATE_BIN=FILE            the binary to test, instead of building it
#   QUORATE_CHROMIUM=FILE       the browser, if it is not found by its usual names
#   QUORATE_CONSOLE_TESTS=TEXT  only the tests whose names match
#   QUORATE_SCREENSHOTS=FOLDER  also leaves pictures of each page there, at two widths and in both themes
#
# The browser comes from the system's package manager; what drives it comes from npm, at pinned versions, into
# ${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-console-tools, and stays there for the next run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
root=$(cd ../.. && pwd)

has() { command -v "$1" >/dev/null; }
install() { # install PACKAGE
  local as_root=()
  [[ $(id -u) = 0 ]] || as_root=(sudo)
  if has apt-get; then
    "${as_root[@]}" apt-get update -qq && "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$1" >/dev/null
  elif has dnf; then
    "${as_root[@]}" dnf install -y -q "$1"
  elif has apk; then
    "${as_root[@]}" apk add -q "$1"
  fi
}
browser() {
  local name
  for name in "${QUORATE_CHROMIUM:-chromium}" chromium-browser google-chrome; do command -v "$name" && return; done
}
has redis-server || install redis-server || true
has redis-server || { echo "please install redis-server" >&2 && exit 1; }
has npm || { echo "skipped: no npm" && exit 0; }
browser >/dev/null || install chromium || true
QUORATE_CHROMIUM=$(browser) || { echo "skipped: no chromium to be had" && exit 0; }
export QUORATE_CHROMIUM

tools=${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-console-tools
if ! cmp -s package-lock.json "$tools/installed.json"; then
  rm -rf "$tools" && mkdir -p "$tools" && cp package.json package-lock.json "$tools/"
  if ! (cd "$tools" && npm ci --silent --ignore-scripts --no-audit --no-fund); then
    echo "skipped: npm's registry was out of reach"
    exit 0
  fi
  cp package-lock.json "$tools/installed.json"
fi

if [[ -z ${QUORATE_BIN-} ]]; then
  (cd "$root" && cargo test --locked --no-run --test all)
  QUORATE_BIN=${CARGO_TARGET_DIR:-$root/target}/debug/quorate
fi
QUORATE_BIN=$(realpath "$QUORATE_BIN")
export QUORATE_BIN
# Node looks for packages beside the file that imports them.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp ./*.mjs "$copy/" && ln -s "$tools/node_modules" "$copy/node_modules"
node --test --test-reporter=spec ${QUORATE_CONSOLE_TESTS:+--test-name-pattern="$QUORATE_CONSOLE_TESTS"} "$copy/console.test.mjs"
