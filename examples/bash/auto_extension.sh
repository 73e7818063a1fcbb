#!/usr/bin/env bash
# A task longer than the ttl: extended at a third of it, the loss noticed, the work stopped.
# `quorate run --lock NAME -- CMD` does the same, and better: this shows how.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

# keep WHAT LEASE SINCE_MS: extends until it is killed. Returns when the lease is lost, and at the
# latest a tenth of the ttl before it ends without an extension, so that the work has time to stop.
keep() {
  local ttl valid_until left pause sent answer status
  ttl=$(jq .ttl_ms <<<"$2")
  valid_until=$(($3 + $(jq .validity_ms <<<"$2")))
  pause=$((ttl / 3))
  while left=$((valid_until - ttl / 10 - $(now_ms))) && ((left > 0)); do
    ((pause < left)) || pause=$left
    sleep "$(printf '%d.%03d' $((pause / 1000)) $((pause % 1000)))"
    sent=$(now_ms) status=0
    # A server that hangs must leave time for another try.
    answer=$(API_TIMEOUT=$(printf '%d.%03d' $((ttl / 4000)) $((ttl / 4 % 1000))) extend "$1" "$2" 2>/dev/null) || status=$?
    case $status in
      0) valid_until=$((sent + $(jq .validity_ms <<<"$answer"))) pause=$((ttl / 3)) ;;
      "$LOST") return ;;
      *) pause=$((ttl / 30)) ;; # no quorum or no server: as long as there is time, again
    esac
  done
}

# guarded WHAT TTL_MS CMD…: CMD while the lease is kept; ends it and returns 20 when it is lost.
guarded() (
  what=$1 sent=$(now_ms)
  lease=$(acquire "$what" "$(jq -nc --argjson ttl "$2" '{ttl_ms: $ttl, owner: "auto_extension.sh"}')")
  "${@:3}" &
  work=$!
  keep "$what" "$lease" "$sent" &
  keeper=$!
  status=0 ended=
  wait -n -p ended "$work" "$keeper" || status=$?
  if [[ $ended == "$keeper" ]]; then
    kill "$work" 2>/dev/null || true
    wait "$work" || true
    exit "$LOST"
  fi
  kill "$keeper" 2>/dev/null || true
  wait "$keeper" || true # no extension may overtake the release
  release "$what" "$lease" >/dev/null
  exit $status
)

what=locks/$(unique import)

begun=$(now_ms)
guarded "$what" 3000 sleep 5
check "a task of 5 s ends under a lease of 3 s" [ $(($(now_ms) - begun)) -ge 5000 ]
check "and the lock is free after it" [ "$(api GET "/v1/$what" | jq .held)" = false ]

(sleep 0.5 && api DELETE "/v1/$what" >/dev/null) & # an administrator takes it away
begun=$(now_ms) status=0
guarded "$what" 3000 sleep 30 || status=$?
check "a lease that is taken away stops the work" [ $status = "$LOST" ]
check "soon" [ $(($(now_ms) - begun)) -lt 3000 ]

# The server is out of reach from now on: `extend` alone is sent astray.
extend() { QUORATE_URL=http://127.0.0.1:9 api POST "/v1/$1/extend" '{}'; }
begun=$(now_ms) status=0
guarded "$what" 3000 sleep 30 || status=$?
check "a server that is out of reach stops the work" [ $status = "$LOST" ]
check "before the lease has ended" [ $(($(now_ms) - begun)) -lt 3000 ]
