#!/bin/sh
# The base image of all images here, `cairn-base`, from Debian's packages alone: no registry of images is needed.
# Needs root, debootstrap and Docker. `compose/base.sh [SUITE]`: a release of Debian with Python 3.11 to 3.13.
set -eu
suite=${1:-trixie}
for program in debootstrap docker; do
    command -v "$program" >/dev/null || {
        echo "compose/base.sh: there is no program $program; on Debian: apt-get install debootstrap docker.io" >&2
        exit 1
    }
done
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
tar --directory "$root" --create . | docker import --change 'CMD ["/bin/sh"]' - cairn-base
