# shellcheck shell=bash
# Finding interpreters; sourced. Prints real paths, never a pyenv shim: a shim may run another Python tomorrow.

supported_pythons=(3.13 3.12 3.11)

# Major.minor of an interpreter, with nothing else on stdout.
python_version() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# The real path of an interpreter that has the given version, its headers and venv; fails when it can't be used.
usable_python() {
  "$1" - "$2" 2>/dev/null <<'PYTHON'
import importlib.util, os, sys, sysconfig
ok = (
    "%d.%d" % sys.version_info[:2] == sys.argv[1]
    and sys.implementation.name == "cpython"
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
    and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
    and importlib.util.find_spec("ensurepip") is not None
)
if not ok:
    sys.exit(1)
# Inside a virtual environment this is the interpreter that it was made from.
print(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
PYTHON
}

# find_python 3.12: where it is, or failure.
find_python() {
  local version=$1 candidate
  local candidates=()
  candidate=$(type -P "python$version") && candidates+=("$candidate")
  candidate=$(type -P python3) && candidates+=("$candidate")
  for candidate in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version" \
    "/usr/bin/python$version"; do
    [[ -x $candidate ]] && candidates+=("$candidate")
  done
  if command -v uv >/dev/null; then
    candidate=$(UV_PYTHON_DOWNLOADS=never uv python find "$version" 2>/dev/null) && candidates+=("$candidate")
  fi
  for candidate in "${candidates[@]}"; do
    usable_python "$candidate" "$version" && return 0
  done
  return 1
}

# find_newest_python [VERSION]: the newest supported interpreter, or the one of that version.
find_newest_python() {
  local version
  for version in ${1:-"${supported_pythons[@]}"}; do
    find_python "$version" && return 0
  done
  return 1
}

# find_all_pythons: a line "VERSION PATH" for each supported version that can be used, newest first.
find_all_pythons() {
  local version path
  for version in "${supported_pythons[@]}"; do
    if path=$(find_python "$version"); then
      printf '%s %s\n' "$version" "$path"
    fi
  done
}

no_python_message() {
  if [[ -n ${1:-} ]]; then
    printf 'Python %s with headers and venv was not found. Install it (pyenv install %s, or uv python install %s), or leave --python out.' \
      "$1" "$1" "$1"
  else
    printf 'no Python of %s with headers and venv was found; on Debian: apt-get install python3 python3-dev python3-venv.' \
      "${supported_pythons[*]}"
  fi
}
