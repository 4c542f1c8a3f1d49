# Sourced by ./dev: configure and build a preset.

export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
export CCACHE_DEPEND=1   # skips the preprocessor run before each compilation

default_compiler() {
  local version
  for version in -16 -18 -17 -15 ''; do
    if command -v "clang++$version" >/dev/null; then echo "clang++$version"; return; fi
  done
  echo g++
}

# A folder that was configured elsewhere, or with another compiler, LibTorch or other presets, is recreated.
configure_preset() {
  local preset="$1"
  local compiler="${compiler:-$(default_compiler)}" folder="build/$preset" libtorch made_with
  libtorch="$(libtorch_folder)"
  made_with="$compiler $PWD $libtorch $(cksum <CMakePresets.json)"
  if [ "$made_with" != "$(cat "$folder/made_with" 2>/dev/null)" ]; then
    rm -rf "$folder"
  fi
  if [ ! -f "$folder/build.ninja" ]; then
    mkdir -p "$folder" && echo "$made_with" >"$folder/made_with"
    cmake --preset "$preset" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
      -DLibTorch_ROOT="$libtorch" >"$folder/configure.log" 2>&1 ||
      { tail -40 "$folder/configure.log" >&2; rm -f "$folder/build.ninja"; fail "cmake failed; all of it is in $folder/configure.log"; }
  fi
}

# build_preset PRESET [TARGET...]
build_preset() {
  local preset="$1"; shift
  local folder="build/$preset"
  configure_preset "$preset"
  if ! ninja -C "$folder" -n "$@" | tail -1 | grep -q 'no work to do'; then
    ninja -C "$folder" "$@"
  fi
}

build_command() {
  local preset=release compiler="" targets=()
  while [ $# -gt 0 ]; do
    case "$1" in
      --preset) preset="${2:?--preset needs a name}"; shift 2 ;;
      --compiler) compiler="${2:?--compiler needs a name}"; shift 2 ;;
      -*) fail "build: unknown option '$1' (--preset, --compiler)" ;;
      *) targets+=("$1"); shift ;;
    esac
  done
  case "$preset" in release | debug | asan | tsan) ;; *) fail "build: no preset '$preset' (release, debug, asan, tsan)" ;; esac
  ensure_ready
  build_preset "$preset" "${targets[@]}"
}
