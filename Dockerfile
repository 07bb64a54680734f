# The service as one static binary in an empty image. The legacy builder and BuildKit both build it.
# BUILD_IMAGE needs Go 1.26 or later and CA certificates.
ARG BUILD_IMAGE=golang:1.26
FROM ${BUILD_IMAGE} AS build

# A Go toolchain newer than the image's is never fetched silently.
ENV CGO_ENABLED=0 GOTOOLCHAIN=local
WORKDIR /src

# The modules are a layer of their own: they change less often than the code.
ARG GOPROXY
COPY go.mod go.sum ./
RUN go mod download

COPY cmd ./cmd
COPY internal ./internal
COPY migrations ./migrations

# Nothing of the machine or of the moment is in the binary: the same code and the same arguments give the same bytes.
ARG VERSION=
ARG COMMIT=
RUN mkdir -p /out/etc/ssl/certs /out/etc/billing \
 && go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=${VERSION} -X main.commit=${COMMIT}" -o /out/billing ./cmd/billing \
 && go clean -cache \
 && cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ca-certificates.crt \
 && cp "$(go env GOROOT)/lib/time/zoneinfo.zip" /out/zoneinfo.zip

FROM scratch
COPY --from=build /out/ /
# Certificates for TLS to MySQL; time zones for a DSN's loc. There is nothing else beside the binary.
ENV ZONEINFO=/zoneinfo.zip

ARG VERSION=
ARG COMMIT=
LABEL org.opencontainers.image.title="billing" \
      org.opencontainers.image.description="Exactly-once billing from Kafka to MySQL" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"

# A number, not a name: there is no /etc/passwd here, and an orchestrator that
# demands a user other than root can see that this is one.
USER 65532:65532

# config.yaml is looked for here; without one the environment has to do.
WORKDIR /etc/billing
EXPOSE 8080

# The answer of a living process comes at once, of a stuck one within 3 s.
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s --retries=3 CMD ["/billing", "healthcheck"]

# Without a shell between: SIGTERM reaches the service itself, which ends within 20 s of it. So give it more than
# Docker's 10 s: docker stop --time 30, stop_grace_period: 30s, terminationGracePeriodSeconds: 30.
ENTRYPOINT ["/billing"]
CMD ["run"]
