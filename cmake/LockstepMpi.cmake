# The plug-ins of the backend mpi: one small library of one source for each MPI implementation found. Nothing else links MPI.
set(LOCKSTEP_MPI_IMPLEMENTATIONS "")
foreach(implementation IN ITEMS openmpi mpich)
  string(REPLACE "openmpi" "ompi" package "${implementation}")   # the name of its pkg-config file
  pkg_check_modules(${implementation} QUIET ${package})
  # Of what its pkg-config file names only this: some list libraries of theirs that no package has brought (Ubuntu's MPICH).
  string(REPLACE "open" "" library "${implementation}")
  find_library(LOCKSTEP_${implementation}_LIBRARY NAMES ${library} HINTS ${${implementation}_LIBRARY_DIRS} NO_DEFAULT_PATH)
  mark_as_advanced(LOCKSTEP_${implementation}_LIBRARY)
  if(NOT ${implementation}_FOUND OR NOT LOCKSTEP_${implementation}_LIBRARY)
    continue()
  endif()
  list(APPEND LOCKSTEP_MPI_IMPLEMENTATIONS ${implementation})
  # For sources that call this MPI. Without its old C++ interface, of which g++ keeps what only a library of it defines.
  add_library(lockstep_with_${implementation} INTERFACE)
  target_link_libraries(lockstep_with_${implementation} INTERFACE lockstep_settings ${LOCKSTEP_${implementation}_LIBRARY})
  target_include_directories(lockstep_with_${implementation} SYSTEM INTERFACE ${${implementation}_INCLUDE_DIRS})
  target_compile_definitions(lockstep_with_${implementation} INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  add_library(lockstep_mpi_${implementation} MODULE src/comm/backends/mpi/plugin/functions.cc)
  target_link_libraries(lockstep_mpi_${implementation} PRIVATE lockstep_with_${implementation})
  # The installed plug-in finds the MPI that this build found, also outside of the linker's folders.
  set_target_properties(lockstep_mpi_${implementation} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib" INSTALL_RPATH_USE_LINK_PATH TRUE)
  install(TARGETS lockstep_mpi_${implementation} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/lockstep")
  add_dependencies(lockstep_comm lockstep_mpi_${implementation})
endforeach()
list(JOIN LOCKSTEP_MPI_IMPLEMENTATIONS ", " _lockstep_mpi_found)
message(STATUS "MPI: ${_lockstep_mpi_found}")
set_source_files_properties(src/comm/backends/mpi/library.cc PROPERTIES COMPILE_DEFINITIONS
  "LOCKSTEP_MPI_BUILD_FOLDER=\"${PROJECT_BINARY_DIR}/lib\";LOCKSTEP_MPI_INSTALL_FOLDER=\"${CMAKE_INSTALL_FULL_LIBDIR}/lockstep\";LOCKSTEP_MPI_FROM_PROGRAMS=\"${LOCKSTEP_LIBRARIES_FROM_PROGRAMS}/lockstep\"")
