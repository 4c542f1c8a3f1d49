# Sourced by ./dev: tests, layout, lint, soak.

# What the sanitizers are told wherever they run. Some tests fork ranks beside a server's threads, and the children start
# threads of their own, which ThreadSanitizer refuses unless told otherwise; and it waits a second for threads that run at
# an exit, of which a twentieth is enough.
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:atexit_sleep_ms=50

# Test programs that only `./dev test --all` and a soak repeat under a sanitizer, so that CI stays below an hour on two
# cores. LibTorch is not instrumented: what happens inside it is not seen.
rarely_asan=(global optim models parallel checkpoint elastic hub train)
rarely_tsan=(comm global mesh dispatch module optim models parallel checkpoint elastic hub train)

# What a soak repeats of the release preset: what depends on time or on failures.
soaked_tests=(sys store rank_env launch layout plan comm_core shm comm optim data parallel checkpoint elastic train apps
  integration_several_hosts integration_elastic_failures)

# Words as one regular expression.
one_of() { local IFS='|'; echo "^($*)\$"; }

# The test programs of a configured preset but for those named; all of `device` is skipped where no GPU is.
test_programs() {
  local preset="$1"; shift
  ninja -C "build/$preset" -t targets all | sed -nE 's|^tests/([a-z_]+)_test: CXX_EXECUTABLE.*|\1|p' | grep -vxE "device$(printf '|%s' "$@")"
}

# build_sanitized PRESET [TEST...]: all test programs but these. Leaves their names in `sanitized`.
build_sanitized() {
  configure_preset "$1"
  mapfile -t sanitized < <(test_programs "$@")
  build_preset "$1" "${sanitized[@]/%/_test}"
}

run_tests() {
  local names=() sanitized=() asan
  while [ $# -gt 0 ]; do
    case "$1" in
      --all) rarely_asan=() rarely_tsan=() ;;
      -*) fail "test: unknown option '$1' (--all)" ;;
      *) names+=("$1") ;;
    esac
    shift
  done
  ensure_ready
  export LOCKSTEP_PYTHON="${LOCKSTEP_PYTHON:-$(oracle_python)}"
  build_preset release
  if [ ${#names[@]} -gt 0 ]; then
    python3 tools/run_tests.py test "release=$(IFS='|'; echo "${names[*]}")"
  else
    build_sanitized asan "${rarely_asan[@]}"
    asan="$(one_of "${sanitized[@]}")"
    build_sanitized tsan "${rarely_tsan[@]}"
    python3 tools/run_tests.py test release "asan=$asan" "tsan=$(one_of "${sanitized[@]}")"
  fi
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

# The sources that differ from the main branch, committed or not.
changed_sources() {
  local base; base="$(git merge-base HEAD main 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)"
  { git diff --name-only --diff-filter=d "$base" -- 'src/*.cc'; git ls-files --others --exclude-standard -- 'src/*.cc'; } | sort -u
}

# What units of a preset are compiled with; nothing of it is linked.
build_precompiled_headers() {
  configure_preset "$1"
  local headers; mapfile -t headers < <(ninja -C "build/$1" -t targets all | sed -nE 's/^(.*cmake_pch\.hxx\.(pch|gch)): .*/\1/p')
  build_preset "$1" "${headers[@]}"
}

lint_sources() {
  local name
  for name in floors shape links snippets words public_headers mutants paths; do python3 "tools/lint/$name.py"; done
  ensure_ready
  local tool; tool="$(clang_tool clang-tidy)"
  if [ "${1:-}" = --quick ]; then
    local changed; mapfile -t changed < <(changed_sources)
    build_preset debug lockstep_precompiled_header
    if [ ${#changed[@]} -gt 0 ]; then python3 tools/lint/tidy.py "$tool" build/debug "${changed[@]}"; fi
    return
  fi
  local status=0
  build_precompiled_headers debug
  python3 tools/lint/alone.py build/debug || status=1
  build_preset without_libtorch || status=1
  build_preset tidy lockstep_precompiled_header
  python3 tools/lint/tidy.py "$tool" build/tidy || status=1
  return $status
}

# That tests can fail: tools/mutants.py says how.
mutants() {
  ensure_ready
  configure_preset release
  python3 tools/mutants.py build/release "$@"
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

# All ranks killed while they save, LOCKSTEP_KILLS times (10,000): the newest checkpoint is always one that was saved.
kills() {
  local log=build/release/kills.log
  LOCKSTEP_KILLS="${LOCKSTEP_KILLS:-10000}" LOCKSTEP_TEST_SECONDS=14400 \
    build/release/tests/checkpoint_test --gtest_filter='KilledWhileSaving.*' >"$log" 2>&1 || fail "see $log"
}

# A random rank of an elastic training killed every 2 s, LOCKSTEP_ELASTIC_KILLS times (1,000): the same bytes in the end.
elastic_kills() {
  local log=build/release/elastic_kills.log
  LOCKSTEP_ELASTIC_KILLS="${LOCKSTEP_ELASTIC_KILLS:-1000}" LOCKSTEP_ELASTIC_PAUSE=2 \
    python3 -B tests/integration/elastic_test.py build/release >"$log" 2>&1 || fail "see $log"
  cat "$log"
}

# Repeats what depends on time and on failures; a defect that shows once in a hundred runs shows here.
soak() {
  local minutes="${1:-10}"
  ensure_ready
  build_preset release
  local sanitized=() asan
  build_sanitized asan
  asan="$(one_of "${sanitized[@]}")"
  build_sanitized tsan
  fuzz
  inject
  kills
  elastic_kills
  unset LOCKSTEP_FUZZ LOCKSTEP_INJECTIONS LOCKSTEP_KILLS LOCKSTEP_ELASTIC_KILLS  # a round of ctest has its own, short numbers
  python3 tools/run_tests.py soak "$minutes" "release=$(one_of "${soaked_tests[@]}")" "asan=$asan" \
    "tsan=$(one_of "${sanitized[@]}")"
}
