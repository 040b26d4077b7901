#!/bin/sh
# Start the server in a container: build the packaged knowledge bases that are named and not there, then serve.
# Arguments are those of `wellread serve`; WELLREAD_HOSTS lists the Host names that clients use, with blanks between.
set -eu
before=""
for argument in "$@"; do
    case "$before $argument" in
        "--kb vital" | "--kb wordnet") wellread kb build "$argument" --if-missing ;;
    esac
    before=$argument
done
for host in 127.0.0.1 localhost ${WELLREAD_HOSTS:-}; do
    set -- "$@" --allow-host "$host"
done
exec wellread serve --host 0.0.0.0 --port 8000 "$@"
