#!/bin/sh
# Everything that can be checked of the chart, the dashboard, the alert rules and the compose
# file, with the real tools, none of which needs to be installed before:
#
#   charts/tests/run.sh
#
# Every panel's and every rule's query is asked of a real Prometheus, which watches a debug build
# of this tree under load for half a minute.
#
#   QUORATE_METRICS_URL=http://127.0.0.1:8080/metrics   asks about that server instead, which needs
#                                                       load meanwhile
#   QUORATE_CONTAINER_TEST=1                            also builds and runs the image (slow)
#
# What cannot be had is said ("skipped: no …") and never passed over. Tools are kept below
# ${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-chart-tools between runs.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
tools=${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-chart-tools
mkdir -p "$tools" || exit 1
failed=
# The tree stays as it was.
export PYTHONDONTWRITEBYTECODE=1

skip() { echo "skipped: $*"; }

# step NAME COMMAND…: runs it, remembers whether it failed, goes on.
step() {
    name=$1
    shift
    echo "== $name"
    if ! "$@"; then
        failed="$failed '$name'"
    fi
}

build() { (cd "$root" && { ! command -v cargo > /dev/null || cargo test -q --locked --no-run --test all; }); }

# promtool and prometheus: from PATH, or unpacked from Debian's package, which starts no service
# and needs no root.
prometheus=$(command -v prometheus || true)
promtool=$(command -v promtool || true)
if [ -z "$prometheus" ] || [ -z "$promtool" ]; then
    if [ ! -x "$tools/prometheus/usr/bin/promtool" ] && command -v apt-get > /dev/null; then
        (
            cd "$tools" || exit 1
            apt-get download -q prometheus > apt.log 2>&1 ||
                { apt-get update -q >> apt.log 2>&1 && apt-get download -q prometheus >> apt.log 2>&1; } || exit 1
            rm -rf prometheus unpacked
            dpkg-deb -x prometheus_*.deb unpacked && mv unpacked prometheus && rm -f prometheus_*.deb
        ) || echo "could not fetch Debian's prometheus: $(tail -n 1 "$tools/apt.log")"
    fi
    if [ -x "$tools/prometheus/usr/bin/promtool" ]; then
        prometheus=$tools/prometheus/usr/bin/prometheus
        promtool=$tools/prometheus/usr/bin/promtool
    fi
fi

# Python packages, at pinned versions, in an environment of their own.
python=
if command -v python3 > /dev/null; then
    if ! cmp -s "$here/requirements.txt" "$tools/venv/requirements.txt"; then
        rm -rf "$tools/venv"
        if python3 -m venv "$tools/venv" &&
            "$tools/venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt"; then
            cp "$here/requirements.txt" "$tools/venv/requirements.txt"
        fi
    fi
    if [ -f "$tools/venv/requirements.txt" ]; then
        python=$tools/venv/bin/python
    fi
fi

if [ -n "$promtool" ]; then
    step "alert rules" "$promtool" check rules "$root/charts/quorate/rules/quorate.yaml"
    step "alert rules, told stories" "$promtool" test rules "$here/rules_test.yaml"
    step "prometheus of the compose file" "$promtool" check config --syntax-only "$root/deploy/prometheus.yml"
else
    skip "no promtool, alert rules not tested"
fi

if [ -n "$python" ]; then
    names=
    if [ -f "$root/src/telemetry/families.rs" ]; then
        names="--names-from=$root/src/telemetry/families.rs"
    fi
    # shellcheck disable=SC2086  # one word or none
    step "dashboard" "$python" "$here/check_dashboard.py" $names
    # shellcheck disable=SC2086
    step "chart" "$python" "$here/check_chart.py" ${promtool:+--promtool "$promtool"}
    step "container files" "$python" "$here/check_compose.py"
    for manifest in "$root"/examples/kubernetes/*.yaml; do
        step "${manifest##*/}" "$tools/venv/bin/kubernetes-validate" --strict -k 1.31 "$manifest"
    done
    if [ -z "$prometheus" ]; then
        skip "no prometheus, panels and rules not asked of a live server"
    elif [ -z "${QUORATE_METRICS_URL:-}" ]; then
        # Built by cargo's tests already, where those ran before.
        binary=${CARGO_TARGET_DIR:-$root/target}/debug/quorate
        if ! command -v redis-server > /dev/null; then
            skip "no redis-server, panels and rules not asked of a live server"
        elif ! command -v cargo > /dev/null && [ ! -x "$binary" ]; then
            skip "no cargo to build the server with, panels and rules not asked of a live one"
        else
            step "build of the server" build
            step "live" "$python" "$here/live.py" "$binary" --prometheus "$prometheus" --promtool "$promtool"
        fi
    else
        step "live" "$python" "$here/check_live.py" --metrics-url "$QUORATE_METRICS_URL" \
            --prometheus "$prometheus" --promtool "$promtool"
    fi
else
    skip "no python3 with venv and $here/requirements.txt, chart and dashboard not checked"
fi

step "container" "$here/container.sh"

if [ -n "$failed" ]; then
    echo "FAILED:$failed"
    exit 1
fi
echo "charts: all passed"
