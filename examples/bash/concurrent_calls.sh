#!/usr/bin/env bash
# At most N calls at a time to somebody else's API, however many processes make them.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

readonly LIMIT=3

call_partner() (
  # The limit is said by whoever asks; all must say the same.
  lease=$(acquire "semaphores/$semaphore" "{\"limit\": $LIMIT, \"ttl_ms\": 10000, \"wait_ms\": 60000, \"owner\": \"request-$1\"}")
  trap 'release "semaphores/$semaphore" "$lease" >/dev/null' EXIT
  partner_api "$1"
)

partner_api() { # notes how many calls are under way
  echo + >>"$calls"
  sleep 0.2
  echo - >>"$calls"
}

semaphore=$(unique partner-api)
calls=$(mktemp)
trap 'rm -f "$calls"' EXIT

for request in 1 2 3 4 5 6 7 8; do call_partner "$request" & done
wait
most=$(awk '{now += $1 == "+" ? 1 : -1; if (now > most) most = now} END {print most}' "$calls")
check "eight calls, all made" [ "$(grep -c + "$calls")" = 8 ]
check "never more than $LIMIT at a time; at the peak $most" [ "$most" -le $LIMIT ]
