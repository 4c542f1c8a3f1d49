# Every public header compiles alone: headers_alone has one source for each, which includes that header and nothing else,
# with no precompiled header and not in batches. No other target needs it; `./dev lint` builds it.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/include/*.h")
set(sources "")
foreach(header IN LISTS headers)
  string(MAKE_C_IDENTIFIER "${header}" name)
  set(source "${PROJECT_BINARY_DIR}/headers_alone/${name}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include <${header}>\n" @ONLY)
  list(APPEND sources "${source}")
endforeach()
add_library(headers_alone OBJECT EXCLUDE_FROM_ALL ${sources})
target_link_libraries(headers_alone PRIVATE lockstep_settings LibTorch::LibTorch)
set_target_properties(headers_alone PROPERTIES UNITY_BUILD OFF)
