FROM python:3.12-slim
WORKDIR /opt/gpu-topology
COPY requirements/run.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY topology topology
COPY scheduler_extender scheduler_extender
RUN pip install --no-cache-dir --no-deps --no-build-isolation .
USER 65532:65532
ENTRYPOINT ["gpu-topology"]
