#!/usr/bin/env bash
# A singleton worker with standbys: one works, the others take over: at once after a shutdown,
# within the ttl after a crash.
#
#   idle ─▶ acquiring ─▶ working ⇄ renewing        renewing ─▶ idle      the lease is lost
#                          │ ▲       │             pausing  ─▶ idle      it ends without a renewal
#                 shutdown ▼ └──── pausing ◀┘      pausing: nothing new is begun, while the renewal
#            idle ◀─ releasing ◀─────┘             is in doubt or the shutdown under way
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

readonly TTL_MS=5000

step() { sleep 0.1; } # the work, in steps that are short against the ttl

# The states: each does its part and says what is next.
idle() { [[ $stop ]] && next=end || next=acquiring; }

acquiring() {
  local sent status=0
  [[ $stop ]] && next=idle && return
  sent=$(now_ms)
  # In short waits, so that a standby that is to stop does not hang in a long one.
  lease=$(acquire "$what" "$(jq -nc --arg id "$id" "{ttl_ms: $TTL_MS, wait_ms: 1000, owner: \$id}")") || status=$?
  case $status in
    0)
      valid_until=$((sent + $(jq '.waited_ms + .validity_ms' <<<"$lease")))
      renew_at=$((valid_until - TTL_MS * 2 / 3)) next=working
      ;;
    "$HELD") next=acquiring ;;
    *) sleep 0.2 && next=acquiring ;; # no quorum or no server: again, but not at full speed
  esac
}

working() {
  while (($(now_ms) < renew_at)); do
    [[ $stop ]] && next=pausing && return
    step
  done
  next=renewing
}

renewing() {
  local sent answer status=0
  sent=$(now_ms)
  answer=$(API_TIMEOUT=1 extend "$what" "$lease") || status=$?
  case $status in
    0)
      valid_until=$((sent + $(jq .validity_ms <<<"$answer")))
      renew_at=$((sent + TTL_MS / 3)) next=working
      ;;
    "$LOST") next=idle ;;
    *) next=pausing ;;
  esac
}

pausing() {
  if [[ $stop ]]; then
    next=releasing
  elif (($(now_ms) < valid_until)); then
    sleep 0.1 && next=renewing
  else
    next=idle
  fi
}

releasing() { # given back, not left to expire: the next one starts at once
  API_TIMEOUT=2 release "$what" "$lease" >/dev/null || true
  next=idle
}

worker() {
  what=$1 id=$2 stop='' next=idle
  trap 'stop=yes' TERM
  while [[ $next != end ]]; do
    echo "$next"
    "$next"
  done
}

[[ $# -gt 0 ]] && worker "$@" && exit

# takes_over ID WITHIN_MS: whether the lock shows this owner in time.
takes_over() {
  local ends=$(($(now_ms) + $2))
  until [[ $(api GET "/v1/$what" | jq -r .owner) == "$1" ]]; do
    (($(now_ms) < ends)) || return 1
    sleep 0.05
  done
}

what=locks/$(unique scheduler)
states=$(mktemp -d)
trap 'kill -KILL $(jobs -p) 2>/dev/null || true; rm -rf "$states"' EXIT

start() { # a process of its own, in a group of its own, so that it can be killed with all it runs
  set -m
  "$0" "$what" "$1" >"$states/$1" &
  set +m
}

start worker-a && a=$!
check "the first worker works, and is seen as the lock's owner" takes_over worker-a 20000
start worker-b && b=$!
sleep 1
kill -KILL -- "-$a"
check "after a crash the standby works within the ttl" takes_over worker-b $((TTL_MS + 2000))
start worker-c && c=$!
sleep 2.5 # until worker-b has renewed its lease, too
kill -TERM "$b"
check "after a shutdown the next one works at once" takes_over worker-c 2500
kill -TERM "$c"
wait "$b" "$c"
check "idle, acquiring, working …" [ "$(head -n 2 "$states/worker-b" | xargs)" = "idle acquiring" ]
check "… renewing …" grep -q renewing "$states/worker-b"
check "… pausing, releasing, idle" [ "$(tail -n 4 "$states/worker-b" | xargs)" = "working pausing releasing idle" ]
