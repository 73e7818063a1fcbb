#!/usr/bin/env bash
# Installs a release the ways that docs/install.md names, in roots made by debootstrap, and has each server grant a lock.
#
#   archive   the tar archive, of arm64 too where qemu-user is there
#   deb       the Debian package: lintian, installed, started, upgraded, removed, purged without a trace
#   image     the image context, made into an image on bases from debootstrap, and started as a container
#   cargo     cargo install --locked --path ., with this machine's toolchain
#
#   tests/install/run.sh [PART…]      all of them unless named
#
# Takes what is in target/dist; if that is of another commit, `scripts/release --host` makes it first.
# Needs root. QUORATE_KEEP=1 leaves the roots behind.
set -euo pipefail
cd "$(dirname "$0")/../.."

dist=$PWD/target/dist
base=${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-install-tools/bookworm
work=$(mktemp -d)
pids=()

finish() {
  local status=$? mount
  trap - EXIT INT TERM
  # Most have ended.
  kill "${pids[@]}" 2>/dev/null || true
  wait
  # Lazily: what is busy for a moment longer is out of the way, too. A bound folder is never emptied with the root.
  while read -r mount; do umount --lazy "$mount"; done < <(awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/mounts | sort -r)
  [[ ${QUORATE_KEEP-} ]] || rm -rf --one-file-system "$work"
  exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() { echo "FAIL  $1" && exit 1; }
skip() { echo "skipped: $1" && exit 0; }
ok() { echo "ok    $1"; }

[[ $(id -u) = 0 ]] || skip "install: no root, which debootstrap and chroot want"
for tool in debootstrap curl redis-server lintian; do
  command -v "$tool" >/dev/null || missing+=" $tool"
done
if [[ ${missing-} ]] && command -v apt-get >/dev/null; then
  # shellcheck disable=SC2086 # a list of words
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
command -v debootstrap >/dev/null || skip "install: no debootstrap"

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
machine=$(uname -m)
if [[ ! -e $base/etc/debian_version ]]; then
  mirror=$(grep -hoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
  debootstrap --variant=minbase bookworm "$base.new" ${mirror:+"$mirror"} >"$work/debootstrap.log" 2>&1 ||
    { tail -n 20 "$work/debootstrap.log" && fail "debootstrap"; }
  mv "$base.new" "$base"
fi

new_root() { # new_root NAME: a copy of the bare system
  cp -a --reflink=auto "$base" "$work/$1"
  mount -t proc proc "$work/$1/proc"
  cp /etc/resolv.conf "$work/$1/etc/resolv.conf"
}

starts() { # starts WHAT COMMAND…: COMMAND is a server, and curl gets a lock from it
  local what=$1 log=$work/server.log url pid answer
  "${@:2}" >"$log" 2>&1 &
  pid=$!
  pids+=("$pid")
  for _ in $(seq 300); do
    url=$(sed -n 's/^listening on //p' "$log")
    if [[ $url ]] && curl -fsS -o "$work/ready" "$url/readyz" 2>/dev/null; then break; fi
    kill -0 "$pid" 2>/dev/null || { cat "$log" && fail "$what: the server ended"; }
    sleep 0.1
  done
  answer=$(curl -sS "$url/v1/locks/demo/acquire" --json '{"ttl_ms": 10000}')
  [[ $answer = *'"fencing_token":'* ]] || { cat "$log" && fail "$what: $answer"; }
  kill "$pid"
  # buildah ends with 1 itself when it is told to.
  wait "$pid" || [[ $2 = buildah ]] || fail "$what: exit status $? after TERM"
  ok "$what"
}

# --- Parts -------------------------------------------------------------------------------------

need_release() {
  [[ $(cat "$dist/COMMIT" 2>/dev/null) = $(git rev-parse HEAD) ]] || scripts/release "$version" --host
}

archive() {
  need_release
  new_root archive
  local arch run folder
  for arch in x86_64 aarch64; do
    folder=quorate-$version-$arch-linux
    [[ -e $dist/$folder.tar.gz ]] || continue
    run=()
    if [[ $arch != "$machine" ]]; then
      command -v "qemu-$arch" >/dev/null || { echo "skipped: archive of $arch, no qemu-$arch" && continue; }
      run=("qemu-$arch")
    fi
    tar xzf "$dist/$folder.tar.gz" -C "$work/archive"
    for file in quorate man/quorate.1 quorate.toml quorate.service LICENSE THIRD-PARTY-LICENCES completions/quorate.bash; do
      [[ -s $work/archive/$folder/$file ]] || fail "archive: no $file"
    done
    if ((${#run[@]})); then
      starts "archive of $arch: dev, under qemu" "${run[@]}" "$work/archive/$folder/quorate" dev --listen 127.0.0.1:0
    else
      cp "$work/archive/$folder/quorate" "$work/archive/usr/local/bin/"
      starts "archive of $arch: dev" chroot "$work/archive" quorate dev --listen 127.0.0.1:0
    fi
  done
}

# All files, without what dpkg, apt and ld.so keep for themselves.
files() { (cd "$1" && find . -xdev -not -path './var/lib/dpkg/*' -not -path './var/cache/*' -not -path './var/log/*' \
  -not -path './var/lib/apt/*' -not -name '*-' -not -path './proc/*' -not -path './run/*' -not -path './tmp/*' | sort); }

deb() {
  need_release
  local arch package old node redis=()
  arch=$(dpkg --print-architecture) package=$dist/quorate_${version}_$arch.deb
  lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$package" || fail "lintian"
  ok "lintian"
  new_root deb
  files "$work/deb" >"$work/before"
  # The same package as an earlier version.
  old=$work/deb/tmp/old.deb
  dpkg-deb -R "$package" "$work/old" && sed -i 's/^Version: .*/Version: 0.0.1/' "$work/old/DEBIAN/control"
  dpkg-deb --root-owner-group -b "$work/old" "$old" >/dev/null
  cp "$package" "$work/deb/tmp/new.deb"
  in_deb() { chroot "$work/deb" "$@"; }
  in_deb dpkg -i /tmp/old.deb >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" && fail "dpkg -i"; }
  [[ $(in_deb stat -c '%U:%G %a' /etc/quorate) = 'root:quorate 750' ]] || fail "rights of /etc/quorate"
  in_deb getent passwd quorate >/dev/null || fail "no user quorate"
  starts "deb: dev" chroot "$work/deb" quorate dev --listen 127.0.0.1:0

  for node in 1 2 3; do
    mkdir "$work/node-$node"
    redis-server --port 0 --unixsocket "$work/deb/tmp/redis-$node" --unixsocketperm 777 --dir "$work/node-$node" --save '' \
      --maxmemory-policy noeviction >"$work/redis.log" 2>&1 &
    pids+=($!)
    redis+=("unix:///tmp/redis-$node")
  done
  printf '%s\n' "${redis[@]}" >"$work/deb/etc/quorate/nodes"
  in_deb chgrp quorate /etc/quorate/nodes /etc/quorate/quorate.toml
  chmod 640 "$work/deb/etc/quorate/nodes"
  sed -i 's|^listen = .*|listen = "127.0.0.1:0"|; s|^# redis_file = .*|redis_file = "/etc/quorate/nodes"|' \
    "$work/deb/etc/quorate/quorate.toml"
  in_deb quorate init --redis-file /etc/quorate/nodes >/dev/null
  # What systemd would do; there is none in a chroot. The unit itself is read by its own checker.
  if command -v systemd-analyze >/dev/null; then
    systemd-analyze verify --man=no --root="$work/deb" quorate.service >"$work/unit.log" 2>&1 || true
    # /bin/kill is there wherever systemd is, but not in a bare system.
    grep -v 'Failed to prepare filename\|Unit .* not found\|/bin/kill' "$work/unit.log" | grep -i quorate && fail "the unit"
    ok "deb: the unit"
  else
    echo "skipped: no systemd-analyze, the unit not checked"
  fi
  service() {
    local command
    command=$(sed -n 's/^ExecStart=//p' "$work/deb/lib/systemd/system/quorate.service")
    # shellcheck disable=SC2086 # a list of words
    starts "$1" chroot "$work/deb" setpriv --reuid quorate --regid quorate --init-groups --no-new-privs $command
  }
  service "deb: serve, as the unit's user and with its command"
  in_deb dpkg -i /tmp/new.deb >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" && fail "upgrade"; }
  grep -q "redis_file.*nodes" "$work/deb/etc/quorate/quorate.toml" || fail "the upgrade changed the settings"
  service "deb: serve, after an upgrade"
  in_deb dpkg -r quorate >/dev/null
  [[ ! -e $work/deb/usr/bin/quorate && -e $work/deb/etc/quorate/quorate.toml ]] || fail "deb: removed"
  in_deb dpkg -P quorate >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" && fail "purge"; }
  files "$work/deb" >"$work/after"
  diff "$work/before" "$work/after" || fail "deb: left behind by a purge"
  ! in_deb getent passwd quorate || fail "deb: the user is left behind by a purge"
  ok "deb: removed, and purged without a trace"
}

image() {
  need_release
  command -v buildah >/dev/null || { echo "skipped: image, no buildah" && return; }
  local b=(buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs) container
  tar xzf "$dist/quorate-$version-image.tar.gz" -C "$work"
  # The bases that the Dockerfile names, so that no registry of images is needed.
  mkdir -p "$work/base" && tar -C "$base" -cf "$work/base/rootfs.tar" .
  cp /etc/ssl/certs/ca-certificates.crt "$work/base"
  printf 'FROM scratch\nADD rootfs.tar /\nCOPY ca-certificates.crt /etc/ssl/certs/\n' >"$work/base/Dockerfile"
  "${b[@]}" bud -q --isolation chroot -t base "$work/base" >/dev/null
  "${b[@]}" bud -q --isolation chroot --pull-never --format docker --build-arg BINARY=released \
    --build-arg TARGETARCH="$(dpkg --print-architecture)" --build-arg RUST_IMAGE=base --build-arg RUNTIME_IMAGE=base \
    --build-arg CERTIFICATES_IMAGE=base -t quorate "$work/quorate-$version-image" >"$work/image.log" 2>&1 ||
    { tail -n 20 "$work/image.log" && fail "image"; }
  container=$("${b[@]}" from --pull-never quorate)
  [[ $("${b[@]}" inspect --format '{{.OCIv1.Config.User}}' "$container") = 10001:10001 ]] || fail "image: its user"
  starts "image: dev" "${b[@]}" run --isolation chroot --network host --user 10001 "$container" -- \
    /usr/local/bin/quorate dev --listen 127.0.0.1:0
}

cargo_install() {
  new_root cargo
  chroot "$work/cargo" sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev' \
    >"$work/apt.log" 2>&1 || { tail -n 20 "$work/apt.log" && fail "apt-get install gcc"; }
  mkdir -p "$work/cargo/src" "$work/cargo/rust" "$work/cargo/root/.cargo"
  git archive HEAD | tar x -C "$work/cargo/src"
  mount --bind -o ro "$(rustc --print sysroot)" "$work/cargo/rust"
  # How this machine reaches the registry, and what it has fetched.
  cp -a "${CARGO_HOME:-$HOME/.cargo}"/config* "$work/cargo/root/.cargo/" 2>/dev/null || true
  mkdir -p "$work/cargo/root/.cargo/registry"
  mount --bind "${CARGO_HOME:-$HOME/.cargo}/registry" "$work/cargo/root/.cargo/registry"
  mkdir -p "$work/cargo/etc/ssl/certs" && cp /etc/ssl/certs/ca-certificates.crt "$work/cargo/etc/ssl/certs/"
  chroot "$work/cargo" env PATH=/rust/bin:/usr/bin:/bin HOME=/root sh -c 'cd /src && cargo install --locked --path .' \
    >"$work/cargo.log" 2>&1 || { tail -n 30 "$work/cargo.log" && fail "cargo install"; }
  starts "cargo install: dev" chroot "$work/cargo" /root/.cargo/bin/quorate dev --listen 127.0.0.1:0
}

parts=("$@")
((${#parts[@]})) || parts=(archive deb image cargo)
for part in "${parts[@]}"; do
  case $part in
    archive | deb | image) "$part" ;;
    cargo) cargo_install ;;
    *) echo "usage: tests/install/run.sh [archive|deb|image|cargo]…" >&2 && exit 64 ;;
  esac
done
