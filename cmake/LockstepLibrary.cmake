# The library as its users link it: lockstep::static, all layers as static libraries; lockstep::shared, the same objects in
# liblockstep.so, which exports what public headers declare; lockstep::lockstep, the shared one where it is built.
add_library(lockstep_static INTERFACE)
set_target_properties(lockstep_static PROPERTIES EXPORT_NAME static)
target_link_libraries(lockstep_static INTERFACE ${LOCKSTEP_LAYERS})
add_library(lockstep::static ALIAS lockstep_static)

# lockstep_shared_library(TARGET NAME EXPORTS layers...): libNAME.so of the objects of these layers, which exports what is
# visible and in the version script cmake/EXPORTS.
function(lockstep_shared_library target name exports)
  set(objects ${ARGN})
  list(TRANSFORM objects PREPEND "$<TARGET_OBJECTS:")
  list(TRANSFORM objects APPEND ">")
  add_library(${target} SHARED ${objects})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set(exports "${PROJECT_SOURCE_DIR}/cmake/${exports}")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${exports}" LINKER:-z,defs LINKER:-Bsymbolic-functions)
  # Before 1.0.0 the interface may change with each minor version, afterwards with each major one.
  set(interface "${PROJECT_VERSION_MAJOR}")
  if(interface EQUAL 0)
    string(APPEND interface ".${PROJECT_VERSION_MINOR}")
  endif()
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE CXX
    VERSION "${PROJECT_VERSION}" SOVERSION "${interface}" LINK_DEPENDS "${exports}")
endfunction()

if(LOCKSTEP_SHARED AND LOCKSTEP_LIBTORCH)
  # The agent is a library of its own: a rank does not load it.
  lockstep_shared_library(lockstep_agent lockstep_agent agent_exports.map
    lockstep_base lockstep_sys lockstep_store lockstep_rank_env lockstep_launch)
  target_link_libraries(lockstep_agent PRIVATE fmt::fmt spdlog::spdlog nlohmann_json::nlohmann_json PkgConfig::sodium)
  set_target_properties(lockstep_agent PROPERTIES EXPORT_NAME agent)
  set(layers ${LOCKSTEP_LAYERS})
  list(REMOVE_ITEM layers lockstep_launch)
  # Instances of other libraries' templates are nobody else's business: cmake/exports.map leaves only lockstep's names.
  lockstep_shared_library(lockstep_shared lockstep exports.map ${layers})
  add_library(lockstep::shared ALIAS lockstep_shared)
  add_library(lockstep::lockstep ALIAS lockstep_shared)
  list(REMOVE_DUPLICATES LOCKSTEP_PRIVATE_LIBRARIES)
  target_link_libraries(lockstep_shared PUBLIC LibTorch::LibTorch PRIVATE ${LOCKSTEP_PRIVATE_LIBRARIES}
    INTERFACE "-Wl,--push-state,--as-needed" lockstep_agent "-Wl,--pop-state")
  set_target_properties(lockstep_shared PROPERTIES EXPORT_NAME shared INSTALL_RPATH "${LibTorch_ROOT_DIR}/lib")
else()
  add_library(lockstep::lockstep ALIAS lockstep_static)
endif()
