# docker build -t fedbolic .
# docker run --rm --gpus all --user "$(id -u)" -v "$PWD:/work" fedbolic run --config fedavg/quick
#
# The wheels of torch on PyPI have CUDA, and compute on CPUs where there is no --gpus. For CPUs alone the
# image is smaller with --build-arg TORCH_INDEX=... , the address of PyTorch's own wheels for CPUs;
# nodes of a federation need --build-arg EXTRAS=run,flower and --entrypoint flower-supernode.
FROM python:3.11-slim
ARG TORCH_INDEX=
ARG EXTRAS=run
WORKDIR /source
COPY constraints.txt ./
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} --constraint constraints.txt torch
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]" && mkdir -m 777 /work
ENV HOME=/tmp
WORKDIR /work
USER 1000
ENTRYPOINT ["fedbolic"]
