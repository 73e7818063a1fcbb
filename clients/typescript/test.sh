#!/usr/bin/env bash
# Types, drift from the OpenAPI document, the tests against real servers over real redis-servers, and the package.
# QUORATE_BIN names the server's binary. Tools come from npm into ${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-typescript-tools.
set -euo pipefail
cd "$(dirname "$0")"
: "${QUORATE_BIN:?the binary of the server to test against}"
QUORATE_BIN=$(realpath "$QUORATE_BIN")
export QUORATE_BIN
tools=${QUORATE_TOOLS:-${TMPDIR:-/tmp}}/quorate-typescript-tools
if ! cmp -s package.json "$tools/installed.json"; then
    rm -rf "$tools" && mkdir -p "$tools" && cp package.json "$tools"
    if ! (cd "$tools" && npm install --silent --ignore-scripts --no-package-lock --no-audit --no-fund); then
        echo "skipped: no npm, or its registry was out of reach"
        exit 0
    fi
    cp package.json "$tools/installed.json"
fi
# All of it in a copy, so that nothing is left in the tree.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$work/clients/typescript
mkdir -p "$package" "$work/openapi"
cp -r LICENSE README.md package.json tsconfig*.json scripts src test "$package"
cp ../../openapi/quorate-v1.json "$work/openapi"
ln -s "$tools/node_modules" "$package/node_modules"
cd "$package"

node scripts/generate.mjs --check
node_modules/.bin/tsc -p tsconfig.test.json
log=$work/log begun=$SECONDS status=0
node --enable-source-maps --test --test-reporter=spec --test-concurrency=3 --test-timeout=60000 build/test/*.test.js >"$log" 2>&1 || status=$?
((status == 0)) || { cat "$log" && exit "$status"; }
sed -nE 's/^ *﹣ (.*) \([0-9.]+ms\) # (.*)$/   not run: \1: \2/p' "$log"

count() { sed -nE "s/^ℹ $1 ([0-9]+)\$/\1/p" "$log"; }

# What is published: the compiled files and their sources, and a stranger's code compiles and runs with it.
node_modules/.bin/tsc
npm pack --silent --ignore-scripts >/dev/null
published=$work/published/node_modules/@quorate/client
mkdir -p "$published"
tar -xzf quorate-client-*.tgz -C "$published" --strip-components=1
(cd "$published" && find . -type f | sort) >"$work/files"
{ printf './%s\n' LICENSE README.md package.json
  for file in src/*.ts; do
      name=$(basename "$file" .ts)
      printf './%s\n' "src/$name.ts" "dist/$name.js" "dist/$name.js.map" "dist/$name.d.ts"
  done; } | sort | diff - "$work/files"
cp test/stranger.mts "$work/published" && cd "$work/published"
"$package/node_modules/.bin/tsc" --strict --module nodenext --target es2022 --lib es2022,dom,esnext.disposable stranger.mts
"$QUORATE_BIN" dev --listen 127.0.0.1:0 >"$work/server" 2>&1 &
server=$!
trap 'kill "$server"; rm -rf "$work"' EXIT
until QUORATE_SERVER=$(sed -n 's/^listening on //p' "$work/server") && [[ $QUORATE_SERVER ]]; do
    kill -0 "$server" || { cat "$work/server" && exit 1; }
    sleep 0.1
done
export QUORATE_SERVER
node stranger.mjs
if command -v deno >/dev/null; then deno run --allow-net --allow-env --node-modules-dir=manual stranger.mjs; fi
if command -v bun >/dev/null; then bun stranger.mjs; fi
echo "npm pack: $(wc -l <"$work/files") files"
echo "$(count pass) passed, $(count skipped) skipped in $((SECONDS - begun)) s"
