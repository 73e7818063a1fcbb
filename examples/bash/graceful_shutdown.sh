#!/usr/bin/env bash
# Shutdown: give back all that is held, in parallel, within 5 seconds, and then end.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

readonly GIVE_BACK_S=5

declare -A held # the lease of each thing held
hold() { held[$1]=$(acquire "$1" "$2"); }

# True if all of them are given back; what is not in time ends with its ttl.
give_back() {
  local what pid pids=() status=0
  for what in "${!held[@]}"; do
    API_TIMEOUT=$GIVE_BACK_S release "$what" "${held[$what]}" >/dev/null &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return $status
}

service() { # service RUN
  local i
  trap 'stop=yes' TERM
  for i in 1 2 3 4 5; do hold "locks/$1:$i" '{"ttl_ms": 60000}'; done
  hold "semaphores/$1" '{"limit": 2, "ttl_ms": 60000}'
  hold "elections/$1" '{"candidate": "service", "ttl_ms": 60000}'
  echo ready
  # The work, in short steps: bash runs a trap only between two commands. Then: no new work,
  # what is begun is finished.
  until [[ ${stop-} ]]; do sleep 0.1; done
  give_back
}

[[ $# -gt 0 ]] && { service "$1" && exit || exit; }

run=$(unique shutdown)
in_use() {
  local locks permits leads
  locks=$(api GET "/v1/locks?prefix=$run:" | jq '[.locks[] | select(.held)] | length')
  permits=$(api GET "/v1/semaphores/$run" | jq .in_use)
  leads=$(api GET "/v1/elections/$run" | jq 'has("leader") | if . then 1 else 0 end')
  echo $((locks + permits + leads))
}

exec 3< <(exec "$0" "$run")
pid=$!
read -r line <&3
check "a service holds locks, a permit and a leadership" [ "$line" = ready ]
check "seven leases in all" [ "$(in_use)" = 7 ]
begun=$(now_ms)
kill -TERM "$pid"
status=0
wait "$pid" || status=$?
took=$(($(now_ms) - begun))
check "told to end, it ends well" [ $status = 0 ]
check "within $GIVE_BACK_S s: after $took ms" [ $took -lt $((GIVE_BACK_S * 1000)) ]
check "and holds nothing any more, a minute before its leases would have ended" [ "$(in_use)" = 0 ]
