# shellcheck shell=bash
# What the recipes share: a request, and its outcome as an exit status. Needs bash 5.1, curl, jq.
# To be sourced. For more than a few lines, `quorate run` (docs/cli.md) is the shorter way.

QUORATE_SERVER=${QUORATE_SERVER:-http://127.0.0.1:8080}
QUORATE_SERVER=${QUORATE_SERVER%%,*} # the first of several

# Exit statuses, those of the client commands (docs/cli.md); but too many waiters are worth another try, like 503.
readonly HELD=11 LOST=20 WRONG=64 UNAVAILABLE=70 DENIED=77
readonly OF_LEASE='with_entries(select(.key == "lease_id" or .key == "names" or .key == "request_id"))'

# api METHOD PATH [JSON]: prints the answer, JSON in any case. Body and key go to curl on stdin
# and by a file, not as arguments, which everyone sees in `ps`: a lease_id is a secret.
api() {
  local answer status body=()
  [[ -n ${3-} ]] && body=(-H 'Content-Type: application/json' --data-binary @-)
  answer=$(curl -sS --connect-timeout 5 --max-time "${API_TIMEOUT:-90}" -w '\n%{http_code}' -X "$1" \
    -H @<(api_key) \
    "${body[@]}" "$QUORATE_SERVER$2" <<<"${3-}") || return $UNAVAILABLE
  status=${answer##*$'\n'}
  printf '%s\n' "${answer%$'\n'*}"
  case $status in
    2??) return 0 ;;
    409) [[ $answer == *'"lease_lost"'* || $answer == *'"stale_token"'* ]] && return $LOST || return $HELD ;;
    401 | 403) return $DENIED ;;
    429 | 5??) return $UNAVAILABLE ;;
    *) return $WRONG ;;
  esac
}

api_key() { [[ -z ${QUORATE_API_KEY-} ]] || printf 'Authorization: Bearer %s' "$QUORATE_API_KEY"; }

# acquire WHAT JSON: prints the lease. WHAT is locks/NAME, semaphores/NAME, elections/NAME or multilocks.
acquire() {
  case $1 in
    elections/*) api POST "/v1/$1/campaign" "$2" ;;
    *) api POST "/v1/$1/acquire" "$2" ;;
  esac
}

# extend WHAT LEASE, release WHAT LEASE: LEASE is what `acquire` printed; of a release also what it was asked, with a
# request_id.
extend() { api POST "/v1/$1/extend" "$(jq -c "$OF_LEASE" <<<"$2")"; }
release() {
  case $1 in
    elections/*) api POST "/v1/$1/resign" "$(jq -c "$OF_LEASE" <<<"$2")" ;;
    *) api POST "/v1/$1/release" "$(jq -c "$OF_LEASE" <<<"$2")" ;;
  esac
}

# Milliseconds on a clock that nobody sets, where there is one.
now_ms() {
  local up
  if read -r up _ 2>/dev/null </proc/uptime; then
    echo $((${up/./} * 10))
  else
    echo $((${EPOCHREALTIME/./} / 1000))
  fi
}

# A name that no other run of these examples uses.
unique() { printf 'demo:%s:%s-%s' "$1" "$$" "$(now_ms)"; }

# check CLAIM CONDITION…: the recipes are tests too.
check() {
  if "${@:2}"; then echo "ok   $1"; else
    echo "FAIL $1"
    exit 1
  fi
}
