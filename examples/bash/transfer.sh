#!/usr/bin/env bash
# Several resources at once: a transfer between two accounts, by one lease over both.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

# transfer SOURCE TARGET AMOUNT: accounts are files in $accounts, their locks have the same names.
transfer() (
  # All or nothing, and the order of names does not matter: two transfers in opposite
  # directions cannot wait for each other for ever.
  lease=$(acquire multilocks "$(jq -nc '{names: $ARGS.positional, ttl_ms: 10000, wait_ms: 60000}' --args "$1" "$2")")
  trap 'release multilocks "$lease" >/dev/null' EXIT
  source_balance=$(<"$accounts/$1") target_balance=$(<"$accounts/$2")
  echo $((source_balance - $3)) >"$accounts/$1"
  echo $((target_balance + $3)) >"$accounts/$2"
)

run=$(unique account)
accounts=$(mktemp -d)
trap 'rm -rf "$accounts"' EXIT
ann=$run:ann bob=$run:bob eve=$run:eve
for account in "$ann" "$bob" "$eve"; do echo 100 >"$accounts/$account"; done

transfer "$ann" "$bob" 10 &
transfer "$bob" "$ann" 5 &
transfer "$bob" "$eve" 20 &
transfer "$eve" "$bob" 7 &
transfer "$eve" "$ann" 3 &
wait
check "transfers in all directions do not block each other, and each is done once" \
  [ "$(<"$accounts/$ann") $(<"$accounts/$bob") $(<"$accounts/$eve")" = "98 92 110" ]

audit=$(acquire "locks/$ann" '{"owner": "auditor"}') # its members are ordinary locks
refusal=$(acquire multilocks "$(jq -nc '{names: $ARGS.positional}' --args "$ann" "$bob")") && exit 1
check "a multilock keeps out of a lock that is held" [ "$(jq -r .code <<<"$refusal")" = lock_held ]
check "and has taken none of the others" [ "$(api GET "/v1/locks/$bob" | jq .held)" = false ]
release "locks/$ann" "$audit" >/dev/null
