ARG PYTHON=3.11.13-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /build
COPY constraints.txt pyproject.toml README.md LICENSE NOTICE ./
COPY genius genius
RUN python -m venv --without-pip /opt/genius \
 && pip --python /opt/genius/bin/python install --no-cache-dir --constraint constraints.txt ".[serve]" \
 && /opt/genius/bin/genius serve --help > /dev/null

FROM python:${PYTHON}
RUN groupadd --system --gid 10001 genius \
 && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin genius \
 && install --directory --owner 10001 --group 10001 /data
COPY --from=build /opt/genius /opt/genius
ENV PATH=/opt/genius/bin:$PATH \
    HOME=/tmp \
    HF_HOME=/tmp/huggingface \
    MALLOC_ARENA_MAX=2 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["/opt/genius/bin/python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["/opt/genius/bin/genius", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/data/index.genius"]
