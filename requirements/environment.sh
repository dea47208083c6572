#!/usr/bin/env bash
# Makes .venv from the lock files; called by `make`. Every failure says what is missing and what to do.
set -euo pipefail

fail() {
  printf '\nerror: %s\n' "$@" >&2
  exit 1
}

[ -n "${PYTHON:-}" ] || fail "no Python found. Install Python 3.11, or name it: make PYTHON=/path/to/python3.11"
version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
  fail "$PYTHON does not run. Install Python 3.11, or name another: make PYTHON=/path/to/python3.11"
# The lock holds wheels of 3.11; another version would look for others, or for a compiler.
[ "$version" = "3.11" ] ||
  fail "$PYTHON is Python $version, but 3.11 is needed. Install it, or name it: make PYTHON=/path/to/python3.11"
platform=$("$PYTHON" -c 'import platform, sys; print(sys.platform, platform.machine())')
[ "$platform" = "linux x86_64" ] ||
  fail "this machine is $platform; the lock holds wheels for linux x86_64. Use a container or a virtual machine."
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "$PYTHON lacks the modules venv and ensurepip. On Debian and Ubuntu: apt-get install python3.11-venv"

needed=6
free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
[ "$free" -ge "$needed" ] || fail "only $free GB are free here; the environment needs $needed GB with its downloads."

started=$SECONDS
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "Making $VENV from requirements/ (about 2.5 GB; two to four minutes) …"
# An environment that runs is brought up to date in place; a broken one, or one of another Python, is made anew.
"$VENV/bin/python" -c 'import pip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || rm -rf "$VENV"
[ -d "$VENV" ] || "$PYTHON" -m venv "$VENV"

install() {
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-input \
    --no-deps --require-hashes --only-binary=:all: --no-compile "$@" 2>"$log"
}

echo "  torch, CPU build …"
if ! install -r requirements/torch.txt; then
  echo "  … not in the configured index; trying $TORCH_INDEX"
  install --index-url "$TORCH_INDEX" -r requirements/torch.txt || {
    tail -n 5 "$log" >&2
    fail "torch's CPU build was found neither in the configured index nor at $TORCH_INDEX." \
      "Is there a network? pip's configuration (pip config list) or PIP_INDEX_URL names a mirror; then run make again."
  }
fi
echo "  everything else …"
install -r requirements/lock.txt || {
  tail -n 5 "$log" >&2
  fail "pip could not install requirements/lock.txt (its last lines are above)." \
    "Is there a network? pip's configuration (pip config list) or PIP_INDEX_URL names a mirror; then run make again."
}

"$VENV/bin/python" -c 'import torch, faust, msgspec, orjson, onnxruntime' 2>"$log" || {
  tail -n 5 "$log" >&2
  fail "the environment is there but does not import (see above). Run make clean, then make again."
}
touch "$VENV/.installed"
echo "  done in $((SECONDS - started)) s"
