#!/bin/sh
# Plants one bug after the other into a copy of the tree and counts the seeds that the
# simulator needs to catch it. Fails where one is not caught within its limit.
#
#   tests/mutations/run.sh                one of each kind of rule, met within few seeds
#   tests/mutations/run.sh --all          all of them
#   tests/mutations/run.sh no_quarantine  only these
#
# Each FILE.patch begins with what is wrong and a line `Caught within: N seeds`, or `N seeds from M`; of the test
# `deployments` of the simulator, or `N seeds of members` of another one.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
tree=$(CDPATH='' cd -- "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$tree/target}
work=${QUORATE_MUTATIONS_DIR:-$target/mutations}

limit_of() {
    sed -n 's/^Caught within: \([0-9]*\) seeds.*$/\1/p' "$here/$1.patch"
}

first_of() {
    sed -n 's/^Caught within: .* from \([0-9]*\)$/\1/p' "$here/$1.patch"
}

test_of() {
    sed -n 's/^Caught within: [0-9]* seeds of \([a-z]*\).*$/\1/p' "$here/$1.patch"
}

# Fencing, quarantine, undoing. Each more costs a build of the simulator.
usual='fence_not_compared no_quarantine undo_skipped_on_cancel'
all=$(cd "$here" && ls *.patch | sed 's/\.patch$//')
case $* in
    '') names=$usual && echo "left to --all: $(($(echo "$all" | wc -w) - $(echo "$usual" | wc -w)))" ;;
    --all) names=$all ;;
    *) names=$* ;;
esac

# A copy that nothing else builds in. What is compiled of other crates is taken over.
mkdir -p "$work/tree" "$work/target/debug"
for kind in deps build .fingerprint; do
    if [ -d "$target/debug/$kind" ] && [ ! -d "$work/target/debug/$kind" ]; then
        # Links do: what is compiled is replaced, never written to. What cargo notes is.
        { [ $kind = deps ] && cp -al "$target/debug/$kind" "$work/target/debug/$kind" 2>/dev/null; } ||
            cp -a "$target/debug/$kind" "$work/target/debug/"
    fi
done
export CARGO_TARGET_DIR="$work/target"
# Debug information and the other test binaries are of no use here.
export CARGO_PROFILE_TEST_DEBUG=line-tables-only

sync_tree() {
    # Only what differs is written, so that cargo sees no more changes than there are.
    (cd "$tree" && find Cargo.lock src console tests/sim benches openapi -type f 2>/dev/null) |
    while read -r file; do
        if ! cmp -s "$tree/$file" "$work/tree/$file"; then
            mkdir -p "$work/tree/$(dirname "$file")"
            cp "$tree/$file" "$work/tree/$file"
        fi
    done
    # The program itself is of no use here, and takes longest to link.
    awk '/^\[/ { bin = 0 } /^\[\[bin\]\]/ { bin = 1 } !bin { print } /^\[package\]/ { print "autobins = false" }' \
        "$tree/Cargo.toml" >"$work/manifest"
    cmp -s "$work/manifest" "$work/tree/Cargo.toml" || cp "$work/manifest" "$work/tree/Cargo.toml"
}

build() {
    (cd "$work/tree" && cargo test --locked --test sim --no-run 2>&1) | tee "$work/build.log" |
        sed -n 's/^ *Executable .*(\(.*\))$/\1/p' >"$work/binary"
    if [ ! -s "$work/binary" ]; then
        tail -n 40 "$work/build.log" >&2
        return 1
    fi
}

missed=0
started=$(date +%s)
printf '%-36s %8s %8s  %s\n' mutation caught limit 'first promise that breaks'
for name in $names; do
    patch=$here/$name.patch
    limit=$(limit_of "$name")
    first=$(first_of "$name")
    first=${first:-0}
    test=$(test_of "$name")
    sync_tree
    if ! (cd "$work/tree" && patch -p1 -s -F3 --no-backup-if-mismatch) <"$patch"; then
        printf '%-36s %8s %8s  %s\n' "$name" - "$limit" 'the patch does not apply'
        missed=$((missed + 1))
        continue
    fi
    if ! build; then
        printf '%-36s %8s %8s  %s\n' "$name" - "$limit" 'the mutated tree does not build'
        missed=$((missed + 1))
        continue
    fi
    case $(cat "$work/binary") in /*) binary=$(cat "$work/binary") ;; *) binary=$work/tree/$(cat "$work/binary") ;; esac
    (cd "$work/tree" && QUORATE_SIM_FIRST=$first QUORATE_SIM_SEEDS=$limit QUORATE_SIM_SECONDS=3600 "$binary" "${test:-deployments}" --nocapture) >"$work/$name.log" 2>&1 || true
    caught=$(sed -n 's/^seed \([0-9]*\): .*/\1/p' "$work/$name.log" | head -n 1)
    if [ -n "$caught" ]; then
        promise=$(sed -n 's/^seed [0-9]*: \(.*\)/\1/p' "$work/$name.log" | head -n 1 | cut -c1-90)
        printf '%-36s %8s %8s  %s\n' "$name" $((caught - first + 1)) "$limit" "$promise"
    else
        printf '%-36s %8s %8s  %s\n' "$name" MISSED "$limit" "see $work/$name.log"
        missed=$((missed + 1))
    fi
done
echo "$(echo "$names" | wc -w) mutations in $(($(date +%s) - started)) s, $missed missed"
[ "$missed" -eq 0 ]
