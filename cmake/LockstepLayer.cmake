# How a layer becomes a library, and the compiler settings that all of them share.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
# What a public header declares is exported (it says so by a pragma); the rest is hidden. In all targets alike, since they
# share one precompiled header.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)

add_library(lockstep_settings INTERFACE)
target_compile_features(lockstep_settings INTERFACE cxx_std_20)
# -fPIC by hand: CMAKE_POSITION_INDEPENDENT_CODE gives programs -fPIE, and the shared precompiled header no longer fits them.
# -ffp-contract=off: what is rounded when is part of the results, and compilers differ in what they fuse.
target_compile_options(lockstep_settings INTERFACE -fPIC -Wall -Wextra -fno-math-errno -ffp-contract=off
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-missing-field-initializers>  # designated ones say what they leave out
  $<$<BOOL:${LOCKSTEP_WARNINGS_AS_ERRORS}>:-Werror>)
target_include_directories(lockstep_settings INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(lockstep_settings INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
  find_program(LOCKSTEP_LLD NAMES ld.lld ld.lld-16)
  if(LOCKSTEP_LLD)
    add_link_options("-fuse-ld=${LOCKSTEP_LLD}")
  endif()
endif()

set(LOCKSTEP_LAYERS "" CACHE INTERNAL "")
set(LOCKSTEP_PRIVATE_LIBRARIES "" CACHE INTERNAL "")   # what layers link that their users need not know
set(LOCKSTEP_PROGRAM_TARGETS "" CACHE INTERNAL "")

# How an installed program names the folder of the libraries: LIBDIR may have several parts, or be absolute.
file(RELATIVE_PATH LOCKSTEP_LIBRARIES_FROM_PROGRAMS "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")

# lockstep_precompiled(TARGET): TARGET reuses the one precompiled LibTorch header.
function(lockstep_precompiled target)
  if(NOT TARGET lockstep_precompiled_header)
    file(WRITE "${PROJECT_BINARY_DIR}/precompiled.cc" "// Holds the precompiled header.\n")
    add_library(lockstep_precompiled_header STATIC "${PROJECT_BINARY_DIR}/precompiled.cc")
    target_link_libraries(lockstep_precompiled_header PRIVATE lockstep_settings LibTorch::LibTorch)
    target_precompile_headers(lockstep_precompiled_header PRIVATE "${PROJECT_SOURCE_DIR}/cmake/precompiled.h")
  endif()
  target_precompile_headers(${target} REUSE_FROM lockstep_precompiled_header)
endfunction()

# Sources are compiled in batches where the preset says so (CMAKE_UNITY_BUILD), which halves the time of a build. Highway
# compiles a kernel's source once for each instruction set, by including it again: such a source stays by itself.
function(lockstep_keep_kernels_apart)
  foreach(source IN LISTS ARGN)
    file(STRINGS "${source}" found REGEX "hwy/foreach_target" LIMIT_COUNT 1)
    if(found)
      set_source_files_properties("${source}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()

# lockstep_sources(VARIABLE ROOT PATTERN OF [folders or files...] EXCEPT [folders or files...]): the files below ROOT whose names
# match PATTERN, in these folders and those that are named.
function(lockstep_sources variable root pattern)
  cmake_parse_arguments(arg "" "" "OF;EXCEPT" ${ARGN})
  set(sources "")
  foreach(each IN LISTS arg_OF)
    if(each MATCHES "\\.cc$")
      list(APPEND sources "${root}/${each}")
    else()
      file(GLOB_RECURSE below CONFIGURE_DEPENDS "${root}/${each}/${pattern}")
      list(APPEND sources ${below})
    endif()
  endforeach()
  foreach(each IN LISTS arg_EXCEPT)
    foreach(source IN LISTS sources)
      string(FIND "${source}/" "${root}/${each}/" at)   # no regular expression: ROOT may have its characters
      if(at EQUAL 0)
        list(REMOVE_ITEM sources "${source}")
      endif()
    endforeach()
  endforeach()
  set(${variable} "${sources}" PARENT_SCOPE)
endfunction()

# lockstep_layer(NAME [SOURCES folders or files...] [EXCLUDE folders or files...] [LIBTORCH] [USES layers...] [LINK libraries...])
# makes the static library lockstep_NAME of all sources below src/NAME (or src/SOURCES), without those of EXCLUDE.
function(lockstep_layer name)
  cmake_parse_arguments(arg "LIBTORCH" "" "SOURCES;EXCLUDE;USES;LINK" ${ARGN})
  if(NOT arg_SOURCES)
    set(arg_SOURCES ${name})
  endif()
  lockstep_sources(sources "${PROJECT_SOURCE_DIR}/src" "*.cc" OF ${arg_SOURCES} EXCEPT ${arg_EXCLUDE})
  list(FILTER sources EXCLUDE REGEX "/no_[a-z0-9_]+\\.cc$")   # an absent backend's file is chosen by LockstepDependencies
  if(LOCKSTEP_ABSENT_${name})
    list(FILTER sources EXCLUDE REGEX "${LOCKSTEP_PRESENT_FILES_${name}}")
    list(APPEND sources ${LOCKSTEP_ABSENT_${name}})
  endif()
  if(NOT sources)
    file(WRITE "${PROJECT_BINARY_DIR}/${name}_empty.cc" "")
    set(sources "${PROJECT_BINARY_DIR}/${name}_empty.cc")
  endif()
  add_library(lockstep_${name} STATIC ${sources})
  lockstep_keep_kernels_apart(${sources})
  set_target_properties(lockstep_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(lockstep_${name} PUBLIC cxx_std_20)
  target_include_directories(lockstep_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  list(TRANSFORM arg_USES PREPEND lockstep_)
  target_link_libraries(lockstep_${name} PUBLIC ${arg_USES} PRIVATE $<BUILD_INTERFACE:lockstep_settings> ${arg_LINK})
  if(arg_LIBTORCH)
    target_link_libraries(lockstep_${name} PUBLIC LibTorch::LibTorch)
    lockstep_precompiled(lockstep_${name})
  endif()
  set(LOCKSTEP_LAYERS ${LOCKSTEP_LAYERS} lockstep_${name} CACHE INTERNAL "")
  set(LOCKSTEP_PRIVATE_LIBRARIES ${LOCKSTEP_PRIVATE_LIBRARIES} ${arg_LINK} CACHE INTERNAL "")
endfunction()

# lockstep_program(NAME sources... [LIBTORCH] [USES layers...] [LINK libraries...]); those of src/apps are installed.
function(lockstep_program name)
  cmake_parse_arguments(arg "LIBTORCH" "" "USES;LINK" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  lockstep_keep_kernels_apart(${arg_UNPARSED_ARGUMENTS})
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "/src/apps$")
    set(LOCKSTEP_PROGRAM_TARGETS ${LOCKSTEP_PROGRAM_TARGETS} ${name} CACHE INTERNAL "")
  endif()
  list(TRANSFORM arg_USES PREPEND lockstep_)
  target_link_libraries(${name} PRIVATE lockstep_settings ${arg_USES} ${arg_LINK})
  if(arg_LIBTORCH)
    lockstep_precompiled(${name})
    # Where an installed program finds LibTorch: where this build found it, or beside the program when both were moved.
    set_target_properties(${name} PROPERTIES
      INSTALL_RPATH "${LibTorch_ROOT_DIR}/lib;$ORIGIN/${LOCKSTEP_LIBRARIES_FROM_PROGRAMS}")
  endif()
endfunction()
