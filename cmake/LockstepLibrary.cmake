# The library as its users link it: lockstep::static, all floors as static libraries; lockstep::shared, the same objects in
# liblockstep.so, which exports what public headers declare; lockstep::lockstep, the shared one where it is built.
add_library(lockstep_static INTERFACE)
set_target_properties(lockstep_static PROPERTIES EXPORT_NAME static)
target_link_libraries(lockstep_static INTERFACE ${LOCKSTEP_FLOORS})
add_library(lockstep::static ALIAS lockstep_static)

if(LOCKSTEP_SHARED AND LOCKSTEP_LIBTORCH)
  set(objects ${LOCKSTEP_FLOORS})
  list(TRANSFORM objects PREPEND "$<TARGET_OBJECTS:")
  list(TRANSFORM objects APPEND ">")
  add_library(lockstep_shared SHARED ${objects})
  add_library(lockstep::shared ALIAS lockstep_shared)
  add_library(lockstep::lockstep ALIAS lockstep_shared)
  list(REMOVE_DUPLICATES LOCKSTEP_PRIVATE_LIBRARIES)
  target_link_libraries(lockstep_shared PUBLIC LibTorch::LibTorch PRIVATE ${LOCKSTEP_PRIVATE_LIBRARIES})
  target_compile_features(lockstep_shared PUBLIC cxx_std_20)
  target_include_directories(lockstep_shared INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # Instances of other libraries' templates are nobody else's business either: cmake/exports.map leaves only lockstep's names.
  set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
  target_link_options(lockstep_shared PRIVATE "LINKER:--version-script=${exports}" LINKER:-z,defs LINKER:-Bsymbolic-functions)
  # Before 1.0.0 the interface may change with each minor version, afterwards with each major one.
  set(interface "${PROJECT_VERSION_MAJOR}")
  if(interface EQUAL 0)
    string(APPEND interface ".${PROJECT_VERSION_MINOR}")
  endif()
  set_target_properties(lockstep_shared PROPERTIES OUTPUT_NAME lockstep EXPORT_NAME shared LINKER_LANGUAGE CXX
    VERSION "${PROJECT_VERSION}" SOVERSION "${interface}" LINK_DEPENDS "${exports}" INSTALL_RPATH "${LibTorch_ROOT_DIR}/lib")
else()
  add_library(lockstep::lockstep ALIAS lockstep_static)
endif()
