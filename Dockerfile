# syntax=docker/dockerfile:1
# Server image: docker build -t wellread .
# The image has no knowledge base; the volume at /var/lib/wellread holds knowledge bases, indexes and fetched assets.
# The first start fetches and builds the default one, unless the volume has it.

FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN python -m venv /opt/wellread \
 && /opt/wellread/bin/pip install -c constraints.txt ".[serve,spacy]"

FROM python:3.11-slim-bookworm
RUN groupadd --system --gid 10001 wellread \
 && useradd --system --uid 10001 --gid wellread --home-dir /var/lib/wellread --create-home \
    --shell /usr/sbin/nologin wellread
COPY --from=build /opt/wellread /opt/wellread
COPY --chmod=755 deploy/start.sh /usr/local/bin/wellread-start
ENV PATH=/opt/wellread/bin:$PATH WELLREAD_HOME=/var/lib/wellread PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/wellread
VOLUME /var/lib/wellread
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=600s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=8)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["wellread-start"]
CMD ["--kb", "vital"]
