#!/usr/bin/env bash
# Try once and go on otherwise: for work that somebody else is doing already.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

refresh_cache() (
  lease=$(acquire "locks/$1" '{"ttl_ms": 10000, "owner": "try_once.sh"}') || case $? in # wait_ms 0: the answer comes at once
    # No holder in the answer: the nodes have not agreed on one yet.
    "$HELD") jq -r '"left to \(.holder.owner // "someone")"' <<<"$lease" && exit ;;
    *) exit 1 ;; # no quorum, say, is not "somebody else does it"
  esac
  trap 'release "locks/$1" "$lease" >/dev/null' EXIT
  echo refreshed
)

lock=$(unique cache)
lease=$(acquire "locks/$lock" '{"owner": "worker-1"}')
check "while another holds it, it goes on and knows who" [ "$(refresh_cache "$lock")" = "left to worker-1" ]
release "locks/$lock" "$lease" >/dev/null
check "once it is free, it does the work" [ "$(refresh_cache "$lock")" = refreshed ]
