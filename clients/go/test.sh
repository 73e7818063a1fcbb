#!/usr/bin/env bash
# Format, vet, drift from the OpenAPI document, and the tests with the race detector against real servers over real
# redis-servers. QUORATE_BIN names the server's binary.
set -euo pipefail
cd "$(dirname "$0")"
: "${QUORATE_BIN:?the binary of the server to test against}"
export QUORATE_BIN
if ! command -v go >/dev/null; then
    echo "skipped: no go"
    exit 0
fi
badly=$(gofmt -l .)
[[ -z $badly ]] || { echo "gofmt -w $badly" && exit 1; }
go vet ./...
# The race detector needs a C compiler.
race=(-race)
if [[ $(go env CGO_ENABLED) != 1 ]] || ! command -v "$(go env CC)" >/dev/null; then
    echo "skipped: the race detector, which needs cgo and a C compiler"
    race=()
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
begun=$SECONDS status=0
go test -v "${race[@]}" -count=1 -timeout 5m -parallel 8 ./... >"$log" 2>&1 || status=$?
((status == 0)) || {
    grep -vE '^(=== (RUN|PAUSE|CONT)|--- (PASS|SKIP))' "$log"
    exit "$status"
}
awk '/^ .*_test.go:/ { reason = $0; sub(/^ *[^ ]+ /, "", reason) } /^--- SKIP/ { print "   not run: " $3 " " reason }' "$log"
echo "$(grep -c '^--- PASS' "$log") passed, $(grep -c '^--- SKIP' "$log" || true) skipped in $((SECONDS - begun)) s"
