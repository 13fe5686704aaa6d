# OpenClaw-RL in an image, for the CPU or for NVIDIA GPUs; docs/install.md shows how to run it.
#
#   docker build -t openclaw-rl:cpu .
#   docker build -t openclaw-rl:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#
# Torch's CUDA builds bring CUDA with them, so that both images have the same base and the host needs the driver alone.
ARG BASE=docker.io/library/python:3.12-slim-bookworm

FROM ${BASE} AS build
ARG TORCH_VERSION=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/openclaw-rl
WORKDIR /source
COPY requirements.lock ./
RUN /opt/openclaw-rl/bin/pip install -q --no-deps --require-hashes -r requirements.lock \
 && /opt/openclaw-rl/bin/pip install -q "torch==${TORCH_VERSION}" --extra-index-url "${TORCH_INDEX}"
COPY pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md ./
COPY src src
RUN /opt/openclaw-rl/bin/pip install -q --no-build-isolation ".[local,postgres]"

FROM ${BASE}
RUN apt-get -qq update \
 && apt-get -qq install -y --no-install-recommends bubblewrap tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home --home-dir /data openclaw
COPY --from=build /opt/openclaw-rl /opt/openclaw-rl
ENV PATH=/opt/openclaw-rl/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/data/huggingface \
    OPENCLAW_RL_CACHE=/data/cache \
    OPENCLAW_RL__RUN__DIR=/data/run \
    OPENCLAW_RL__SERVE__HOST=0.0.0.0
USER openclaw
WORKDIR /data
VOLUME /data
EXPOSE 30000 30001
HEALTHCHECK --start-period=10m --interval=30s --timeout=10s \
  CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/healthz', timeout=5)"]
# Beyond loopback a key is required, so a container without OPENCLAW_API_KEY refuses to start and says so.
ENTRYPOINT ["tini", "--", "openclaw-rl"]
CMD ["up"]
