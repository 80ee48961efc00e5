# A small image that reads captures as nobody in particular:
#   docker build -t kdissect . && docker run --rm -v "$PWD:/captures:ro" kdissect a.pcap
# For Spark's workers and drivers, with Java: see docs/spark.md.
ARG BASE=python:3.12-slim
FROM ${BASE} AS build
ARG EXTRAS=report,sql
COPY . /source
RUN python -m venv /opt/kdissect \
    && /opt/kdissect/bin/pip install --no-cache-dir "/source[${EXTRAS}]" \
    && cd /opt/kdissect/lib/python3*/site-packages && rm -rf pip setuptools pandas/tests pyarrow/tests pyarrow/include \
    && /opt/kdissect/bin/kdissect --demo > /dev/null

FROM ${BASE}
ARG PACKAGES=""
RUN if [ -n "${PACKAGES}" ]; then \
        apt-get update && apt-get install -y --no-install-recommends ${PACKAGES} && rm -rf /var/lib/apt/lists/*; \
    fi \
    && useradd --create-home --uid 1000 kdissect
COPY --from=build /opt/kdissect /opt/kdissect
ARG EXTRAS=report,sql
ENV PATH=/opt/kdissect/bin:$PATH KDISSECT_IMAGE_EXTRAS=${EXTRAS} KDISSECT_IMAGE_PACKAGES="${PACKAGES}"
USER kdissect
WORKDIR /captures
ENTRYPOINT ["kdissect"]
