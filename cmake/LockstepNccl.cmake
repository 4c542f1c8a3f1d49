# Whether the backend nccl can be compiled: a LibTorch with CUDA brings NCCL and its adapter, but no headers of CUDA. These
# come with a CUDA toolkit, or with the packages nvidia-* that pip installs beside LibTorch. Nothing of CUDA's is linked.
#
# Sets LOCKSTEP_HAS_NCCL, and LOCKSTEP_NCCL_OPTIONS for the compiler.
set(LOCKSTEP_HAS_NCCL OFF)
set(LOCKSTEP_NCCL_OPTIONS "")
if(NOT LibTorch_HAS_CUDA)
  return()
endif()

file(GLOB _nccl_folders "${LibTorch_ROOT_DIR}/../nvidia/*/include")
foreach(_nccl_toolkit IN ITEMS "${CUDAToolkit_ROOT}" "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda)
  if(_nccl_toolkit)
    list(APPEND _nccl_folders "${_nccl_toolkit}/include")
  endif()
endforeach()

# The folders that an earlier configuration has found are forgotten with its LibTorch.
set(_nccl_asked "${LibTorch_ROOT_DIR}|${CUDAToolkit_ROOT}")
set(_nccl_missing "")
foreach(_nccl_header IN ITEMS cuda_runtime_api.h crt/host_config.h nv/target cublas_v2.h cusparse.h cusolverDn.h nccl.h)
  string(MAKE_C_IDENTIFIER "LOCKSTEP_FOLDER_OF_${_nccl_header}" _nccl_folder)
  if(DEFINED CACHE{LOCKSTEP_NCCL_ASKED} AND NOT _nccl_asked STREQUAL LOCKSTEP_NCCL_ASKED)
    unset(${_nccl_folder} CACHE)
  endif()
  find_path(${_nccl_folder} "${_nccl_header}" HINTS ${_nccl_folders})
  mark_as_advanced(${_nccl_folder})
  if(${_nccl_folder})
    list(APPEND LOCKSTEP_NCCL_OPTIONS "-isystem${${_nccl_folder}}")
  else()
    list(APPEND _nccl_missing "${_nccl_header}")
  endif()
endforeach()
set(LOCKSTEP_NCCL_ASKED "${_nccl_asked}" CACHE INTERNAL "")
list(REMOVE_DUPLICATES LOCKSTEP_NCCL_OPTIONS)

if(_nccl_missing)
  list(JOIN _nccl_missing ", " _nccl_missing)
  message(STATUS "NCCL: left out, because headers of CUDA are missing: ${_nccl_missing}")
  return()
endif()

# Structures differ from one major version of CUDA to the next.
file(STRINGS "${LibTorch_c10_cuda_LIBRARY}" _nccl_runtime REGEX "libcudart[-.0-9a-z]*\\.so\\.[0-9]+" LIMIT_COUNT 1)
string(REGEX REPLACE ".*libcudart[-.0-9a-z]*\\.so\\.([0-9]+).*" "\\1" _nccl_runtime "${_nccl_runtime}")
file(STRINGS "${LOCKSTEP_FOLDER_OF_cuda_runtime_api_h}/cuda_runtime_api.h" _nccl_version
  REGEX "^#define CUDART_VERSION +[0-9]+" LIMIT_COUNT 1)
string(REGEX REPLACE ".* ([0-9]+)[0-9][0-9][0-9].*" "\\1" _nccl_version "${_nccl_version}")
if(_nccl_version STREQUAL _nccl_runtime)
  set(LOCKSTEP_HAS_NCCL ON)
  message(STATUS "NCCL: found, with headers of CUDA ${_nccl_version}")
else()
  message(STATUS "NCCL: left out, because LibTorch is for CUDA ${_nccl_runtime} and the headers of "
    "${LOCKSTEP_FOLDER_OF_cuda_runtime_api_h} are of ${_nccl_version}")
endif()
