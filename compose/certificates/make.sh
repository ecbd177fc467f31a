#!/bin/sh
# `make-certificates DIRECTORY HOST...`: a certificate and key for each host, HOST.pem, and hosts.pem with all
# certificates: each host trusts these and no others. What is there stays. Owner: the user of the sidecars.
set -eu
directory=$1
shift
cd "$directory"
for host in "$@"; do
    if [ ! -s "$host.pem" ]; then
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=$host" \
            -addext "subjectAltName=DNS:$host" -keyout "$host.key" -out "$host.crt" 2>/dev/null
        cat "$host.crt" "$host.key" >"$host.pem"
        rm "$host.key"
    fi
done
for host in "$@"; do cat "$host.crt"; done >hosts.pem
chown -R 10001:10001 .
chmod 0400 ./*.pem
