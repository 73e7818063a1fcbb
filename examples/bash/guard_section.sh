#!/usr/bin/env bash
# Guard a section: take the lock, work, give it back, whatever happens in between.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

# add FILE AMOUNT LOCK: a subshell, so that its EXIT trap gives the lock back when it ends in any way.
add() (
  # wait_ms: ask once and wait in the server's queue, instead of asking again and again.
  lease=$(acquire "locks/$3" '{"ttl_ms": 10000, "wait_ms": 60000, "owner": "guard_section.sh"}')
  trap 'release "locks/$3" "$lease" >/dev/null' EXIT
  balance=$(<"$1") # read, compute, write: not atomic by itself
  echo $((balance + $2)) >"$1"
)

lock=$(unique account)
account=$(mktemp)
trap 'rm -f "$account"' EXIT

echo 0 >"$account"
for _ in 1 2 3 4 5 6; do add "$account" 10 "$lock" & done
wait
check "six clerks at once lose no booking" [ "$(<"$account")" = 60 ]

echo "no number" >"$account"
add "$account" 10 "$lock" 2>/dev/null && exit 1
check "a section that fails gives the lock back" [ "$(api GET "/v1/locks/$lock" | jq .held)" = false ]
