#!/usr/bin/env bash
# Work once: a lock around a marker of what was processed, kept for 24 hours.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

# The marker lives where the work's result lives; a lock is no place to remember things. Here
# both are files in $inbox: markers are named processed-EVENT.
processed() { [[ -n $(find "$inbox" -name "processed-$1" -mmin -1440) ]]; }

deliver() (
  processed "$1" && echo already_processed && exit
  lease=$(acquire "locks/demo:webhook:$1" '{"ttl_ms": 30000}') || case $? in
    "$HELD") echo duplicate && exit ;; # somebody is at it just now
    *) exit 1 ;;                       # the sender has to deliver it again
  esac
  trap 'release "locks/demo:webhook:$1" "$lease" >/dev/null' EXIT
  processed "$1" && echo already_processed && exit # finished between the first look and the lock
  handle "$1" || exit
  find "$inbox" -name 'processed-*' -mmin +1440 -delete
  touch "$inbox/processed-$1"
  echo processed
)

# The work. What it leaves must bear being done twice, or be written together with the marker (the
# Python and TypeScript examples have both in one database transaction).
handle() {
  sleep 0.3
  echo "$1" >>"$inbox/handled"
  [[ $1 != broken-* || $(grep -c "$1" "$inbox/handled") -gt 1 ]]
}

inbox=$(mktemp -d)
trap 'rm -rf "$inbox"' EXIT
event=$(unique invoice)

for i in 1 2 3 4 5; do deliver "$event" >"$inbox/answer-$i" & done
wait
answers=$(sort "$inbox"/answer-* | uniq -c | tr -s ' \n' ' ')
check "delivered five times at once, done once" [ "$(wc -l <"$inbox/handled")" -eq 1 ]
check "the others know:$answers" [ "$(cat "$inbox"/answer-* | grep -cE '^(duplicate|already_processed)$')" = 4 ]
check "delivered later: already_processed" [ "$(deliver "$event")" = already_processed ]

lease=$(acquire "locks/demo:webhook:next-$event" '{}')
check "delivered while another is at it: duplicate" [ "$(deliver "next-$event")" = duplicate ]
release "locks/demo:webhook:next-$event" "$lease" >/dev/null

deliver "broken-$event" && exit 1
check "work that failed leaves no marker and is done again" [ "$(deliver "broken-$event")" = processed ]

touch -d '-25 hours' "$inbox/processed-$event"
check "after a day the marker counts no more" [ "$(deliver "$event")" = processed ]
