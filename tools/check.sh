# Sourced by ./dev: tests, layout, lint, soak.

passed=0 failed=0 skipped=0 second_try=() first_failures=()

# What the sanitizers are told wherever they run. Some tests fork ranks beside a server's threads, and the children start
# threads of their own, which ThreadSanitizer refuses unless told otherwise; and it waits a second for threads that run at
# an exit, of which a twentieth is enough.
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:atexit_sleep_ms=50

# How many tests of a ctest log failed.
failures_in() { sed -nE 's/.* ([0-9]+) tests? failed out of [0-9]+$/\1/p' "$1" | tail -1; }

# ctest of one preset, one test more at once than there are cores: some of them wait most of the time. Adds to passed,
# failed and skipped. What fails is added to first_failures and runs once more, alone: what passes then depends on time or
# on luck, and is named at the end as a defect to mend. Cases that skip themselves inside a program leave their reasons in
# build/<preset>/results/, which tools/skips.py lists.
run_ctest() {
  local preset="$1"; shift
  local log="build/$preset/ctest.log" again="build/$preset/ctest-again.log" bad total none left=0
  (cd "build/$preset" && GTEST_OUTPUT="xml:$PWD/results/" \
    ctest --output-on-failure --parallel "$(($(nproc) + 1))" "$@") 2>&1 | tee "$log" || true
  bad="$(failures_in "$log")"
  total="$(sed -nE 's/.* failed out of ([0-9]+)$/\1/p' "$log" | tail -1)"
  if [ -z "$total" ] || [ "$total" -eq 0 ]; then fail "ctest of $preset ran no test"; fi
  none="$(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*Skipped' "$log" || true)"
  if [ "$bad" -gt 0 ]; then
    mapfile -t -O "${#first_failures[@]}" first_failures < <(
      sed -nE "s/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*\*\*\*(Failed|Timeout|Exception|Not Run).*/$preset: \1/p" "$log")
    (cd "build/$preset" && ctest --output-on-failure --rerun-failed) 2>&1 | tee "$again" || true
    left="$(failures_in "$again")"
    left="${left:-$bad}"
    mapfile -t -O "${#second_try[@]}" second_try < <(sed -nE "s/.*Test +#[0-9]+: ([^ ]+) .*Passed.*/$preset: \\1/p" "$again")
  fi
  failed=$((failed + left)) skipped=$((skipped + none)) passed=$((passed + total - left - none))
}

run_tests() {
  ensure_ready
  export LOCKSTEP_PYTHON="${LOCKSTEP_PYTHON:-$(oracle_python)}"
  build_preset release
  rm -rf build/*/results
  if [ $# -gt 0 ]; then
    run_ctest release -R "$(IFS='|'; echo "$*")"
  else
    build_preset asan
    build_preset tsan
    run_ctest release
    run_ctest asan
    run_ctest tsan
  fi
  python3 tools/skips.py build/*/results
  if [ ${#second_try[@]} -gt 0 ]; then printf 'passed only at the second try: %s\n' "${second_try[@]}"; fi
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ]
}

sources() { git ls-files --cached --others --exclude-standard -- '*.h' '*.cc'; }

# clang-format or clang-tidy of the version that the project is checked with, installed when it is first needed.
clang_tool() {
  local version; version="$(clang_package | sed 's/clang//')"
  command -v "$1$version" >/dev/null || apt_install "$1$version" >&2 || fail "no $1$version here: apt-get install $1$version"
  echo "$1$version"
}

format_sources() {
  local tool; tool="$(clang_tool clang-format)"
  if [ "${1:-}" = --check ]; then
    sources | xargs "$tool" --dry-run --Werror
  else
    sources | xargs "$tool" -i
  fi
}

lint_sources() {
  python3 tools/lint/floors.py
  python3 tools/lint/shape.py
  python3 tools/lint/links.py
  python3 tools/lint/snippets.py
  ensure_ready
  configure_preset debug   # where every source is compiled by itself
  local tool; tool="$(clang_tool clang-tidy)"
  git ls-files 'src/base/*.cc' 'src/sys/*.cc' 'src/store/*.cc' 'src/launch/*.cc' 'src/comm/call/*.cc' 'src/comm/kernels/*.cc' \
    'src/comm/rendezvous/*.cc' 'src/comm/diagnose/*.cc' 'src/comm/engines/shm/*.cc' |
    xargs "$tool" -p build/debug --quiet --warnings-as-errors='*'
}

# Every loop of random rounds (FuzzRounds in tests/support/fuzz.h) at its full length: LOCKSTEP_FUZZ rounds, 100,000 by
# default, of which slow ones do a share.
fuzz() {
  local rounds="${LOCKSTEP_FUZZ:-100000}" preset program log
  local TMPDIR="${TMPDIR:-/dev/shm}"   # files that live for one round need no disk
  export TMPDIR
  for preset in asan release; do
    log="build/$preset/fuzz.log"
    for program in build/"$preset"/tests/*_test; do
      LOCKSTEP_FUZZ="$rounds" LOCKSTEP_TEST_SECONDS=3600 "$program" --gtest_filter='*Fuzz*:*RandomPrograms*' >"$log" 2>&1 ||
        fail "see $log: $program"
      sed -nE "s|^(.*: [0-9]+ rounds)$|$preset: \1|p" "$log"
    done
  done
}

# Every injected failure 100 times (LOCKSTEP_INJECTIONS), with the counts of what was named rightly and how soon.
inject() {
  local log=build/release/injections.log status=0
  LOCKSTEP_INJECTIONS="${LOCKSTEP_INJECTIONS:-100}" LOCKSTEP_TEST_SECONDS=3600 \
    build/release/tests/comm_test --gtest_filter='*Injections*' >"$log" 2>&1 || status=$?
  grep -E '^[a-z]+ on [a-z]+ from seed.* tried|^all injections' "$log" || true
  if [ "$status" -ne 0 ]; then fail "see $log"; fi
}

# Each first failure of the rounds so far, with how often it came.
list_first_failures() {
  if [ ${#first_failures[@]} -eq 0 ]; then echo "first failures: none"; return; fi
  printf '%s\n' "${first_failures[@]}" | sort | uniq -c | sort -rn | sed -E 's/^ *([0-9]+) (.*)$/first failures: \2, \1 times/'
}

# Repeats what is about time and failure; a defect that shows once in a hundred runs shows here, also one that passes
# when it runs again.
soak() {
  local minutes="${1:-10}" end rounds=0
  ensure_ready
  build_preset release
  build_preset asan
  build_preset tsan
  fuzz
  inject
  unset LOCKSTEP_FUZZ LOCKSTEP_INJECTIONS   # a round of ctest has its own, short numbers
  end=$((SECONDS + minutes * 60))
  while [ $SECONDS -lt "$end" ]; do
    run_ctest release -R '^(sys|store|launch|shm|comm_core|comm|shard|optim|data|parallel|checkpoint|train|apps)$' >/dev/null
    run_ctest asan >/dev/null
    run_ctest tsan >/dev/null
    rounds=$((rounds + 1))
    echo "round $rounds: $passed passed, $failed failed, ${#first_failures[@]} failures at the first try"
  done
  list_first_failures
  if [ ${#first_failures[@]} -gt 0 ]; then fail "see build/{release,asan,tsan}/ctest.log"; fi
}
