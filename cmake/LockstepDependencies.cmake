# What Lockstep links: Debian's packages, LibTorch, and which optional backends are there.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
find_package(nlohmann_json REQUIRED)
if(LOCKSTEP_TESTS)
  find_package(GTest REQUIRED)
endif()
if(LOCKSTEP_LIBTORCH)
  find_package(ZLIB REQUIRED)
  pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET tomlplusplus)
  # Its C++ interface changes from one minor version to the next: only those that are tried are taken.
  find_package(LibTorch 2.11...<2.16 REQUIRED)
  # A backend that cannot be built here is a file no_<backend>.cc in the place of <backend>.cc.
  set(_lockstep_absent_backends "")
  # Gloo lives in libtorch_cpu; its headers (Debian's libgloo-dev) are needed to compile against it, nothing is linked.
  find_path(LOCKSTEP_GLOO_INCLUDE_DIR gloo/algorithm.h)
  if(NOT LOCKSTEP_GLOO_INCLUDE_DIR)
    list(APPEND _lockstep_absent_backends gloo)
  endif()
  include(LockstepNccl)
  if(LOCKSTEP_HAS_NCCL)
    # The only source that sees CUDA's headers, so it shares neither its compilation nor the precompiled header.
    set_source_files_properties("${PROJECT_SOURCE_DIR}/src/comm/backends/c10d/nccl.cc" PROPERTIES
      COMPILE_DEFINITIONS USE_C10D_NCCL COMPILE_OPTIONS "${LOCKSTEP_NCCL_OPTIONS}"
      SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  else()
    list(APPEND _lockstep_absent_backends nccl)
  endif()
  list(TRANSFORM _lockstep_absent_backends REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/src/comm/backends/c10d/no_\\1.cc"
    OUTPUT_VARIABLE LOCKSTEP_ABSENT_comm)
  list(JOIN _lockstep_absent_backends "|" LOCKSTEP_PRESENT_FILES_comm)
  set(LOCKSTEP_PRESENT_FILES_comm "/comm/backends/c10d/(${LOCKSTEP_PRESENT_FILES_comm})\\.cc$")
endif()
