# FindLibTorch: the targets LibTorch::LibTorch and, when that build has CUDA, LibTorch::CUDA.
#
# LibTorch is looked for, first that holds: the Python named by LibTorch_PYTHON (an error if it has no torch), LibTorch_ROOT
# (variable or environment: a folder with include/ and lib/), Torch_DIR (.../share/cmake/Torch), CMAKE_PREFIX_PATH (a folder
# of these may be torch.utils.cmake_prefix_path), LibTorch_FALLBACK (set by an installed Lockstep: the folder that it was
# built with), the active virtual environment, python3 on PATH. LibTorch_PYTHON comes first because `./dev` leaves its
# LibTorch_ROOT in the cache. If one of these variables changes, a later configuration looks again. Unlike
# TorchConfig.cmake it works with a CUDA wheel where no CUDA toolkit is installed: no kernel is compiled here, CUDA's
# libraries only have to be loaded.
#
# Sets LibTorch_FOUND, LibTorch_VERSION, LibTorch_ROOT_DIR, LibTorch_HAS_CUDA.
include(FindPackageHandleStandardArgs)

set(_libtorch_probe include/torch/csrc/api/include/torch/torch.h)

# Sets LibTorch_ROOT_DIR in the cache to the folder of the first of these Pythons that has torch.
function(_libtorch_from_pythons)
  foreach(python IN LISTS ARGN)
    execute_process(
      COMMAND "${python}" -c
        "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(status EQUAL 0 AND EXISTS "${folder}/${_libtorch_probe}")
      set(LibTorch_ROOT_DIR "${folder}" CACHE PATH "LibTorch's folder" FORCE)
      return()
    endif()
  endforeach()
endfunction()

# What an earlier configuration has found is forgotten if it was asked for something else. The environment does not count: a
# build that configures again may have another.
if(NOT TARGET LibTorch::LibTorch)
  set(_libtorch_asked "${LibTorch_PYTHON}|${LibTorch_ROOT}|${Torch_DIR}|${CMAKE_PREFIX_PATH}|${LibTorch_FALLBACK}")
  if(DEFINED CACHE{LibTorch_ASKED} AND NOT _libtorch_asked STREQUAL LibTorch_ASKED)
    foreach(_libtorch_name IN ITEMS ROOT_DIR torch_cpu_LIBRARY c10_LIBRARY torch_cuda_LIBRARY c10_cuda_LIBRARY)
      unset(LibTorch_${_libtorch_name} CACHE)
    endforeach()
  endif()
  set(LibTorch_ASKED "${_libtorch_asked}" CACHE INTERNAL "")
endif()

set(_libtorch_hints ${LibTorch_ROOT} $ENV{LibTorch_ROOT})
foreach(_libtorch_config IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
  if(_libtorch_config)
    get_filename_component(_libtorch_folder "${_libtorch_config}/../../.." ABSOLUTE)
    list(APPEND _libtorch_hints "${_libtorch_folder}")
  endif()
endforeach()
string(REPLACE ":" ";" _libtorch_prefixes "$ENV{CMAKE_PREFIX_PATH}")
list(PREPEND _libtorch_prefixes ${CMAKE_PREFIX_PATH})
list(TRANSFORM _libtorch_prefixes REPLACE "/share/cmake/?$" "")
set(_libtorch_pythons "${LibTorch_PYTHON}")
if(NOT LibTorch_PYTHON)
  find_path(LibTorch_ROOT_DIR NAMES ${_libtorch_probe}
    HINTS ${_libtorch_hints}
    PATHS ${_libtorch_prefixes} ${LibTorch_FALLBACK}
    PATH_SUFFIXES torch libtorch NO_DEFAULT_PATH)
  set(_libtorch_pythons python3)
  if(NOT "$ENV{VIRTUAL_ENV}" STREQUAL "")
    list(PREPEND _libtorch_pythons "$ENV{VIRTUAL_ENV}/bin/python")
  endif()
endif()
if(NOT LibTorch_ROOT_DIR)
  _libtorch_from_pythons(${_libtorch_pythons})
endif()

foreach(_libtorch_name IN ITEMS torch_cpu c10 torch_cuda c10_cuda)
  find_library(LibTorch_${_libtorch_name}_LIBRARY ${_libtorch_name} PATHS "${LibTorch_ROOT_DIR}/lib" NO_DEFAULT_PATH)
  mark_as_advanced(LibTorch_${_libtorch_name}_LIBRARY)
endforeach()

foreach(_libtorch_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_ROOT_DIR}/include/${_libtorch_header}")
    # An upgrade in place configures again.
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${LibTorch_ROOT_DIR}/include/${_libtorch_header}")
    file(STRINGS "${LibTorch_ROOT_DIR}/include/${_libtorch_header}" _libtorch_lines
      REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX REPLACE "[^0-9;]" "" _libtorch_lines "${_libtorch_lines}")
    list(JOIN _libtorch_lines "." LibTorch_VERSION)
  endif()
endforeach()

# The std::string ABI shows in the mangled name of c10::Error's constructor, which takes one.
set(_libtorch_cxx11_abi 1)
if(LibTorch_c10_LIBRARY)
  file(STRINGS "${LibTorch_c10_LIBRARY}" _libtorch_symbol REGEX "_ZN3c105ErrorC[12]E.*cxx11" LIMIT_COUNT 1)
  if(NOT _libtorch_symbol)
    set(_libtorch_cxx11_abi 0)
  endif()
endif()

find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_ROOT_DIR LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY
  VERSION_VAR LibTorch_VERSION HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE "name a LibTorch folder by -DLibTorch_ROOT=..., or a Python that has torch by -DLibTorch_PYTHON=...")

set(LibTorch_HAS_CUDA OFF)
if(LibTorch_torch_cuda_LIBRARY)
  set(LibTorch_HAS_CUDA ON)
endif()
if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  find_package(Threads REQUIRED)
  set(_libtorch_include "${LibTorch_ROOT_DIR}/include" "${LibTorch_ROOT_DIR}/include/torch/csrc/api/include")
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES
    IMPORTED_LOCATION "${LibTorch_c10_LIBRARY}" IMPORTED_SONAME libc10.so
    INTERFACE_INCLUDE_DIRECTORIES "${_libtorch_include}")
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    IMPORTED_LOCATION "${LibTorch_torch_cpu_LIBRARY}" IMPORTED_SONAME libtorch_cpu.so
    INTERFACE_INCLUDE_DIRECTORIES "${_libtorch_include}"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;_GLIBCXX_USE_CXX11_ABI=${_libtorch_cxx11_abi}"
    INTERFACE_LINK_LIBRARIES "LibTorch::c10;Threads::Threads")
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  set_target_properties(LibTorch::LibTorch PROPERTIES INTERFACE_LINK_LIBRARIES LibTorch::cpu)
  if(LibTorch_HAS_CUDA)
    # Loading these registers the CUDA kernels; hardly any symbol of theirs is named, so the linker must be told to keep them.
    add_library(LibTorch::CUDA INTERFACE IMPORTED)
    set_target_properties(LibTorch::CUDA PROPERTIES
      INTERFACE_LINK_LIBRARIES
        "-Wl,--push-state,--no-as-needed;${LibTorch_torch_cuda_LIBRARY};${LibTorch_c10_cuda_LIBRARY};-Wl,--pop-state"
      INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
    set_property(TARGET LibTorch::LibTorch APPEND PROPERTY INTERFACE_LINK_LIBRARIES LibTorch::CUDA)
  endif()
endif()
mark_as_advanced(LibTorch_ROOT_DIR)
