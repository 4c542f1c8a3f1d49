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
    can_be_root || fail "not root and no sudo; ask for: apt-get install clang-16 ${wanted[*]} ${apt_optional[*]}"
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

# Prints the LibTorch folder of a given Python, if Lockstep supports its version.
torch_of_python() {
  "$1" - <<'PY' 2>/dev/null
import importlib.util, pathlib, re, sys
spec = importlib.util.find_spec("torch")
if spec is None:
    sys.exit(1)
folder = pathlib.Path(spec.submodule_search_locations[0])
version = re.search(r"__version__ = '(\d+)\.(\d+)", (folder / "version.py").read_text())
if version is None or not (2, 11) <= (int(version[1]), int(version[2])) <= (2, 15):
    sys.exit(1)
print(folder)
PY
}

# Prints the LibTorch in the caller's environment, if any.
offered_libtorch() {
  local folder
  for folder in "${LibTorch_ROOT:-}" ${Torch_DIR:+"$Torch_DIR/../../.."} ${CMAKE_PREFIX_PATH:+${CMAKE_PREFIX_PATH//:/ }}; do
    local candidate
    for candidate in "$folder" "$folder/torch" "$folder/libtorch"; do
      if [ -n "$folder" ] && [ -f "$candidate/include/torch/csrc/api/include/torch/torch.h" ]; then
        readlink -f "$candidate"
        return
      fi
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

make_venv() {
  echo "dev: making .venv with torch $torch_version"
  [ -x .venv/bin/pip ] || python3 -m venv .venv
  local index=()
  if python3 -c "import urllib.request as u; u.urlopen('$torch_cpu_index/torch/', timeout=8)" 2>/dev/null; then
    index=(--index-url "$torch_cpu_index")
  fi
  .venv/bin/pip install --quiet --disable-pip-version-check "${index[@]}" "torch==$torch_version"
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
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "torch==$torch_version,!=$torch_version+cpu"
    torch_of_python "$venv/bin/python" >.cache/cuda/libtorch || fail "torch $torch_version was installed but is not found in $venv"
  fi
  cuda="$("$venv/bin/python" -W ignore -c 'import torch; print(torch.version.cuda)')"
  [ "$cuda" != None ] || fail "torch $torch_version in $venv is not for CUDA"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "nvidia-cuda-crt==$cuda.*" "nvidia-cuda-cccl==$cuda.*"
}

# Installs everything that a build needs, or exits with the command to run. A stamp makes the second call free.
ensure_ready() {
  mkdir -p .cache
  local stamp; stamp="$(cat tools/setup.sh | cksum | cut -d' ' -f1)"
  if [ -f .cache/ready ] && [ "$(cat .cache/ready)" = "$stamp" ] && [ -d "$(cat .cache/libtorch 2>/dev/null)" ]; then
    return
  fi
  install_packages
  ensure_libtorch
  echo "$stamp" >.cache/ready
}
