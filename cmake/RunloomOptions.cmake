# What a user of the build can choose, and the defaults that follow from how the build was started.

set(_top_level ${PROJECT_IS_TOP_LEVEL})
if(DEFINED SKBUILD OR RUNLOOM_USE_INSTALLED_CORE)
  # A wheel, or bindings for one more interpreter, needs nothing but the module.
  set(_top_level OFF)
endif()

option(BUILD_SHARED_LIBS "Build each layer as a shared library" OFF)
option(RUNLOOM_BOTH "Build and install each layer both as a static and as a shared library" OFF)
option(RUNLOOM_TESTS "Build the tests" ${_top_level})
option(RUNLOOM_EXAMPLES "Build the examples" ${_top_level})
option(RUNLOOM_BENCH "Build the benchmarks" OFF)
option(RUNLOOM_FUZZ "Build the fuzz targets with libFuzzer (clang only)" OFF)
option(RUNLOOM_WERROR "Treat compiler warnings as errors" OFF)
option(RUNLOOM_DEBUG "Compile internal checks in, such as the lock order" OFF)
option(RUNLOOM_CCACHE "Compile through ccache where it is installed" ON)
set(RUNLOOM_SANITIZE "" CACHE STRING "Value of -fsanitize= for everything: address,undefined or thread")

option(RUNLOOM_USE_INSTALLED_CORE "Take the C++ layers from an installed runloom (set runloom_DIR)" OFF)
if(DEFINED SKBUILD OR RUNLOOM_USE_INSTALLED_CORE)
  option(RUNLOOM_PYTHON "Build the Python extension module" ON)
else()
  option(RUNLOOM_PYTHON "Build the Python extension module" OFF)
endif()

# What a user of the wheel gets. The layers cross into each other and into the bindings at every switch and
# every transfer, by small functions: inlined, they make a switch in Python a sixth cheaper.
if(DEFINED SKBUILD)
  option(RUNLOOM_LTO "Optimise at link time, where the compiler can" ON)
else()
  option(RUNLOOM_LTO "Optimise at link time, where the compiler can" OFF)
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

if(RUNLOOM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(RUNLOOM_CCACHE_PROGRAM ccache)
  mark_as_advanced(RUNLOOM_CCACHE_PROGRAM)
  if(RUNLOOM_CCACHE_PROGRAM)
    set(CMAKE_C_COMPILER_LAUNCHER "${RUNLOOM_CCACHE_PROGRAM}")
    set(CMAKE_CXX_COMPILER_LAUNCHER "${RUNLOOM_CCACHE_PROGRAM}")
  endif()
endif()

if(RUNLOOM_FUZZ AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "RUNLOOM_FUZZ needs clang, because libFuzzer is part of it: "
                      "configure with `cmake --preset fuzz`.")
endif()

include(GNUInstallDirs)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
