# docker build -t gpu-topology:0.1.0 .                                       the service and the agent
# docker build --target benchmarks -t gpu-topology-benchmarks:0.1.0 .        the simulation

# The builder stays in this stage.
FROM python:3.12-slim AS wheel
WORKDIR /opt/build
COPY requirements/build.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY topology topology
COPY scheduler_extender scheduler_extender
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist .

FROM python:3.12-slim AS base
WORKDIR /opt/gpu-topology
COPY requirements/run.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/run.txt
COPY --from=wheel /opt/build/dist dist
RUN pip install --no-cache-dir --no-deps --no-index dist/*.whl

FROM base AS benchmarks
COPY requirements/dev.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/dev.txt
COPY benchmarks benchmarks
USER 65532:65532
ENTRYPOINT ["python", "-m", "benchmarks"]

FROM base AS service
USER 65532:65532
ENTRYPOINT ["gpu-topology"]
