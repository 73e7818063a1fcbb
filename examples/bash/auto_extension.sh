#!/usr/bin/env bash
# A task longer than the ttl: extended at a third of it, the loss noticed, the work stopped.
# `quorate run --lock NAME -- CMD` does the same, and better: this shows how.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

# keep WHAT LEASE SINCE_MS: extends until it is killed. Returns when the lease is lost, and at the
# latest a fifth of the ttl before it ends without an extension, so that the work has time to stop
# (much of it, because every step of a shell script is a process).
keep() {
  local ttl valid_until left pause limit sent answer status
  ttl=$(jq .ttl_ms <<<"$2")
  valid_until=$(($3 + $(jq .validity_ms <<<"$2")))
  pause=$((ttl / 3))
  while true; do
    left=$((valid_until - ttl / 5 - $(now_ms)))
    if ((left <= pause)); then
      ((left <= 0)) || sleep "$(seconds "$left")"
      return # time is up
    fi
    sleep "$(seconds "$pause")"
    sent=$(now_ms) status=0
    # A server that hangs must leave time for another try.
    limit=$((left - pause < ttl / 4 ? left - pause : ttl / 4))
    answer=$(API_TIMEOUT=$(seconds "$limit") extend "$1" "$2" 2>/dev/null) || status=$?
    case $status in
      0) valid_until=$((sent + $(jq .validity_ms <<<"$answer"))) pause=$((ttl / 3)) ;;
      "$LOST") return ;;
      *) pause=$((ttl / 30)) ;; # no quorum or no server: as long as there is time, again
    esac
  done
}

seconds() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); }

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

take_away() { # as an administrator may
  until [[ $(api GET "/v1/$what" | jq .held) = true ]]; do sleep 0.1; done
  api DELETE "/v1/$what" >/dev/null
}
take_away &
begun=$(now_ms) status=0
guarded "$what" 3000 sleep 30 || status=$?
check "a lease that is taken away stops the work" [ $status = "$LOST" ]
check "soon" [ $(($(now_ms) - begun)) -lt 4000 ]

# The server is out of reach from now on: `extend` alone is sent astray.
extend() { QUORATE_SERVER=http://127.0.0.1:9 api POST "/v1/$1/extend" '{}'; }
begun=$(now_ms) status=0
guarded "$what" 6000 sleep 30 || status=$?
check "a server that is out of reach stops the work" [ $status = "$LOST" ]
check "before the lease has ended" [ $(($(now_ms) - begun)) -lt 6000 ]
