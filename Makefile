# The commands that people guess. Each is one line; the scripts say what they do.
.PHONY: dev build test quick lint fmt

dev:    # a server on nodes in its own process: no Redis, no configuration
	cargo run --release -- dev

build:  # the release binary, target/release/quorate
	cargo build --release --locked

test:   # everything but what is slow and rare
	scripts/test

quick:  # the inner loop, about two minutes
	scripts/test quick

lint:   # what .ci/run asks before the tests
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings

fmt:
	cargo fmt
