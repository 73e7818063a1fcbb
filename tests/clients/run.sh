#!/usr/bin/env bash
# What clients meet, shown with real ones: a server over three real Redis servers, and against it
#
#   examples   every file of examples/, in bash, Python and TypeScript
#   sdks       clients generated from the OpenAPI document, each put to work (sdk/)
#   schema     the document held against the server, by schemathesis
#   lint       the document in both its versions, by redocly
#
#   tests/clients/run.sh [PART…]     all of them unless named
#
#   QUORATE_BIN=FILE    the binary to test, instead of building it
#   QUORATE_SDKS=all    every generator from both documents; or some: "go java@3.0"
#   QUORATE_KEEP=1      leaves all logs and generated clients behind
#
# Tools come from the package registries, at pinned versions, into
# ${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-client-tools, and stay there for the next run. What cannot be had is said
# ("skipped: …"), and said again at the end.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
tools=${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-client-tools
scratch=$(mktemp -d)
mkdir -p "$tools" "$scratch/logs"
export here root tools scratch
pids=()

finish() {
  local status=$?
  trap - EXIT INT TERM
  ((${#pids[@]})) && kill "${pids[@]}" 2>/dev/null
  wait 2>/dev/null
  if [[ -n ${QUORATE_KEEP-} ]]; then echo "left behind: $scratch"; else rm -rf "$scratch"; fi
  exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

has() { command -v "$1" >/dev/null; }
skip() { echo "skipped: $*" | tee -a "$scratch/skipped"; }

# need COMMAND [PACKAGE]: with the system's package manager where it is missing.
need() {
  has "$1" && return
  local as_root=()
  [[ $(id -u) = 0 ]] || as_root=(sudo)
  if has apt-get; then
    "${as_root[@]}" apt-get update -qq && "${as_root[@]}" apt-get install -y -qq "${2:-$1}" >/dev/null
  elif has brew; then
    brew install --quiet "${2:-$1}"
  fi
  has "$1" || { echo "please install $1" >&2 && exit 1; }
}

# attempt NAME COMMAND…: its output only when it fails. Exit status 77: it could not be tried, and
# the last line of output says why.
attempt() {
  local begun=$SECONDS status=0 log=$scratch/logs/${1//\//-}
  "${@:2}" >"$log" 2>&1 </dev/null || status=$?
  case $status in
    0) echo "ok    $1 ($((SECONDS - begun)) s)" ;;
    77) skip "$1: $(tail -n 1 "$log")" ;;
    *)
      echo "$1" >>"$scratch/failed"
      # One write, so that the reports of several do not mix.
      printf '%s\n' "FAIL  $1: exit status $status after $((SECONDS - begun)) s
$(tail -n 80 "$log" | sed 's/^/      | /')"
      ;;
  esac
}
export -f attempt skip has

# --- A server --------------------------------------------------------------------------------

# Sockets in files for the nodes and a port that the system chooses for the server: nothing here
# can meet another run of this on the same machine.
redis=()
start_server() {
  local node server=$scratch/logs/server
  if [[ -z ${QUORATE_BIN-} ]]; then
    (cd "$root" && cargo test --locked --quiet --no-run --test all)
    QUORATE_BIN=${CARGO_TARGET_DIR:-$root/target}/debug/quorate
  fi
  for node in 1 2 3; do
    mkdir "$scratch/node-$node"
    redis-server --port 0 --unixsocket "$scratch/node-$node/redis" --dir "$scratch/node-$node" --save '' \
      --maxmemory-policy noeviction >"$scratch/logs/redis-$node" 2>&1 &
    pids+=($!)
    redis+=(--redis "unix://$scratch/node-$node/redis")
  done
  for node in 1 2 3; do
    within 20 redis-cli -s "$scratch/node-$node/redis" ping || fail_to_start "$scratch/logs/redis-$node"
  done
  "$QUORATE_BIN" init "${redis[@]}" >"$scratch/logs/init" 2>&1 || fail_to_start "$scratch/logs/init"
  "$QUORATE_BIN" serve "${redis[@]}" --listen 127.0.0.1:0 >"$server" 2>&1 &
  pids+=($!)
  within 20 grep -q '^listening on ' "$server" || fail_to_start "$server"
  QUORATE_SERVER=$(sed -n 's/^listening on //p' "$server")
  export QUORATE_SERVER QUORATE_BIN
  within 20 curl -fsS "$QUORATE_SERVER/readyz" || fail_to_start "$server"
  echo "$("$QUORATE_BIN" --version) at $QUORATE_SERVER over three times $(redis-server --version | cut -d' ' -f1-3)"
}

within() { # within SECONDS CONDITION…
  local ends=$((SECONDS + $1))
  until "${@:2}" >/dev/null 2>&1; do
    ((SECONDS < ends)) || return 1
    sleep 0.1
  done
}

fail_to_start() {
  echo "this did not start:" >&2
  tail -n 30 "$1" >&2
  exit 1
}

# --- Tools -----------------------------------------------------------------------------------

# A virtual environment with requirements.txt, made anew when that changes.
python_tools() {
  cmp -s "$here/requirements.txt" "$tools/venv/requirements.txt" && return
  rm -rf "$tools/venv"
  python3 -m venv "$tools/venv" &&
    "$tools/venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt" &&
    cp "$here/requirements.txt" "$tools/venv/requirements.txt"
}

# The same for package.json.
node_tools() {
  cmp -s "$here/package.json" "$tools/node/installed.json" && return
  has npm || return
  rm -rf "$tools/node" && mkdir "$tools/node" && cp "$here/package.json" "$tools/node" &&
    (cd "$tools/node" && npm install --silent --no-package-lock --no-audit --no-fund) &&
    cp "$here/package.json" "$tools/node/installed.json"
}

with_python=yes with_node=yes
get_tools() {
  local begun=$SECONDS python=0 node=0
  # One run at a time may fetch them.
  exec 9>"$tools/lock"
  if has flock; then flock 9; fi
  python_tools >"$scratch/logs/pip" 2>&1 9>&- &
  python=$!
  node_tools >"$scratch/logs/npm" 2>&1 9>&- &
  node=$!
  wait $python || { with_python='' && tail -n 5 "$scratch/logs/pip"; }
  wait $node || { with_node='' && tail -n 5 "$scratch/logs/npm"; }
  exec 9>&-
  echo "tools in $tools ($((SECONDS - begun)) s)"
}

# --- Parts -----------------------------------------------------------------------------------

example() { # example FILE: below examples/
  case $1 in
    bash/*) "$root/examples/$1" ;;
    python/*) PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$root/clients/python/src "$tools/venv/bin/python" "$root/examples/$1" ;;
    typescript/*) node "$scratch/typescript/dist/$(basename "$1" .ts).js" ;;
  esac
}
export -f example

# The client is built to where the examples find it.
compile_examples() {
  local client=$scratch/node_modules/@quorate/client
  mkdir -p "$scratch/typescript" "$client"
  cp "$root/clients/typescript/package.json" "$client"
  "$tools/node/node_modules/.bin/tsc" -p "$root/clients/typescript" --outDir "$client/dist"
  cp "$root"/examples/typescript/{package.json,tsconfig.json,*.ts} "$scratch/typescript"
  ln -s "$tools/node/node_modules" "$scratch/typescript/node_modules"
  "$tools/node/node_modules/.bin/tsc" --strict -p "$scratch/typescript"
}

# All that are there, several at a time, as in real life; mostly they wait. Each takes names that
# nobody else has. Leases of seconds are lost where a machine is so busy that a process sleeps for
# seconds; so what fails in company has another try alone, and the line says so.
examples() {
  local file files=()
  if [[ $with_node ]]; then
    # What does not compile has no second try.
    attempt examples/typescript/tsc compile_examples
    [[ ! -f $scratch/failed ]] || return 0
  else
    skip "examples in TypeScript: no npm, or the registry was out of reach"
  fi
  [[ $with_python ]] || skip "examples in Python: no python3 with venv, or the registry was out of reach"
  for file in "$root"/examples/{bash/*.sh,python/*.py,typescript/*.ts}; do
    case ${file##*/} in
      quorate.sh | demo.*) ;; # what the others import is no recipe
      *.py) [[ ! $with_python ]] || files+=("python/${file##*/}") ;;
      *.ts) [[ ! $with_node ]] || files+=("typescript/${file##*/}") ;;
      *) files+=("${file#"$root/examples/"}") ;;
    esac
  done
  # shellcheck disable=SC2016
  printf '%s\n' "${files[@]}" | sort -t/ -k2 | xargs -P "${EXAMPLES_AT_ONCE:-6}" -I{} \
    bash -c 'attempt "examples/$1" timeout 120 bash -c "example $1"' - {}
  [[ -f $scratch/failed ]] || return 0
  mv "$scratch/failed" "$scratch/again"
  while read -r file; do
    echo "again, alone: $file"
    attempt "$file" timeout 120 bash -c "example ${file#examples/}"
  done <"$scratch/again"
}

# Each in a process of its own; sdk/run.sh has the commands.
sdks() {
  local list sdk all
  # The Rust generator takes the document in 3.0 only: it wraps what may be null in 3.1 into two options.
  all="python openapi-python-client typescript-fetch openapi-typescript go java"
  case ${QUORATE_SDKS-} in
    '') list="$all rust@3.0 python@3.0 openapi-python-client@3.0" ;;
    all) list="$all rust@3.0 $(for sdk in $all; do echo "$sdk@3.0"; done)" ;;
    *) list=$QUORATE_SDKS ;;
  esac
  # shellcheck disable=SC2016
  xargs -n 1 <<<"$list" | xargs -P 2 -I{} bash -c 'attempt "sdk/$1" "$here/sdk/run.sh" "$1"' - {}
}

# Event streams are left out: they end when the client goes, which this one never does. A name that
# nobody holds is no missing resource, so "use after free" has no meaning here. The server is one that lets nobody
# wait for long, and the document is its own.
schema() {
  if [[ ! $with_python ]]; then
    skip "schema: no schemathesis, since the registry was out of reach"
    return
  fi
  local log=$scratch/logs/impatient url
  "$QUORATE_BIN" serve "${redis[@]}" --listen 127.0.0.1:0 --max-wait 50ms >"$log" 2>&1 &
  pids+=($!)
  within 20 grep -q '^listening on ' "$log" || fail_to_start "$log"
  url=$(sed -n 's/^listening on //p' "$log")
  within 20 curl -fsS "$url/readyz" || fail_to_start "$log"
  cd "$scratch" # where it keeps what it found
  attempt schema env SCHEMATHESIS_HOOKS="$here/schemathesis_hooks.py" \
    "$tools/venv/bin/schemathesis" run "$url/openapi.json" --url "$url" \
    -n "${SCHEMATHESIS_EXAMPLES:-40}" --phases examples,coverage,fuzzing,stateful \
    --checks all --exclude-checks use_after_free --exclude-operation-id-regex '^(hold|observe).*$' \
    --continue-on-failure --generation-deterministic --no-color
}

lint() {
  if [[ ! $with_node ]]; then
    skip "lint: no redocly, since there is no npm or the registry was out of reach"
    return
  fi
  attempt lint env REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true \
    "$tools/node/node_modules/.bin/redocly" lint "$root/openapi/quorate-v1.json" "$root/openapi/quorate-v1-3.0.json"
}

begun=$SECONDS
parts=("$@")
((${#parts[@]})) || parts=(examples sdks schema lint)
for part in "${parts[@]}"; do
  case $part in
    examples | sdks | schema | lint) ;;
    *) echo "usage: tests/clients/run.sh [examples|sdks|schema|lint]…" >&2 && exit 64 ;;
  esac
done

for command in curl jq sqlite3 python3; do need "$command"; done
need redis-server
get_tools
start_server

# schemathesis removes members of the deployment, so it comes behind what counts its nodes.
for part in examples sdks lint schema; do
  [[ " ${parts[*]} " == *" $part "* ]] || continue
  echo "-- $part"
  "$part"
done

skipped=$([[ -f $scratch/skipped ]] && wc -l <"$scratch/skipped" || echo 0)
if [[ -f $scratch/failed ]]; then
  echo "failed, after $((SECONDS - begun)) s: $(sort "$scratch/failed" | tr '\n' ' ')"
  exit 1
fi
echo "clients: all passed in $((SECONDS - begun)) s, $skipped skipped"
if ((skipped)); then sed 's/^/  /' "$scratch/skipped"; fi
