# cmake --install: headers, libraries, programs, and what find_package(Lockstep) reads.
include(CMakePackageConfigHelpers)

set(LOCKSTEP_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep")
install(TARGETS ${LOCKSTEP_FLOORS} lockstep EXPORT LockstepTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION "${LOCKSTEP_PACKAGE_DIR}")
install(DIRECTORY include/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(LOCKSTEP_PROGRAMS AND LOCKSTEP_PROGRAM_TARGETS)
  install(TARGETS ${LOCKSTEP_PROGRAM_TARGETS} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
# A consumer needs the headers and libraries of the same minor version.
if(LibTorch_VERSION MATCHES "^([0-9]+)[.]([0-9]+)")
  math(EXPR _lockstep_next "${CMAKE_MATCH_2} + 1")
  set(LOCKSTEP_LIBTORCH_RANGE "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}...<${CMAKE_MATCH_1}.${_lockstep_next}")
endif()
# In small letters find_package(Lockstep) and find_package(lockstep) both find them.
configure_package_config_file(cmake/lockstep-config.cmake.in "${PROJECT_BINARY_DIR}/lockstep-config.cmake"
  INSTALL_DESTINATION "${LOCKSTEP_PACKAGE_DIR}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lockstep-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lockstep-config.cmake" "${PROJECT_BINARY_DIR}/lockstep-config-version.cmake"
  cmake/FindLibTorch.cmake DESTINATION "${LOCKSTEP_PACKAGE_DIR}")

# What pkg-config reads. The libraries are static: each stands before those that it uses.
if(LOCKSTEP_LIBTORCH)
  list(REVERSE LOCKSTEP_FLOORS)
  list(TRANSFORM LOCKSTEP_FLOORS PREPEND "-l" OUTPUT_VARIABLE LOCKSTEP_PC_LIBRARIES)
  list(REVERSE LOCKSTEP_FLOORS)
  list(JOIN LOCKSTEP_PC_LIBRARIES " " LOCKSTEP_PC_LIBRARIES)
  get_target_property(LOCKSTEP_PC_DEFINITIONS LibTorch::cpu INTERFACE_COMPILE_DEFINITIONS)
  list(TRANSFORM LOCKSTEP_PC_DEFINITIONS PREPEND "-D")
  list(JOIN LOCKSTEP_PC_DEFINITIONS " " LOCKSTEP_PC_DEFINITIONS)
  set(LOCKSTEP_PC_CUDA "")
  if(LibTorch_HAS_CUDA)
    set(LOCKSTEP_PC_CUDA "-Wl,--push-state,--no-as-needed -ltorch_cuda -lc10_cuda -Wl,--pop-state,--allow-shlib-undefined")
  endif()
  configure_file(cmake/lockstep.pc.in "${PROJECT_BINARY_DIR}/lockstep.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/lockstep.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()
if(LOCKSTEP_PROGRAMS)
  install(FILES src/apps/completion.bash DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME lockstep)
  install(FILES src/apps/lockstep.1 DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
endif()
