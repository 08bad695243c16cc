# The service on a CPU.  Build: docker build -t radix-scorer .
#                        Run:   docker run -p 8080:8080 -v /path/to/models:/models radix-scorer
#
#   --build-arg MODEL=fetch        put the default model into the image; "mount", the default, expects it at /models
#   --build-arg PIP_INDEX_URL=...  any of pip's variables declared below; an index of CPU-only wheels of torch as
#                                  PIP_EXTRA_INDEX_URL saves gigabytes over the CUDA ones
#   --build-arg BASE=...           another Debian with python3 >= 3.11 and its venv module
ARG BASE=python:3.11.13-slim-bookworm

FROM ${BASE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
# A compiler here spares the image one: see the last step of this stage. Its version decides nothing that is kept.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/scorer
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY scorer scorer
COPY engine engine
COPY kernels kernels
RUN /opt/scorer/bin/python -m pip install --no-cache-dir -c constraints.txt . \
    && /opt/scorer/bin/python -P -m kernels.native.build

ARG MODEL=mount
RUN mkdir /models && if [ "${MODEL}" = fetch ]; then /opt/scorer/bin/scorer fetch --dir /models; fi

FROM ${BASE}
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin scorer
COPY --from=build /opt/scorer /opt/scorer
COPY --from=build /models /models
ENV PATH=/opt/scorer/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SCORER_HOST=0.0.0.0 \
    SCORER_PORT=8080 \
    SCORER_MODELS_DIR=/models
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"SCORER_PORT\"]}/health/live', timeout=2)"]
CMD ["scorer", "serve"]
