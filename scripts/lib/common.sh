# shellcheck shell=bash
# Shared by scripts/setup, scripts/demo and scripts/test; sourced with the project's root as the current folder.

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# run_logged LOG TITLE COMMAND...: one line of progress with the time it took; what the command prints goes to
# build/logs/LOG.log and is shown only when it fails.
run_logged() {
  local log=build/logs/$1.log title=$2 start=$SECONDS
  shift 2
  mkdir -p build/logs
  printf '    %s ... ' "$title"
  if "$@" >"$log" 2>&1; then
    printf '%d s\n' $((SECONDS - start))
  else
    printf 'failed after %d s; the end of %s:\n' $((SECONDS - start)) "$log"
    tail -n 40 "$log" | sed 's/^/    | /'
    return 1
  fi
}
