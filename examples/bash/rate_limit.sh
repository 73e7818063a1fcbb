#!/usr/bin/env bash
# At most N calls per minute: permits that are never given back but left to expire. In any window of
# ttl_ms there are at most `limit` grants, at whatever moment it begins.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

# rate_limited NAME LIMIT WINDOW_MS [WAIT_MS]: returns when the call may be made. For a minute: 60000.
rate_limited() { acquire "semaphores/$1" "{\"limit\": $2, \"ttl_ms\": $3, \"wait_ms\": ${4:-0}}"; } # and no release

name=$(unique sms) limit=4 window_ms=4000 granted=()

call_now() { # notes since when at the earliest, and until when at the latest, it was granted
  local sent permit
  sent=$(now_ms)
  permit=$(rate_limited "$name" $limit $window_ms "$1") || return
  granted+=("$((sent + $(jq .waited_ms <<<"$permit"))) $(now_ms)")
}

for ((i = 0; i < limit; i++)); do call_now 0; done
status=0
refusal=$(rate_limited "$name" $limit $window_ms) || status=$?
check "the fifth call within the window is refused" [ "$status $(jq -r .code <<<"$refusal")" = "$HELD semaphore_full" ]
check "and told when to try again" [ "$(jq .retry_after_ms <<<"$refusal")" -ge 0 ]
for ((i = 0; i <= limit; i++)); do call_now 30000; done
for ((i = limit; i < ${#granted[@]}; i++)); do
  gap=$((${granted[i]#* } - ${granted[i - limit]% *}))
  ((gap >= window_ms)) || check "calls $((i - limit)) and $i are $gap ms apart" false
done
check "${#granted[@]} calls, never more than $limit in $window_ms ms" [ ${#granted[@]} = $((2 * limit + 1)) ]
