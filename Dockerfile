# nein in a container; the nano preset needs no network and is its health check.
#   docker build -t nein .                              with CUDA: --build-arg VARIANT=cuda (the default)
#   docker build -t nein:cpu --build-arg VARIANT=cpu --build-arg CPU_INDEX=URL .   without: a fifth of the size;
#     URL is the index of wheels without CUDA that PyTorch's page "Start Locally" names for pip and CPU
#   docker run --rm --gpus all -v "$PWD/runs:/runs" nein eval --editor ip2p,magicbrush
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm
ARG VARIANT=cuda
ARG CPU_INDEX=""
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

RUN useradd --create-home --uid 1000 nein && install --directory --owner nein /runs
WORKDIR /opt/nein

# PyTorch's own index has wheels without CUDA; the package index has those with it.
COPY constraints.txt ./
RUN if [ "$VARIANT" = cpu ]; then \
      [ -n "$CPU_INDEX" ] || { echo "VARIANT=cpu needs CPU_INDEX, PyTorch's index of wheels for CPUs" >&2; exit 1; }; \
      pip install --no-cache-dir --constraint constraints.txt torch torchvision --index-url "$CPU_INDEX"; \
    elif [ "$VARIANT" != cuda ]; then echo "VARIANT is cuda or cpu, not $VARIANT" >&2; exit 1; fi

COPY pyproject.toml README.md LICENSE ./
COPY configs configs
COPY editors editors
COPY metrics metrics
COPY nein nein
COPY train train
RUN pip install --no-cache-dir --constraint constraints.txt '.[hub,train,negbench]'

# Models and features of the user's own lie in /runs/cache, which a volume keeps.
ENV NEIN_CACHE=/runs/cache HF_HOME=/runs/huggingface
USER 1000
WORKDIR /runs
# The whole way, in miniature and without a network: edit, score, report.
HEALTHCHECK --interval=1h --timeout=10m --retries=1 \
  CMD ["bash", "-c", "out=$(mktemp -d) && trap 'rm -r $out' EXIT && HF_HUB_OFFLINE=1 nein eval --limit 1 --editor-options.steps 2 --metrics l1 --control none --device cpu --out $out/health"]
ENTRYPOINT ["nein"]
CMD ["--help"]
