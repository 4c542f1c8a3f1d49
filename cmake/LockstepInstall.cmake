# cmake --install: headers, libraries, programs, and what find_package(Lockstep) reads.
include(CMakePackageConfigHelpers)

set(LOCKSTEP_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep")
install(TARGETS ${LOCKSTEP_FLOORS} lockstep EXPORT LockstepTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION "${LOCKSTEP_PACKAGE_DIR}")
install(DIRECTORY include/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(LOCKSTEP_PROGRAMS AND LOCKSTEP_PROGRAM_TARGETS)
  install(TARGETS ${LOCKSTEP_PROGRAM_TARGETS} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
configure_package_config_file(cmake/LockstepConfig.cmake.in "${PROJECT_BINARY_DIR}/LockstepConfig.cmake"
  INSTALL_DESTINATION "${LOCKSTEP_PACKAGE_DIR}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/LockstepConfig.cmake" "${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake"
  cmake/FindLibTorch.cmake DESTINATION "${LOCKSTEP_PACKAGE_DIR}")
