# The command cerebras-tf on the CPUs of any Linux computer.
#
#     docker build -t cerebras-tf .
#     alias run='docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" cerebras-tf'
#     run configs copy params_gpt3_tiny.yaml
#     run train -p params_gpt3_tiny.yaml
FROM python:3.13-slim

ENV PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    TF_CPP_MIN_LOG_LEVEL=2
WORKDIR /opt/cerebras_tf

# The packages change less often than the source. --no-deps: tf_keras requires the distribution
# tensorflow, whose place tensorflow-cpu takes on x86-64.
COPY scripts/requirements.lock scripts/
RUN pip install --require-hashes --no-deps --requirement scripts/requirements.lock

COPY . .
RUN pip install --no-deps --no-build-isolation .

# Home has the cache of compiled kernels. All users may write there, for `docker run --user`.
ENV HOME=/opt/user
RUN useradd --create-home --home-dir "$HOME" --uid 1000 cerebras && chmod 1777 "$HOME" \
    && mkdir --mode 1777 /work
USER cerebras
WORKDIR /work
ENTRYPOINT ["cerebras-tf"]
CMD ["--help"]
