# syntax=docker/dockerfile:1
# The server and its web page, on a CPU:
#   docker build -t diffsound .
#   docker run --rm -p 127.0.0.1:8765:8765 diffsound
FROM python:3.12-slim

# libgomp is what torch's CPU threads need; soundfile and soxr carry their own libraries.
# Debian keeps only the newest build of a package, so a pinned one would soon be missing.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends libgomp1 \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /app
# torch first and from the CPU index: the default wheels bring gigabytes of GPU libraries.
# Its other requirements, in the pinned versions, come from the default index; of equal versions pip
# takes the one with a suffix (2.x+cpu).
# For a GPU, build with --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt .
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url "${TORCH_INDEX}" torch

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt ".[serve]" \
 && useradd --create-home --uid 1000 diffsound

USER 1000
WORKDIR /home/diffsound
EXPOSE 8765
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8765/readyz', timeout=4)"]
# `docker run … diffsound "a dog barks" -o -` makes one sound instead of serving.
ENTRYPOINT ["diffsound"]
CMD ["serve", "--host", "0.0.0.0"]
