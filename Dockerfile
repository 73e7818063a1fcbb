# The server on a plain Debian: built here, or with the binary of a release.
#
#   docker build -t quorate .
#   docker run --rm -p 127.0.0.1:8080:8080 --read-only quorate dev --listen 0.0.0.0:8080
#
# --build-arg PROFILE=yes builds with a profile of the server under load, which takes twice the time.
# --build-arg BINARY=released takes released/ARCHITECTURE/quorate, as in a release's image context.
#
# No `# syntax=` line on purpose: it would fetch a front end from a registry, and
# every builder of the last years knows cache mounts without it.

ARG RUST_IMAGE=rust:1.95.0-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim
ARG CERTIFICATES_IMAGE=buildpack-deps:bookworm-curl
ARG BINARY=built

FROM ${RUST_IMAGE} AS built
ARG PROFILE=no
WORKDIR /src
COPY . .
# Dependencies live in cache mounts: the registry so that they are fetched once, the
# target folder so that a changed line of ours recompiles one crate and not two
# hundred. Mounts are gone after the step, hence the binary is taken out within it.
# Symbols for backtraces stay, debug information (several MB of std's) goes.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/usr/local/cargo/git,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    target=$(rustc -vV | sed -n 's/^host: //p') \
 && if [ "$PROFILE" = yes ]; then \
      apt-get update -q && apt-get install -y -q --no-install-recommends redis-server \
      && scripts/profile /tmp/quorate.profdata \
      && export RUSTFLAGS="-Cprofile-use=/tmp/quorate.profdata"; \
    fi \
 && cargo build --release --locked --bin quorate --target "$target" \
 && install -D -m 0755 "target/$target/release/quorate" /quorate \
 && strip --strip-debug /quorate

FROM scratch AS released
ARG TARGETARCH
COPY released/${TARGETARCH}/quorate /quorate

FROM ${BINARY} AS binary
FROM ${CERTIFICATES_IMAGE} AS certificates

FROM ${RUNTIME_IMAGE}
# Roots for rediss:// nodes and https servers with public certificates.
# Taken from another image, so that this stage runs no package manager.
COPY --from=certificates /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=binary /quorate /usr/local/bin/quorate

# A container's loopback reaches nobody, so it listens on all addresses. `serve` then
# insists on --api-keys (or on being told --insecure-no-auth), which is as it should be.
ENV QUORATE_LISTEN=0.0.0.0:8080 \
    QUORATE_LOG_FORMAT=json

# By number, so that Kubernetes' runAsNonRoot can see that it is not root. The process
# writes no file at all: a read-only root file system needs no further mount.
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
# Exec form: no shell has to start every ten seconds. It asks QUORATE_SERVER, by default
# http://127.0.0.1:8080; set that when the port or TLS is changed. Whether the process lives and
# not whether it is ready: what restarts unhealthy containers would do so for want of a quorum
# too, and begin each quarantine anew.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/quorate", "healthcheck", "--live"]
ENTRYPOINT ["/usr/local/bin/quorate"]
CMD ["serve"]
