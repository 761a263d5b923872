# docker build --target extender -t gpu-topology:0.1.0 .                     the extender, and the commands for people
# docker build --target agent -t gpu-topology-agent:0.1.0 .                  the node agent

# What all images are based on. A tag moves: `make lock-base` writes behind it the digest that it has
# now (name:tag@sha256:…), and `docker build --build-arg PYTHON=…` takes another one for once.
ARG PYTHON=python:3.12-slim

# The builder stays in this stage.
FROM ${PYTHON} AS wheel
WORKDIR /opt/build
COPY requirements/build.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY topology topology
COPY scheduler_extender scheduler_extender
# Some files of the package are links to manifests.
COPY manifests manifests
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist .

# Each image holds the packages of its own command (extras in pyproject.toml).
FROM ${PYTHON} AS agent
WORKDIR /opt/gpu-topology
COPY requirements/agent.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/agent.txt
COPY --from=wheel /opt/build/dist dist
RUN pip install --no-cache-dir --no-deps --no-index dist/*.whl
USER 65532:65532
ENTRYPOINT ["gpu-topology"]

FROM ${PYTHON} AS extender
WORKDIR /opt/gpu-topology
COPY requirements/extender.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/extender.txt
COPY --from=wheel /opt/build/dist dist
RUN pip install --no-cache-dir --no-deps --no-index dist/*.whl
USER 65532:65532
ENTRYPOINT ["gpu-topology"]
