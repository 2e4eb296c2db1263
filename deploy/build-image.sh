#!/usr/bin/env bash
# Builds the container image from scratch: a static binary and an empty data directory.
#   deploy/build-image.sh [IMAGE]      default carillon:dev
set -euo pipefail
cd "$(dirname "$0")/.."
image=${1:-carillon:dev}
make build
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir "$context/data"
cp bin/carillon "$context/carillon"
cp deploy/Dockerfile "$context/Dockerfile"
DOCKER_BUILDKIT=0 docker build --quiet --tag "$image" "$context"
