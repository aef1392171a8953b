# syntax=docker/dockerfile:1
# trivium in a container, for CPUs or for NVIDIA GPUs. docs/install.md has the commands.
#
#   docker build -t trivium --build-arg TORCH_INDEX=ADDRESS .     for CPUs; the address is on torch's install page
#   docker build -t trivium:cuda --target cuda .                  for NVIDIA GPUs

ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS wheel
WORKDIR /src
RUN pip install --no-cache-dir "build>=1.3,<2"
COPY pyproject.toml README.md LICENSE CHANGELOG.md CITATION.cff constraints.txt ./
COPY trivium trivium
COPY examples examples
RUN python -m build --wheel --outdir /dist

# What both images have: a user without rights, folders for data and cache, and trivium's packages but for torch.
FROM python:${PYTHON}-slim AS base
RUN useradd --create-home --uid 1000 trivium \
    && install -d -o trivium -g trivium /work /cache
ENV TRIVIUM_CACHE=/cache/trivium \
    HF_HOME=/cache/huggingface \
    PYTHONUNBUFFERED=1
COPY constraints.txt /etc/trivium/constraints.txt
WORKDIR /work

# torch's wheels for CUDA bring CUDA's libraries with them: the host needs the driver and NVIDIA's container toolkit only.
FROM base AS cuda
RUN pip install --no-cache-dir --constraint /etc/trivium/constraints.txt "torch==2.13.0"
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --constraint /etc/trivium/constraints.txt /dist/*.whl
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER trivium
ENTRYPOINT ["trivium"]
CMD ["--help"]

# torch's own index has the build for CPUs, which is a tenth of the other one's size.
FROM base AS cpu
ARG TORCH_INDEX
RUN test -n "${TORCH_INDEX}" || { echo "give --build-arg TORCH_INDEX=: the index of CPU wheels on torch's install page"; exit 1; }
RUN pip install --no-cache-dir --constraint /etc/trivium/constraints.txt \
        --extra-index-url ${TORCH_INDEX} "torch==2.13.0+cpu"
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --constraint /etc/trivium/constraints.txt /dist/*.whl
USER trivium
ENTRYPOINT ["trivium"]
CMD ["--help"]
