#!/usr/bin/env bash
# Generates one client from the OpenAPI document, and runs the program beside it that uses it against
# $QUORATE_SERVER. Called by tests/clients/run.sh, which has brought the tools.
#
#   sdk/run.sh NAME[@3.0]     NAME is a folder here; @3.0 takes the document in OpenAPI 3.0
#
# Exit status 77: cannot be tried here; the last line says why.
set -euo pipefail

# shellcheck disable=SC2154
: "${root?}" "${here?}" "${tools?}" "${scratch?}"

name=${1%@*}
document=$root/openapi/quorate-v1.json
[[ $1 == *@3.0 ]] && document=$root/openapi/quorate-v1-3.0.json
program=$here/sdk/$name
work=$scratch/sdk/$1
modules=$tools/node/node_modules
mkdir -p "$work"
cd "$work"
PATH=$tools/venv/bin:$PATH

cannot() { echo "$*" && exit 77; }
has() { command -v "$1" >/dev/null || cannot "no $1"; }

generate() { # generate GENERATOR DIRECTORY OPTION…
  has openapi-generator-cli
  has java
  openapi-generator-cli generate -i "$document" -g "$1" -o "$2" "${@:3}"
}

# compile_and_run: use.ts, with the client in client/.
compile_and_run() {
  cp "$program/use.ts" "$here/sdk/tsconfig.json" .
  echo '{"type": "module"}' >package.json
  ln -s "$modules" node_modules
  node_modules/.bin/tsc -p .
  node dist/use.js
}

case $name in
  python)
    generate python client --package-name quorate_client
    PYTHONPATH=client python "$program/use.py"
    ;;

  openapi-python-client)
    has openapi-python-client
    openapi-python-client generate --path "$document" --meta none --output-path client/quorate_client \
      --config "$program/config.yaml" --fail-on-warning
    PYTHONPATH=client python "$program/use.py"
    ;;

  typescript-fetch)
    [[ -x $modules/.bin/tsc ]] || cannot "no TypeScript: no npm, or the registry was out of reach"
    # With .js in its imports, as modules of Node want them.
    generate typescript-fetch client --additional-properties=importFileExtension=.js
    compile_and_run
    ;;

  openapi-typescript)
    [[ -x $modules/.bin/openapi-typescript ]] || cannot "no TypeScript: no npm, or the registry was out of reach"
    # Or a field that has a default would have to be given.
    "$modules/.bin/openapi-typescript" "$document" --default-non-nullable=false -o client/quorate.ts
    compile_and_run
    ;;

  go)
    has go
    generate go quorate --additional-properties=packageName=quorate,withGoMod=false
    rm -r quorate/test # needs a testing library from elsewhere; the client itself needs nothing
    cp "$program"/* .
    go build -o use .
    ./use
    ;;

  java)
    has javac
    has mvn
    generate java client --library native --additional-properties=openApiNullable=false
    cp "$program/pom.xml" .
    mvn -B -q -Dmaven.repo.local="$tools/maven" \
      org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=lib ||
      cannot "no libraries: the registry is out of reach"
    mapfile -t sources < <(find client/src/main/java -name '*.java')
    javac -nowarn -proc:none -cp 'lib/*' -d classes "${sources[@]}" "$program/Use.java"
    java -cp 'classes:lib/*' Use
    ;;

  rust)
    has cargo
    generate rust client --package-name quorate-client
    cp "$program"/* .
    # Kept from run to run on this machine: the lock file, and what was compiled.
    export CARGO_TARGET_DIR=$tools/$1 CARGO_PROFILE_DEV_DEBUG=0
    if [[ -f $CARGO_TARGET_DIR/Cargo.lock ]]; then cp "$CARGO_TARGET_DIR/Cargo.lock" .; fi
    cargo fetch -q || cannot "no crates: the registry is out of reach"
    cargo build -q
    cp Cargo.lock "$CARGO_TARGET_DIR"
    "$CARGO_TARGET_DIR/debug/use"
    ;;

  *)
    echo "no such client: $name"
    exit 64
    ;;
esac
