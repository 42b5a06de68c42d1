#!/usr/bin/env bash
# Makes the repository's own .venv and checks the system packages a build needs. Called by make; safe to call again:
# what is already there, in the wanted version, is not touched.
#   tools/setup.sh demo    enough to build the wheel and run the demo
#   tools/setup.sh test    that, and everything the tests and linters need
# Both want Python 3.11 or newer, as the pinned packages do (NumPy, JAX, Keras); the package itself runs from 3.10 on.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly profile="${1:-test}"
readonly venv=.venv
readonly python="${PYTHON:-python3}"

case "$profile" in
  demo) files=(build demo) ;;
  test) files=(build demo dev test) ;;
  *) echo "tools/setup.sh: unknown profile '$profile' (demo or test)" >&2; exit 2 ;;
esac

say() { echo "setup: $*"; }

has_header() { echo "#include <$1>" | g++ -E -x c++ - >/dev/null 2>&1; }

python_can() { "$python" -c "$1" >/dev/null 2>&1; }

# Debian packages whose contents this machine lacks. What they bring is asked for, not the package, so that
# another source (pyenv, conda, a hand-built OpenSSL) counts as well.
missing_packages() {
  command -v g++ >/dev/null || echo g++
  command -v "$python" >/dev/null || echo python3
  if [ ! -x "$venv/bin/python" ]; then
    python_can 'import venv, ensurepip' || echo python3-venv
  fi
  python_can 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' || echo python3-dev
  has_header openssl/ssl.h || echo libssl-dev
  if [ "$profile" = test ]; then
    has_header doctest/doctest.h || echo doctest-dev
    command -v valgrind >/dev/null || echo valgrind
    # Only root can make network namespaces, and so run the tests that need them.
    [ "$(id -u)" != 0 ] || command -v ip >/dev/null || echo iproute2
  fi
}

install_system_packages() {
  local packages
  mapfile -t packages < <(missing_packages)
  [ "${#packages[@]}" -gt 0 ] || return 0

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo -n)
    if ! sudo -n true 2>/dev/null; then
      say "these packages are missing, and installing them needs root. Please run:" >&2
      say "    sudo apt-get install ${packages[*]}" >&2
      exit 1
    fi
  fi
  if ! command -v apt-get >/dev/null; then
    say "this machine lacks what Debian calls ${packages[*]}; install your system's equivalents" >&2
    exit 1
  fi
  say "installing ${packages[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${packages[@]}" >/dev/null

  mapfile -t packages < <(missing_packages)
  if [ "${#packages[@]}" -gt 0 ]; then
    say "still missing after installing: ${packages[*]} (is $python the interpreter you mean? set PYTHON)" >&2
    exit 1
  fi
}

# Of the interpreter that will be used: the one of a .venv that is there, or else $python.
refuse_old_python() {
  local used="$python"
  [ ! -x "$venv/bin/python" ] || used="$venv/bin/python"
  command -v "$used" >/dev/null || return 0  # Debian's comes with the packages.
  "$used" -c 'import sys; sys.exit(sys.version_info < (3, 11))' && return 0
  say "$used is $("$used" --version 2>&1), and what tools/requirements-*.txt pin needs Python 3.11 or newer." >&2
  say "Name another one: PYTHON=python3.12 make $profile (after rm -r $venv, where that is there)." >&2
  say "gradring itself runs from 3.10 on: $used -m pip install . builds it, with g++, libssl-dev and python3-dev." >&2
  exit 1
}

make_venv() {
  [ -x "$venv/bin/python" ] && [ -x "$venv/bin/pip" ] && return 0
  say "creating $venv with $("$python" --version)"
  "$python" -m venv "$venv"
}

# One stamp a requirements file, holding the hash of what was installed from it.
install_python_packages() {
  local name stamp wanted installed=no
  for name in "${files[@]}"; do
    stamp="$venv/.installed-$name"
    wanted="$(sha256sum < "tools/requirements-$name.txt")"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then continue; fi
    say "installing tools/requirements-$name.txt"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-compile \
      -r "tools/requirements-$name.txt"
    echo "$wanted" > "$stamp"
    installed=yes
  done
  [ "$installed" = no ] || compile_python_modules
}

# pip compiles modules one after the other, and nobody imports the packages' own tests. Left to the first import
# it would be done again and again where PYTHONDONTWRITEBYTECODE is set, as it is in many containers.
compile_python_modules() {
  # Files of other Python versions and templates are no failure of ours.
  "$venv/bin/python" -m compileall -qq -j 0 -x '/tests/' "$venv/lib" || true
}

refuse_old_python
install_system_packages
refuse_old_python
make_venv
install_python_packages
