#!/usr/bin/env bash
# Retry: let the server wait (wait_ms), or ask again with delay and jitter; bounded either way.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

# acquire_with_retry ATTEMPTS DEADLINE_MS WHAT JSON: prints the lease, or the last refusal.
acquire_with_retry() {
  local attempts=$1 ends=$(($(now_ms) + $2)) what=$3 body attempt delay status
  # The same id at every attempt: had the answer to one that was granted got lost, the next
  # one gets that very lease instead of being locked out by it.
  body=$(jq -c --arg id "retry-$$-$RANDOM$RANDOM$RANDOM" '. + {request_id: $id}' <<<"$4")
  for ((attempt = 1; ; attempt++)); do
    status=0
    answer=$(acquire "$what" "$body") || status=$?
    # Full jitter: those who were refused together do not come back together.
    delay=$((RANDOM % (50 * 2 ** (attempt < 7 ? attempt : 7))))
    delay=$((delay + $(jq '.retry_after_ms // 0' <<<"${answer:-{\}}")))
    if [[ $status != "$HELD" && $status != "$UNAVAILABLE" ]] || # granted, or asked wrongly
      ((attempt == attempts || $(now_ms) + delay > ends)); then
      printf '%s\n' "$answer"
      # What an earlier attempt may still get, without anybody to use it, goes back.
      ((status == 0)) || release "$what" "$body" >/dev/null || :
      return "$status"
    fi
    sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
  done
}

later() { sleep 0.5 && release "$@" >/dev/null; }

what=locks/$(unique report)

lease=$(acquire "$what" '{}')
later "$what" "$lease" &
lease=$(acquire "$what" '{"wait_ms": 20000}')
check "wait_ms: one request, granted as soon as it is free" [ "$(jq .waited_ms <<<"$lease")" -ge 100 ]
release "$what" "$lease" >/dev/null

lease=$(acquire "$what" '{}')
later "$what" "$lease" &
lease=$(acquire_with_retry 50 20000 "$what" '{}')
check "with delay and jitter: granted at some attempt after it is free" [ "$(jq -r 'has("lease_id")' <<<"$lease")" = true ]

status=0
acquire_with_retry 3 20000 "$what" '{}' >/dev/null || status=$?
check "bounded by attempts" [ $status = "$HELD" ]
begun=$(now_ms) status=0
acquire_with_retry 1000000 1000 "$what" '{}' >/dev/null || status=$?
check "bounded by a deadline" [ $status = "$HELD" ]
check "which is kept" [ $(($(now_ms) - begun)) -lt 5000 ]
release "$what" "$lease" >/dev/null
