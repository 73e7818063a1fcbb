#!/usr/bin/env bash
# Leader election for a cron runner: of several that run, one is the leader and runs the jobs.
# Where one job is a command, `quorate run --election NAME --candidate C -- CMD` is all it takes.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

readonly TTL_MS=3000

# The hooks and the job. They get the term: a store that refuses smaller terms than it has seen
# is safe from a leader that was paused and does not know that it is none any more.
became_leader() { echo "became_leader $candidate $1" >>"$log"; }
lost_leadership() { echo "lost_leadership $candidate $1" >>"$log"; }
job() { echo "job $candidate $1" >>"$log"; }

runner() { # runner ELECTION CANDIDATE
  local what=elections/$1 candidate=$2 stop='' sent status leadership
  trap 'stop=yes' TERM
  while [[ ! $stop ]]; do
    status=0 sent=$(now_ms)
    leadership=$(acquire "$what" "$(jq -nc --arg candidate "$candidate" "{\$candidate, ttl_ms: $TTL_MS, wait_ms: 1000}")") || status=$?
    case $status in
      0) lead ;;
      "$HELD") ;;    # another one leads; this answer came after wait_ms
      *) sleep 0.2 ;; # no quorum or no server
    esac
  done
}

lead() {
  local term valid_until renew_at answer lost=''
  term=$(jq .term <<<"$leadership")
  valid_until=$((sent + $(jq '.waited_ms + .validity_ms' <<<"$leadership")))
  renew_at=$((valid_until - TTL_MS * 2 / 3))
  became_leader "$term"
  while [[ ! $stop && ! $lost ]]; do
    job "$term" # short against the ttl
    sleep 0.1
    sent=$(now_ms)
    ((sent < renew_at)) && continue
    status=0
    answer=$(API_TIMEOUT=$((TTL_MS / 3000)) extend "$what" "$leadership") || status=$?
    if [[ $status = 0 ]]; then
      valid_until=$((sent + $(jq .validity_ms <<<"$answer"))) renew_at=$((sent + TTL_MS / 3))
    elif [[ $status = "$LOST" ]] || (($(now_ms) + TTL_MS / 10 > valid_until)); then
      lost=yes
    fi
  done
  lost_leadership "$term" # before it is given up, so that the hooks of two never overlap
  [[ $lost ]] || release "$what" "$leadership" >/dev/null
}

election=$(unique cron)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

leader() { api GET "/v1/elections/$election" | jq -r '.leader // "nobody"'; }
until_true() { # until_true CONDITION…: within 15 s
  local ends=$(($(now_ms) + 15000))
  until "$@"; do
    (($(now_ms) < ends)) || return 1
    sleep 0.1
  done
}
leads_other_than() { [[ $(leader) != nobody && $(leader) != "$1" ]]; }
ran() { [[ $(grep -c "^job $1 " "$log") -ge 3 ]]; }

declare -A pids
for host in host-1 host-2 host-3; do
  runner "$election" "$host" &
  pids[$host]=$!
done

check "one of three candidates is elected" until_true leads_other_than nobody
first=$(leader)
check "and runs the jobs" until_true ran "$first"
kill -TERM "${pids[$first]}"
check "when it stops it resigns, and another is elected" until_true leads_other_than "$first"
second=$(leader)
check "which runs them from now on" until_true ran "$second"
kill -TERM "${pids[@]}" 2>/dev/null || true
wait

check "terms only ever grow" sort -c -s -n -k3,3 "$log"
for term in $(cut -d' ' -f3 "$log" | uniq); do
  kinds=$(awk -v term="$term" '$3 == term {print $1}' "$log" | uniq | xargs)
  check "the job runs between the hooks: $kinds" \
    [ "${kinds/ job/}" = "became_leader lost_leadership" ]
done
check "the last one has resigned" [ "$(leader)" = nobody ]
