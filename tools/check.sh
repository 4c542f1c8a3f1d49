# Sourced by ./dev: tests, layout, lint, soak.

# Options of the sanitizers. Some tests fork ranks while a server's threads run, and the children start their own threads,
# which ThreadSanitizer refuses by default. At exit, ThreadSanitizer waits a second for running threads by default; a
# twentieth of that is enough. Without quotes, a path would end at a space.
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS="halt_on_error=1:die_after_fork=0:atexit_sleep_ms=50:suppressions='$PWD/tests/tsan_suppressions.txt'"

# Test programs that run under a sanitizer only in `./dev test --all` and in a soak, because CI has two cores and a limit
# of time. LibTorch is not instrumented, so errors inside it are not detected.
rarely_asan=(matmul global module optim models parallel checkpoint elastic hub accelerator train measure)
rarely_tsan=("${rarely_asan[@]}" layout plan comm mesh dispatch data)

# Tests that a soak repeats: those that depend on time or on failures. Those that are one program also run under sanitizers.
soaked_tests=(sys store rank_env launch layout plan comm_core shm comm optim data parallel checkpoint elastic train apps
  integration_several_hosts integration_elastic_failures)

# Prints one regular expression that matches any of the words.
one_of() { local IFS='|'; echo "^($*)\$"; }

# Prints the test programs of a configured preset except the named ones; without a GPU, all of `device` is skipped.
test_programs() {
  local preset="$1"; shift
  ninja -C "build/$preset" -t targets all | sed -nE 's|^tests/([a-z_]+)_test: CXX_EXECUTABLE.*|\1|p' | grep -vxE "device$(printf '|%s' "$@")"
}

# Installs the program that turns addresses in sanitizers' reports into names and lines.
ensure_symbolizer() {
  local version; version="$(clang_package | sed 's/clang//')"
  command -v "llvm-symbolizer$version" >/dev/null || apt_install "llvm$version" >&2 ||
    echo "dev: no llvm$version here: reports of sanitizers will have addresses instead of lines" >&2
}

# build_sanitized PRESET [TEST...]: builds all test programs except these. Leaves their names in `sanitized`.
build_sanitized() {
  ensure_symbolizer
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

# Exits with git's reason if git cannot list the sources here.
need_git() { local why; why="$(git rev-parse --git-dir 2>&1)" || fail "$1: ${why%%$'\n'*}"; }

# Prints the sources that git tracks or would track, each with a 0 byte at its end. A tracked source may have been removed.
sources() {
  local name
  git ls-files -z --cached --others --exclude-standard --deduplicate -- '*.h' '*.cc' | while IFS= read -r -d '' name; do
    if [ -f "$name" ]; then printf '%s\0' "$name"; fi
  done
}

# clang-format or clang-tidy of the version that checks this project; installed at first use.
clang_tool() {
  local version; version="$(clang_package | sed 's/clang//')"
  command -v "$1$version" >/dev/null || apt_install "$1$version" >&2 || fail "no $1$version here: apt-get install $1$version"
  echo "$1$version"
}

format_sources() {
  local how=(-i) tool
  case "$*" in
    '') ;;
    --check) how=(--dry-run --Werror) ;;
    *) fail "fmt: unknown option '$*' (--check)" ;;
  esac
  need_git fmt
  tool="$(clang_tool clang-format)"
  sources | xargs -0 -r "$tool" "${how[@]}"
}

# Prints the sources that differ from the main branch, committed or not, each with a 0 byte at its end.
changed_sources() {
  local base; base="$(git merge-base HEAD main 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)"
  { git diff -z --name-only --diff-filter=d "$base" -- 'src/*.cc'; git ls-files -z --others --exclude-standard -- 'src/*.cc'; } | sort -zu
}

# Builds the prerequisites for compiling units of a preset; links nothing.
build_precompiled_headers() {
  configure_preset "$1"
  local headers; mapfile -t headers < <(ninja -C "build/$1" -t targets all | sed -nE 's/^(.*cmake_pch\.hxx\.(pch|gch)): .*/\1/p')
  build_preset "$1" "${headers[@]}"
}

lint_sources() {
  local name
  case "$*" in
    '') ;;
    --quick) need_git "lint --quick" ;;
    *) fail "lint: unknown option '$*' (--quick)" ;;
  esac
  for name in layers shape links snippets words public_headers mutants paths; do python3 "tools/lint/$name.py"; done
  ensure_ready
  local tool; tool="$(clang_tool clang-tidy)"
  if [ "${1:-}" = --quick ]; then
    local changed; mapfile -d '' -t changed < <(changed_sources)
    build_preset debug lockstep_precompiled_header
    if [ ${#changed[@]} -gt 0 ]; then python3 tools/lint/tidy.py "$tool" build/debug "${changed[@]}"; fi
    return
  fi
  local status=0
  build_precompiled_headers debug
  python3 tools/lint/alone.py build/debug || status=1
  build_preset without_libtorch || status=1
  compile_for_cuda || [ $? -eq 77 ] || status=1   # 77: no headers
  build_preset tidy lockstep_precompiled_header
  python3 tools/lint/tidy.py "$tool" build/tidy || status=1
  return $status
}

# What no build without CUDA compiles, against each version of LibTorch.
compile_for_cuda() {
  ensure_ready
  "$(any_python)" tools/cuda.py "$(default_compiler)" "$(libtorch_folder)" .cache/cuda
}

# The suite with a LibTorch for CUDA. On a host without a GPU, everything computes on the CPU, and device tests are skipped.
cuda_suite() {
  ensure_ready
  mkdir -p .cache/cuda
  ensure_cuda_libtorch
  local libtorch_file=.cache/cuda/libtorch
  build_preset cuda
  LOCKSTEP_PYTHON="$PWD/.cache/cuda/venv/bin/python" python3 tools/run_tests.py test cuda
}

cuda() {
  case "$*" in
    '') compile_for_cuda ;;
    --suite) cuda_suite ;;
    *) fail "cuda: unknown option '$*' (--suite)" ;;
  esac
}

# That tests can fail: tools/mutants.py says how.
mutants() {
  ensure_ready
  configure_preset release
  python3 tools/mutants.py build/release "$@"
}

# Runs every loop of random rounds (FuzzRounds in tests/support/fuzz.h) at full length: LOCKSTEP_FUZZ rounds, 100,000 by
# default; slow loops run a fraction of that.
fuzz() {
  local rounds="${LOCKSTEP_FUZZ:-100000}" preset program log
  local TMPDIR="${TMPDIR:-/dev/shm}"   # files of a single round need no disk
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

# Runs every injected failure 100 times (LOCKSTEP_INJECTIONS); prints how often the cause was named correctly, and how soon.
inject() {
  local log=build/release/injections.log status=0
  LOCKSTEP_INJECTIONS="${LOCKSTEP_INJECTIONS:-100}" LOCKSTEP_TEST_SECONDS=3600 \
    build/release/tests/comm_test --gtest_filter='*Injections*' >"$log" 2>&1 || status=$?
  grep -E '^[a-z]+ on [a-z]+ from seed.* tried|^all injections' "$log" || true
  if [ "$status" -ne 0 ]; then fail "see $log"; fi
}

# Kills all ranks while they save, LOCKSTEP_KILLS times (10,000): the newest checkpoint must always be a complete one.
kills() {
  local log=build/release/kills.log
  LOCKSTEP_KILLS="${LOCKSTEP_KILLS:-10000}" LOCKSTEP_TEST_SECONDS=14400 \
    build/release/tests/checkpoint_test --gtest_filter='KilledWhileSaving.*' >"$log" 2>&1 || fail "see $log"
}

# Kills a random rank of an elastic training every 2 s, LOCKSTEP_ELASTIC_KILLS times (1,000): the result must not change.
elastic_kills() {
  local log=build/release/elastic_kills.log
  LOCKSTEP_ELASTIC_KILLS="${LOCKSTEP_ELASTIC_KILLS:-1000}" LOCKSTEP_ELASTIC_PAUSE=2 \
    python3 -B tests/integration/elastic_test.py build/release >"$log" 2>&1 || fail "see $log"
  cat "$log"
}

# Leaves out every wait of each program on the simulated accelerator in turn. If LOCKSTEP_WAITS is not "all", as many as
# ctest leaves out.
waits() {
  local log=build/release/waits.log
  LOCKSTEP_WAITS="${LOCKSTEP_WAITS:-all}" LOCKSTEP_TEST_SECONDS=14400 build/release/tests/accelerator_test --gtest_filter='*DroppedWaits*' >"$log" 2>&1 || fail "see $log"
}

# Repeats tests that depend on time and on failures, to find defects that show once in a hundred runs.
soak() {
  local minutes="${1:-10}"
  if [ $# -gt 1 ] || ! [[ "$minutes" =~ ^[0-9]+(\.[0-9]+)?$ ]]; then fail "soak: expected MINUTES, found '$*'"; fi
  ensure_ready
  build_preset release
  local sanitized=() soaked others=() names
  soaked="$(one_of "${soaked_tests[@]}")"
  build_sanitized asan   # all programs: fuzz() runs each
  mapfile -t others < <(test_programs asan | grep -vxE "$soaked")
  build_sanitized tsan "${others[@]}"
  names="$(one_of "${sanitized[@]}")"
  fuzz
  inject
  kills
  elastic_kills
  waits
  unset LOCKSTEP_FUZZ LOCKSTEP_INJECTIONS LOCKSTEP_KILLS LOCKSTEP_ELASTIC_KILLS LOCKSTEP_WAITS  # ctest uses its own, smaller numbers
  python3 tools/run_tests.py soak "$minutes" "release=$soaked" "asan=$names" "tsan=$names"
}
