# FindLibTorch: the targets LibTorch::LibTorch and, when that build has CUDA, LibTorch::CUDA.
#
# LibTorch is looked for, first that holds: LibTorch_ROOT (variable or environment: a folder with include/ and lib/),
# Torch_DIR (.../share/cmake/Torch), CMAKE_PREFIX_PATH, the Python named by LibTorch_PYTHON, the active virtual
# environment, python3 on PATH. Unlike TorchConfig.cmake it works with a CUDA wheel where no CUDA toolkit is installed:
# no kernel is compiled here, CUDA's libraries only have to be loaded.
#
# Sets LibTorch_FOUND, LibTorch_VERSION, LibTorch_ROOT_DIR, LibTorch_HAS_CUDA.
include(FindPackageHandleStandardArgs)

set(_libtorch_probe include/torch/csrc/api/include/torch/torch.h)

function(_libtorch_from_python result)
  foreach(python IN ITEMS "${LibTorch_PYTHON}" "$ENV{VIRTUAL_ENV}/bin/python" python3)
    if(python STREQUAL "" OR python STREQUAL "/bin/python")
      continue()
    endif()
    execute_process(
      COMMAND "${python}" -c
        "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(status EQUAL 0 AND EXISTS "${folder}/${_libtorch_probe}")
      set(${result} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

set(_libtorch_hints ${LibTorch_ROOT} $ENV{LibTorch_ROOT})
foreach(_libtorch_config IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
  if(_libtorch_config)
    get_filename_component(_libtorch_folder "${_libtorch_config}/../../.." ABSOLUTE)
    list(APPEND _libtorch_hints "${_libtorch_folder}")
  endif()
endforeach()
string(REPLACE ":" ";" _libtorch_environment_path "$ENV{CMAKE_PREFIX_PATH}")
find_path(LibTorch_ROOT_DIR NAMES ${_libtorch_probe}
  HINTS ${_libtorch_hints}
  PATHS ${CMAKE_PREFIX_PATH} ${_libtorch_environment_path}
  PATH_SUFFIXES torch libtorch NO_DEFAULT_PATH)
if(NOT LibTorch_ROOT_DIR)
  _libtorch_from_python(_libtorch_folder_of_python)
  if(_libtorch_folder_of_python)
    set(LibTorch_ROOT_DIR "${_libtorch_folder_of_python}" CACHE PATH "LibTorch's folder" FORCE)
  endif()
endif()

foreach(_libtorch_name IN ITEMS torch_cpu c10 torch_cuda c10_cuda)
  find_library(LibTorch_${_libtorch_name}_LIBRARY ${_libtorch_name} PATHS "${LibTorch_ROOT_DIR}/lib" NO_DEFAULT_PATH)
  mark_as_advanced(LibTorch_${_libtorch_name}_LIBRARY)
endforeach()

foreach(_libtorch_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_ROOT_DIR}/include/${_libtorch_header}")
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
