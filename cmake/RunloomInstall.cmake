# The install tree: headers, libraries (declared with each layer), the CMake package and pkg-config files.

include(CMakePackageConfigHelpers)

set(_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/runloom")
get_property(_layers GLOBAL PROPERTY RUNLOOM_LAYERS)
get_property(RUNLOOM_KINDS GLOBAL PROPERTY RUNLOOM_KINDS)
set(RUNLOOM_LAYER_TABLE "")
# From the .pc file to the prefix, so that an install tree can be moved.
file(RELATIVE_PATH PC_PREFIX "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")

foreach(layer IN LISTS _layers)
  install(DIRECTORY src/${layer}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT devel
    FILES_MATCHING PATTERN "*.hpp")
  foreach(kind IN LISTS RUNLOOM_KINDS)
    install(EXPORT runloom-${layer}-${kind} NAMESPACE runloom:: DESTINATION ${_config_dir} COMPONENT devel)
  endforeach()

  foreach(key IN ITEMS DEPENDS PUBLIC_PACKAGE PRIVATE_PACKAGE PC_LIBS PC_PRIVATE_LIBS)
    get_property(_${key} GLOBAL PROPERTY RUNLOOM_${layer}_${key})
  endforeach()
  string(APPEND RUNLOOM_LAYER_TABLE
    "set(_runloom_${layer}_depends \"${_DEPENDS}\")\n"
    "set(_runloom_${layer}_public_packages \"${_PUBLIC_PACKAGE}\")\n"
    "set(_runloom_${layer}_private_packages \"${_PRIVATE_PACKAGE}\")\n")

  # pkg-config. Without a shared library the private libraries are needed by everyone who links.
  set(PC_NAME ${layer})
  set(PC_REQUIRES ${_DEPENDS})
  list(TRANSFORM PC_REQUIRES PREPEND "runloom-")
  list(TRANSFORM PC_REQUIRES APPEND " = ${PROJECT_VERSION}")
  list(JOIN PC_REQUIRES ", " PC_REQUIRES)
  set(PC_LIBS "-lrunloom_${layer}")
  set(PC_LIBS_PRIVATE ${_PC_PRIVATE_LIBS} -lstdc++)
  if("shared" IN_LIST RUNLOOM_KINDS)
    list(APPEND PC_LIBS ${_PC_LIBS})
  else()
    list(APPEND PC_LIBS ${_PC_PRIVATE_LIBS} ${_PC_LIBS})
  endif()
  list(JOIN PC_LIBS " " PC_LIBS)
  list(JOIN PC_LIBS_PRIVATE " " PC_LIBS_PRIVATE)
  set(PC_CFLAGS "")
  if(RUNLOOM_DEBUG)
    set(PC_CFLAGS "-DRUNLOOM_DEBUG=1")
  endif()
  configure_file(cmake/runloom.pc.in runloom-${layer}.pc @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/runloom-${layer}.pc"
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT devel)
endforeach()

list(JOIN _layers " " RUNLOOM_LAYERS_TEXT)
configure_package_config_file(cmake/runloom-config.cmake.in runloom-config.cmake
  INSTALL_DESTINATION ${_config_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(runloom-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/runloom-config.cmake" "${PROJECT_BINARY_DIR}/runloom-config-version.cmake"
  DESTINATION ${_config_dir} COMPONENT devel)
