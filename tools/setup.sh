# Sourced by ./dev: finds or installs the dependencies of a build. A step that has succeeded does not run again.

torch_version=2.13.0
torch_cpu_index=https://download.pytorch.org/whl/cpu   # PyTorch's own public index

apt_packages=(
  g++ lld cmake ninja-build ccache pkg-config
  libfmt-dev libspdlog-dev nlohmann-json3-dev libtomlplusplus-dev libsodium-dev libhwy-dev libpcre2-dev zlib1g-dev
  libgtest-dev libbenchmark-dev python3-venv)
# Gloo's headers, and both MPIs; without them, these backends are not built.
apt_optional=(libgloo-dev openmpi-bin libopenmpi-dev mpich libmpich-dev)

fail() { echo "dev: $*" >&2; exit 1; }

# The newest clang of this release of the distribution, but 16 if available, because the project is checked with it.
clang_package() {
  local version
  for version in 16 18 17 15; do
    if apt-cache show "clang-$version" >/dev/null 2>&1 || command -v "clang++-$version" >/dev/null; then
      echo "clang-$version"
      return
    fi
  done
  echo clang
}

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing_packages() {
  local package
  for package in "$@"; do
    installed "$package" || echo "$package"
  done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

can_be_root() { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null; }; }

apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; }

have_tools() {
  local tool
  for tool in cmake ninja ccache pkg-config; do
    command -v "$tool" >/dev/null || return 1
  done
}

install_packages() {
  if ! command -v apt-get >/dev/null; then
    have_tools || fail "no apt-get here: install CMake, Ninja, ccache, pkg-config and the libraries that THIRD_PARTY.md lists"
    return 0
  fi
  local wanted
  mapfile -t wanted < <(missing_packages "${apt_packages[@]}")
  if ! command -v clang++-16 >/dev/null || [ ${#wanted[@]} -gt 0 ]; then
    if ! can_be_root; then
      [ ${#wanted[@]} -eq 0 ] || fail "not root and no sudo; ask for: apt-get install clang-16 ${wanted[*]} ${apt_optional[*]}"
      echo "dev: no clang-16 here; $(default_compiler) compiles"
      return 0
    fi
    as_root apt-get update -q
    mapfile -t wanted < <(missing_packages "${apt_packages[@]}" "$(clang_package)" "lib$(clang_package | sed 's/clang/clang-rt/')-dev")
    echo "dev: installing ${wanted[*]}"
    apt_install "${wanted[@]}"
    local package
    mapfile -t wanted < <(missing_packages "${apt_optional[@]}")
    if [ ${#wanted[@]} -gt 0 ] && ! apt_install "${wanted[@]}"; then
      for package in "${wanted[@]}"; do
        apt_install "$package" || echo "dev: no package $package here; going on without it"
      done
    fi
  fi
}

# Whether a folder has a LibTorch of a version that Lockstep supports.
is_suitable() {
  local headers="$1/include/torch" version
  version="$(cat "$headers/headeronly/version.h" "$headers/csrc/api/include/torch/version.h" 2>/dev/null |
    sed -nE 's/^#define TORCH_VERSION_M(AJOR|INOR) ([0-9]+).*/\2/p' | head -2 | paste -sd.)" || true
  [[ "$version" =~ ^2\.1[1-5]$ ]] && [ -f "$1/lib/libtorch_cpu.so" ]
}

# Prints the LibTorch folder of a given Python, if it is suitable. pip writes INSTALLER when all files of a package are
# there: an interrupted pip leaves a torch without it.
torch_of_python() {
  local folder
  folder="$("$1" - <<'PY' 2>/dev/null
import importlib.metadata, importlib.util, sys
spec = importlib.util.find_spec("torch")
if spec is None or importlib.metadata.distribution("torch").read_text("INSTALLER") is None:
    sys.exit(1)
print(spec.submodule_search_locations[0])
PY
  )" && is_suitable "$folder" && echo "$folder"
}

# Prints the LibTorch in the caller's environment, if any. A folder of CMAKE_PREFIX_PATH may be torch.utils.cmake_prefix_path.
offered_libtorch() {
  local folders folder candidate
  IFS=: read -ra folders <<<"${CMAKE_PREFIX_PATH:-}"
  for folder in "${LibTorch_ROOT:-}" ${Torch_DIR:+"$Torch_DIR/../../.."} "${folders[@]%/share/cmake*}"; do
    for candidate in "$folder" "$folder/torch" "$folder/libtorch"; do
      if [ -z "$folder" ] || [ ! -f "$candidate/include/torch/csrc/api/include/torch/torch.h" ]; then continue; fi
      if is_suitable "$candidate"; then
        readlink -f "$candidate"
        return
      fi
      echo "dev: LibTorch in $candidate left out: expected version 2.11 to 2.15 and lib/libtorch_cpu.so" >&2
    done
  done
  local python
  for python in ${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python"} python3; do
    if torch_of_python "$python"; then return; fi
  done
  return 1
}

libtorch_folder() { cat "${libtorch_file:-.cache/libtorch}"; }

# Prints the Python whose torch is the tests' oracle; empty if there is none (these tests are then skipped).
oracle_python() {
  local python
  for python in .venv/bin/python ${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python"} python3; do
    if torch_of_python "$python" >/dev/null; then
      python="$(command -v "$python")"
      readlink -f "$(dirname "$python")" | sed "s|\$|/$(basename "$python")|"
      return
    fi
  done
}

any_python() { if [ -x .venv/bin/python ]; then echo .venv/bin/python; else echo python3; fi; }

# pip_install VENV WORDS...: runs `pip install`; makes the virtual environment first if it is missing. pip takes a package for
# installed that an interrupted call has left without INSTALLER, so its metadata is removed. Not by bin/pip, which names the
# folder where the environment was made: the checkout may have been moved or copied.
pip_install() {
  local venv="$1" package; shift
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || python3 -m venv "$venv"
  for package in "$venv"/lib/python*/site-packages/*.dist-info; do
    if [ -d "$package" ] && [ ! -f "$package/INSTALLER" ]; then rm -r "$package"; fi
  done
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

make_venv() {
  echo "dev: making .venv with torch $torch_version"
  local index=()
  if python3 -c "import urllib.request as u; u.urlopen('$torch_cpu_index/torch/', timeout=8)" 2>/dev/null; then
    index=(--index-url "$torch_cpu_index")
  fi
  pip_install .venv "${index[@]}" "torch==$torch_version"
}

ensure_libtorch() {
  local folder
  if [ -x .venv/bin/python ] && folder="$(torch_of_python .venv/bin/python)"; then :
  elif folder="$(offered_libtorch)"; then
    echo "dev: LibTorch in $folder"
  else
    make_venv
    folder="$(torch_of_python .venv/bin/python)" || fail "torch $torch_version was installed but is not found in .venv"
  fi
  echo "$folder" >.cache/libtorch
}

# Makes a Python with a LibTorch for CUDA (3 GiB) and the headers of the same CUDA, once. Needs no GPU.
ensure_cuda_libtorch() {
  local venv=.cache/cuda/venv cuda
  if ! torch_of_python "$venv/bin/python" >.cache/cuda/libtorch; then
    echo "dev: making $venv with torch $torch_version for CUDA"
    pip_install "$venv" "torch==$torch_version,!=$torch_version+cpu"
    torch_of_python "$venv/bin/python" >.cache/cuda/libtorch || fail "torch $torch_version was installed but is not found in $venv"
  fi
  cuda="$("$venv/bin/python" -W ignore -c 'import torch; print(torch.version.cuda)')"
  [ "$cuda" != None ] || fail "torch $torch_version in $venv is not for CUDA"
  pip_install "$venv" "nvidia-cuda-crt==$cuda.*" "nvidia-cuda-cccl==$cuda.*"
}

# Installs everything that a build needs, or exits with the command to run. A stamp makes the second call free, except in a
# copy of the checkout, whose .cache/libtorch names a folder of the original.
ensure_ready() {
  mkdir -p .cache
  local stamp; stamp="$(cksum <tools/setup.sh) $PWD"
  if [ -f .cache/ready ] && [ "$(cat .cache/ready)" = "$stamp" ] && [ -d "$(cat .cache/libtorch 2>/dev/null)" ]; then
    return
  fi
  install_packages
  ensure_libtorch
  echo "$stamp" >.cache/ready
}
