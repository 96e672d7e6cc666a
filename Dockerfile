# One target per deployable: state-server, client-proxy, metrics-exporter, feed, spark-job, kafka; and cli, the commands of an
# operator. Also builds without BuildKit.
#
#     docker build --target state-server -t keyhole/state-server .
#
# BASE_IMAGE: Debian with python3, 3.11 to 3.13, and its venv module, the same in both stages of a target, because a
# venv holds the path of its Python: python:*-slim, or plain Debian with python3-venv.
# VERSION, REVISION: for the labels.
# Without BuildKit every stage before a target is built: the largest stand last.
ARG BASE_IMAGE=python:3.13-slim-bookworm

FROM ${BASE_IMAGE} AS base
# 185 is the user that Spark's own images run as. Python's images bring pip along, which nothing here needs at run time.
RUN (getent group 185 || groupadd --gid 185 keyhole) \
    && (getent passwd 185 || useradd --uid 185 --gid 185 --no-create-home --home-dir /nonexistent keyhole) \
    && mkdir -p /var/lib/keyhole && chown 185:185 /var/lib/keyhole \
    && rm -rf /usr/local/lib/python3.*/site-packages/pip* /usr/local/bin/pip*
ENV PATH=/opt/keyhole/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /var/lib/keyhole

# What is built with: nothing of it is in an image.
FROM base AS build
# The system's certificates, to which an organisation may have added its own.
ENV UV_NATIVE_TLS=1 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt \
    UV_PROJECT_ENVIRONMENT=/opt/keyhole \
    UV_PYTHON_DOWNLOADS=never \
    UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    UV_NO_CACHE=1 \
    # Tests and headers of what is installed, Arrow's servers of its own protocol: a third of a state server's packages.
    STRIP="cd /opt/keyhole/lib/python3.*/site-packages && rm -rf pyarrow/tests pyarrow/include pyarrow/src \
      pyarrow/libarrow_flight.so.* pyarrow/_flight.* pyarrow/flight.py numpy/*/tests numpy/_core/include \
      numpy/_core/lib pandas/tests"
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --quiet --no-cache-dir "uv>=0.9,<1"
WORKDIR /src
# The locked dependencies first: they change less often than the sources.
COPY pyproject.toml uv.lock README.md ./

FROM build AS build-state-server
# Others find it; it looks for nobody, so Kubernetes' client (126 MB) is left out.
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-install-project --extra server \
      --no-install-package kubernetes \
    && sh -c "$STRIP"
COPY . .
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-editable --extra server --no-install-package kubernetes

FROM base AS state-server
COPY --from=build-state-server /opt/keyhole /opt/keyhole
USER 185:185
# gRPC's threads come and go; with a heap for each, what is free in one is of no use to the others
# (docs/security-reference.md).
ENV KEYHOLE_STATE_SERVER_DIRECTORY=/var/lib/keyhole/stores MALLOC_ARENA_MAX=2
# So that the root may be read-only.
VOLUME /var/lib/keyhole
EXPOSE 7410 7411
# Whether it answers: it serves only once a job has given it key groups.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-m", "keyhole.rpc.health_check", "state-server", "--alive"]
ENTRYPOINT ["python", "-m", "services.state_server"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Keyhole state server" \
      org.opencontainers.image.description="Holds key groups of queryable state and answers reads of them" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM build AS build-client-proxy
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-install-project --extra service && sh -c "$STRIP"
COPY . .
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-editable --extra service

FROM base AS client-proxy
COPY --from=build-client-proxy /opt/keyhole /opt/keyhole
USER 185:185
# As for the state server.
ENV MALLOC_ARENA_MAX=2
EXPOSE 7400 7401 7402
# Whether it has reached a state server.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-m", "keyhole.rpc.health_check", "client-proxy"]
ENTRYPOINT ["python", "-m", "services.client_proxy"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Keyhole client proxy" \
      org.opencontainers.image.description="One address for all reads of queryable state" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM build AS build-metrics-exporter
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-install-project --extra service --extra kafka && sh -c "$STRIP"
COPY . .
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-editable --extra service --extra kafka

FROM base AS metrics-exporter
COPY --from=build-metrics-exporter /opt/keyhole /opt/keyhole
USER 185:185
EXPOSE 7420
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-m", "keyhole.rpc.health_check", "metrics-exporter"]
ENTRYPOINT ["python", "-m", "services.metrics_exporter"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Keyhole metrics exporter" \
      org.opencontainers.image.description="Metrics of all state servers, proxies and jobs for Prometheus" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM build AS build-feed
# It finds state servers by DNS, so Kubernetes' client (126 MB) is left out.
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-install-project --extra cli --extra kafka --extra registry --extra service \
      --no-install-package kubernetes \
    && sh -c "$STRIP"
COPY . .
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-editable --extra cli --extra kafka --extra registry --extra service \
      --no-install-package kubernetes

FROM base AS feed
COPY --from=build-feed /opt/keyhole /opt/keyhole
USER 185:185
EXPOSE 7430 7431
# No health command: it ends where it can't go on.
ENTRYPOINT ["keyhole", "feed"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Keyhole feed" \
      org.opencontainers.image.description="Makes a Kafka topic a queryable state, without Spark" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM build AS build-cli
# Kubernetes' client: `keyhole status --pods` lists pods.
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-install-project --extra savepoint --extra service && sh -c "$STRIP"
COPY . .
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-editable --extra savepoint --extra service

FROM base AS cli
COPY --from=build-cli /opt/keyhole /opt/keyhole
USER 185:185
# No health command: it does what it is asked to, and ends.
ENTRYPOINT ["keyhole"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Keyhole commands" \
      org.opencontainers.image.description="keyhole status, verify and the other commands of an operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM base AS java
# Which one there is depends on the distribution's age. The package wants the folder, which slim images lack.
RUN mkdir -p /usr/share/man/man1 && apt-get update -qq \
    && (apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless \
        || apt-get install -y -qq --no-install-recommends openjdk-21-jre-headless) >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin

# What fetches the jars, and the few modules that start Kafka.
FROM build AS build-kafka
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-install-project
COPY . .
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-editable

FROM build AS jars
RUN UV_PROJECT_ENVIRONMENT=/opt/fetch /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-install-project --extra jars
COPY . .
RUN UV_PROJECT_ENVIRONMENT=/opt/fetch /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-editable --extra jars \
    && /opt/fetch/bin/python -m keyhole.local.fetch_jars kafka /opt/kafka/libs \
    && /opt/fetch/bin/python -m keyhole.local.fetch_jars spark-kafka /opt/spark-kafka \
    && /opt/fetch/bin/python -m keyhole.local.fetch_jars spark-s3 /opt/spark-s3

FROM java AS kafka
COPY --from=build-kafka /opt/keyhole /opt/keyhole
COPY --from=jars /opt/kafka /opt/kafka
USER 185:185
VOLUME /var/lib/keyhole
EXPOSE 9092 9094
HEALTHCHECK --interval=10s --timeout=7s --start-period=60s --retries=3 \
    CMD ["python", "-m", "keyhole.local.kafka_container", "--check"]
ENTRYPOINT ["python", "-m", "keyhole.local.kafka_container"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Kafka for trying Keyhole out" \
      org.opencontainers.image.description="Apache Kafka as a single node: one copy of everything, no authentication" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM build AS build-spark-job
# HeartPy is there for its recordings, which are read as files: what it imports is left out. Of Spark's jars so are the
# Scala shell of Spark Connect, and the TLS libraries of other systems.
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-install-project --extra spark --extra jobs --extra service \
      --no-install-package scipy --no-install-package matplotlib --no-install-package fonttools \
      --no-install-package pillow --no-install-package kiwisolver --no-install-package contourpy \
    && sh -c "$STRIP" \
    && cd /opt/keyhole/lib/python3.*/site-packages/pyspark && rm -rf jars/connect-repl jars/*-windows-*.jar jars/*-osx-*.jar
COPY . .
RUN /opt/uv/bin/uv sync --quiet --locked --no-default-groups --no-editable --extra spark --extra jobs --extra service \
      --no-install-package scipy --no-install-package matplotlib --no-install-package fonttools \
      --no-install-package pillow --no-install-package kiwisolver --no-install-package contourpy

FROM java AS spark-job
COPY --from=build-spark-job /opt/keyhole /opt/keyhole
COPY --from=jars /opt/spark-kafka /opt/spark-kafka
COPY --from=jars /opt/spark-s3 /opt/spark-s3
USER 185:185
# RocksDB's and the compilers' memory, and that of Python workers, as for the state server.
ENV MALLOC_ARENA_MAX=2
ENTRYPOINT ["python", "-m", "keyhole.spark.container"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Keyhole Spark job" \
      org.opencontainers.image.description="Driver and executor of streaming jobs with queryable state" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
