#!/usr/bin/env bash
# Events and counters of lock use: a lease's own stream of events, what this script counts, and
# what the server counts for all.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

declare -A counters
# event KIND WHAT [JSON]: a line for the log, and one more in a counter: hand both to whatever you
# monitor with. Never the lease_id: whoever has it is the holder.
event() {
  counters[$1]=$((${counters[$1]-0} + 1))
  jq -nc --arg event "$1" --arg what "$2" --argjson more "${3:-{\}}" '{$event, $what} + $more' >&2
}

# observed WHAT JSON CMD…
observed() {
  local lease status=0 kind
  lease=$(acquire "$1" "$2") || status=$?
  if [[ $status != 0 ]]; then
    event refused "$1" "$(jq -c '{code}' <<<"$lease")"
    return $status
  fi
  event acquired "$1" "$(jq -c '{fencing_token, waited_ms}' <<<"$lease")"
  "${@:3}" || status=$?
  kind=$(release "$1" "$lease" | jq -r 'if .released then "released" else "lost" end') # not held any more
  event "$kind" "$1" "$(jq -c '{fencing_token}' <<<"$lease")"
  return $status
}

# The server's own counters, for Prometheus. They have no lock names: see the list for those.
server_counts() { # server_counts PRIMITIVE OUTCOME
  curl -sS --fail "$QUORATE_SERVER/metrics" | awk -v primitive="primitive=\"$1\"" -v outcome="outcome=\"$2\"" '
    /^quorate_acquisitions_total\{/ && index($0, primitive) && index($0, outcome) {count = $NF} END {print count + 0}'
}

name=$(unique observed)
granted=$(server_counts lock granted) held=$(server_counts lock held)

while_held() {
  shown=$(api GET "/v1/locks?prefix=$name" | jq -r '.locks[0].owner')
  observed "locks/$name" '{"owner": "second"}' true || true
}
observed "locks/$name" '{"owner": "importer"}' while_held
check "who holds what is listed" [ "$shown" = importer ]
observed "locks/$name" '{"ttl_ms": 100}' sleep 0.3 # works longer than its lease lasts
check "counted here" [ "${counters[acquired]} ${counters[refused]} ${counters[released]} ${counters[lost]}" = "2 1 1 1" ]
check "the server counts what it grants" [ "$(server_counts lock granted)" -ge $((granted + 2)) ]
check "and what it refuses" [ "$(server_counts lock held)" -ge $((held + 1)) ]

# A lease bound to a connection tells all that happens to it, and ends with the connection: curl is
# a complete client. --no-buffer, or events would come late.
events=$(mktemp)
trap 'rm -f "$events"' EXIT
curl -sS --no-buffer --max-time 3 -H @<(api_key) --json '{"ttl_ms": 3000, "wait_ms": 1000}' \
  "$QUORATE_SERVER/v1/locks/$name/hold" >"$events" || true # ended by --max-time
check "a held lease's stream: $(sed -n 's/^event: *//p' "$events" | uniq | xargs)" grep -q '^event: *acquired' "$events"
sleep 0.5
check "whoever goes away has given it back" [ "$(api GET "/v1/locks/$name" | jq .held)" = false ]
