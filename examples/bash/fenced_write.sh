#!/usr/bin/env bash
# A write that a stale holder cannot make: the database compares fencing tokens. Needs sqlite3.
#
# No lock service can wake a process that was paused past its lease and tell it so. The resource
# can refuse it, when each write carries the token of the lease it was made under.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/quorate.sh"

# write TEXT TOKEN: one statement, compared and written at once. False when a later holder has written.
write() {
  local changed
  changed=$(sqlite3 -bail "$database" ".parameter init" ".parameter set \$1 '$1'" ".parameter set \$2 $2" \
    "UPDATE documents SET text = \$1, fence_token = \$2 WHERE id = 'report' AND fence_token < \$2; SELECT changes();")
  [[ $changed = 1 ]]
}
read_all() { sqlite3 "$database" "SELECT text, fence_token FROM documents"; }

document=$(unique document)
database=$(mktemp)
trap 'rm -f "$database"' EXIT
sqlite3 "$database" "
  CREATE TABLE documents (id TEXT PRIMARY KEY, text TEXT, fence_token INTEGER NOT NULL DEFAULT 0);
  INSERT INTO documents (id, text) VALUES ('report', 'empty');"

paused=$(acquire "locks/$document" '{"ttl_ms": 300, "owner": "paused"}' | jq .fencing_token)
sleep 0.6 # a pause of the whole process, past the end of its lease
lease=$(acquire "locks/$document" '{"wait_ms": 5000, "owner": "next"}')
token=$(jq .fencing_token <<<"$lease")
check "the later holder has the greater token" [ "$token" -gt "$paused" ]
write 'by the next holder' "$token"
release "locks/$document" "$lease" >/dev/null

refused=yes
write 'by the paused holder' "$paused" && refused=no
check "the write of the stale holder is refused" [ $refused = yes ]
check "and nothing of it is there" [ "$(read_all)" = "by the next holder|$token" ]
