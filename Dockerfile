# A small image that reads captures: docker build -t kdissect . && docker run --rm -v "$PWD:/captures:ro" kdissect a.pcap
FROM python:3.12-slim AS build
COPY . /source
RUN python -m venv /opt/kdissect && /opt/kdissect/bin/pip install --no-cache-dir '/source[report,sql]' \
    && /opt/kdissect/bin/kdissect --demo > /dev/null

FROM python:3.12-slim
RUN useradd --create-home --uid 1000 kdissect
COPY --from=build /opt/kdissect /opt/kdissect
ENV PATH=/opt/kdissect/bin:$PATH
USER kdissect
WORKDIR /captures
ENTRYPOINT ["kdissect"]
