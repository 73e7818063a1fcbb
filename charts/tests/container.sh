#!/bin/sh
# Builds the Dockerfile for real and runs the image the way the chart does: uid 10001, read-only
# root. With buildah, which needs no daemon, on base images made here from Debian's packages, so
# that no image has to be pulled from anywhere.
#
#   QUORATE_CONTAINER_TEST=1 charts/tests/container.sh
#
# Needs root, and on two quiet cores about five minutes, most of them for the release build, which is why it
# is asked for. QUORATE_KEEP=1 leaves the work folder for another run, which then only rebuilds what changed.
set -eu

if [ "${QUORATE_CONTAINER_TEST:-}" != 1 ]; then
    echo "skipped: no QUORATE_CONTAINER_TEST=1, image not built"
    exit 0
fi
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
if [ "$(id -u)" != 0 ]; then
    echo "skipped: no root, which buildah's chroot isolation and debootstrap want"
    exit 0
fi
missing=
for tool in buildah debootstrap redis-server curl cargo; do
    command -v $tool > /dev/null || missing="$missing $tool"
done
case $missing in *buildah* | *debootstrap* | *redis-server* | *curl*)
    if command -v apt-get > /dev/null; then
        # Packages only; nothing of theirs needs to run.
        # shellcheck disable=SC2046,SC2086  # a list of words
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
            $(printf '%s\n' $missing | grep -v cargo) > /dev/null 2>&1 || true
    fi
    ;;
esac
for tool in buildah debootstrap redis-server redis-cli curl cargo; do
    command -v $tool > /dev/null || {
        echo "skipped: no $tool, image not built"
        exit 0
    }
done

work=${TMPDIR:-/tmp}/quorate-container-test
mkdir -p "$work"
pids=
containers=
bud() { buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs "$@"; }
clean() {
    for pid in $pids; do kill "$pid" 2> /dev/null || true; done
    # A root that is still in use cannot be unmounted.
    for pid in $pids; do wait "$pid" 2> /dev/null || true; done
    if mountpoint -q "$work/root" 2> /dev/null; then umount "$work/root" || return; fi
    for c in $containers; do bud rm "$c" > /dev/null 2>&1 || true; done
    [ "${QUORATE_KEEP:-}" = 1 ] || rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM
fail() {
    echo "FAILED: $*"
    exit 1
}

# Where this machine gets Debian from.
# shellcheck disable=SC2016  # apt's own variables
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 2> /dev/null |
    head -n 1)
[ -n "$mirror" ] || {
    echo "skipped: no Debian mirror in apt's sources, image not built"
    exit 0
}

if ! bud images -q debian:bookworm-slim > /dev/null 2>&1; then
    echo "-- base image of the runtime"
    rm -rf "$work/rootfs"
    debootstrap --variant=minbase bookworm "$work/rootfs" "$mirror" > "$work/debootstrap.log" 2>&1 || {
        tail -n 3 "$work/debootstrap.log"
        echo "skipped: no Debian to be had for debootstrap, image not built"
        exit 0
    }
    mkdir -p "$work/base"
    # What the slim images leave out as well.
    rm -rf "$work/rootfs/var/cache/apt" "$work/rootfs/var/lib/apt/lists" "$work/rootfs/usr/share/doc" \
        "$work/rootfs/usr/share/man" "$work/rootfs/usr/share/locale"
    tar -C "$work/rootfs" -cf "$work/base/rootfs.tar" .
    printf 'FROM scratch\nADD rootfs.tar /\n' > "$work/base/Dockerfile"
    bud bud -q --isolation chroot -t docker.io/library/debian:bookworm-slim "$work/base" > /dev/null
fi

if ! bud images -q rust:1.95.0-bookworm > /dev/null 2>&1; then
    echo "-- base image of the build: gcc and this machine's own Rust"
    rm -rf "$work/rootfs-rust"
    debootstrap --variant=minbase --include=gcc,g++,make,libc6-dev,ca-certificates,pkg-config bookworm \
        "$work/rootfs-rust" "$mirror" > "$work/debootstrap.log" 2>&1 || fail "debootstrap: $(tail -n 3 "$work/debootstrap.log")"
    toolchain=$(rustc --print sysroot)
    mkdir -p "$work/rootfs-rust/usr/local/rust" "$work/rootfs-rust/usr/local/cargo" "$work/rust"
    # Documentation is half of a toolchain.
    tar -C "$toolchain" --exclude=./share -cf - . | tar -C "$work/rootfs-rust/usr/local/rust" -xf -
    cp /etc/ssl/certs/ca-certificates.crt "$work/rootfs-rust/etc/ssl/certs/ca-certificates.crt"
    # However this machine fetches crates, the build inside does too.
    for file in config.toml config; do
        if [ -f "${CARGO_HOME:-$HOME/.cargo}/$file" ]; then
            cp "${CARGO_HOME:-$HOME/.cargo}/$file" "$work/rootfs-rust/usr/local/cargo/"
        fi
    done
    tar -C "$work/rootfs-rust" -cf "$work/rust/rootfs.tar" .
    cat > "$work/rust/Dockerfile" << 'END'
FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=/usr/local/cargo
END
    bud bud -q --isolation chroot -t docker.io/library/rust:1.95.0-bookworm "$work/rust" > /dev/null
    rm -rf "$work/rootfs-rust" "$work/rust"
fi

echo "-- the image"
started=$(date +%s)
bud bud --isolation chroot --network host --pull-never --format docker --layers \
    --build-arg CERTIFICATES_IMAGE=docker.io/library/rust:1.95.0-bookworm \
    -f "$root/Dockerfile" -t quorate:test "$root" > "$work/build.log" 2>&1 ||
    fail "the Dockerfile does not build: $(tail -n 25 "$work/build.log")"
echo "   built in $(($(date +%s) - started)) s"

# What it says about itself.
config=$(bud inspect --type image quorate:test)
printf '%s' "$config" | grep -q '"User": "10001:10001"' || fail "the image does not run as 10001"
# The words of its health check, to be run as they stand.
health=$(printf '%s' "$config" | python3 -c '
import json, sys
def find(value):
    if isinstance(value, dict) and "Healthcheck" in value:
        return value["Healthcheck"]["Test"]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return next(filter(None, map(find, parts)), None)
kind, *words = find(json.load(sys.stdin)) or ["NONE"]
print(*words if kind == "CMD" else [])')
[ -n "$health" ] || fail "the image has no health check that needs no shell"
container=$(bud from --pull-never quorate:test)
containers="$containers $container"
mounted=$(bud mount "$container")
binary=$mounted/usr/local/bin/quorate
[ -x "$binary" ] || fail "no binary in the image"
size=$(du -m "$binary" | cut -f 1)
[ ! -e "$mounted/usr/bin/gcc" ] && [ ! -e "$mounted/src" ] || fail "the image carries the build"
whole=$(du -sm "$mounted" | cut -f 1)
echo "   $whole MB, $size MB of which are the binary; besides it and the CA roots nothing was added to the base"

# The root file system read-only in earnest: a read-only bind mount of the image's root, entered
# by chroot as uid 10001 without any privilege.
mkdir -p "$work/root"
mount --bind "$mounted" "$work/root"
mount -o remount,bind,ro "$work/root"
enter() {
    variables=$1
    shift
    # chroot wants the privilege that is dropped right after it.
    # shellcheck disable=SC2086
    env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin $variables \
        chroot --userspec=10001:10001 "$work/root" "$@"
}
if enter "" /bin/sh -c 'echo x > /tmp/x' 2> /dev/null; then fail "the root is not read-only"; fi
[ "$(enter "" id -u)" = 10001 ] || fail "not 10001"
echo "   $(enter "" /usr/local/bin/quorate --version) starts as uid 10001 on a read-only root"

port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
nodes=
for i in 1 2 3; do
    p=$(port)
    mkdir -p "$work/node$i"
    redis-server --port "$p" --bind 127.0.0.1 --dir "$work/node$i" --save '' --appendonly no > /dev/null &
    pids="$pids $!"
    until redis-cli -p "$p" ping > /dev/null 2>&1; do sleep 0.1; done
    redis-cli -p "$p" flushall > /dev/null
    nodes="$nodes,redis://127.0.0.1:$p"
done
nodes=${nodes#,}
listen=127.0.0.1:$(port)
enter "QUORATE_REDIS=$nodes" /usr/local/bin/quorate init || fail "quorate init"
# Not by `enter`: the signal below must reach the server and not a shell around it.
env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin QUORATE_REDIS="$nodes" QUORATE_LISTEN="$listen" \
    QUORATE_LOG_FORMAT=json QUORATE_INSECURE_NO_AUTH=true \
    chroot --userspec=10001:10001 "$work/root" /usr/local/bin/quorate serve > "$work/serve.log" 2>&1 &
server=$!
pids="$pids $server"
tries=0
until curl -sf "http://$listen/readyz" > /dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || fail "the server in the image is not ready: $(tail -n 5 "$work/serve.log")"
    sleep 0.1
done
# shellcheck disable=SC2086  # a list of words
enter "QUORATE_SERVER=http://$listen" $health || fail "$health: a healthy server"
# shellcheck disable=SC2086
if enter "QUORATE_SERVER=http://127.0.0.1:1" $health > /dev/null 2>&1; then
    fail "$health: no server"
fi
enter "QUORATE_SERVER=http://$listen" /usr/local/bin/quorate healthcheck || fail "healthcheck of a ready server"
answer=$(curl -s -X POST "http://$listen/v1/locks/container/acquire" -H 'content-type: application/json' -d '{"ttl_ms": 5000}')
echo "$answer" | grep -q '"fencing_token"' || fail "no lock from the image: $answer"
kill -TERM "$server"
status=0
wait "$server" || status=$?
[ "$status" = 0 ] || fail "exit $status after SIGTERM: $(tail -n 5 "$work/serve.log")"
echo "container: built, and healthy over three nodes as uid 10001 on a read-only root"
