# runloom_add_layer(NAME
#   [DEPENDS layer...]            layers below, public
#   [PUBLIC_LIBS target...]       libraries that a consumer links, too
#   [PRIVATE_LIBS target...]      libraries that only this layer's sources see
#   [PUBLIC_PACKAGE text...]      find_dependency() arguments, one string a package, for PUBLIC_LIBS
#   [PRIVATE_PACKAGE text...]     the same for PRIVATE_LIBS (a consumer needs them with static libraries only)
#   [PC_LIBS flag...] [PC_PRIVATE_LIBS flag...])   the same libraries as pkg-config spells them
#
# A layer is src/NAME/*.cpp with its public headers in src/NAME/include. It gives the target runloom_NAME
# with the alias runloom::NAME. The sources are compiled once; with RUNLOOM_BOTH the same objects also make a
# second library of the other kind, which is only installed. A layer without sources is left out.
function(runloom_add_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" ""
    "DEPENDS;PUBLIC_LIBS;PRIVATE_LIBS;PUBLIC_PACKAGE;PRIVATE_PACKAGE;PC_LIBS;PC_PRIVATE_LIBS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "runloom_add_layer(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()

  set(dir "${PROJECT_SOURCE_DIR}/src/${name}")
  file(GLOB sources CONFIGURE_DEPENDS "${dir}/*.cpp")
  if(NOT sources)
    return()
  endif()

  set(objects runloom_${name}_objects)
  add_library(${objects} OBJECT ${sources})
  target_include_directories(${objects} PRIVATE "${dir}")
  # Every fiber switch reads thread-local state. initial-exec makes that one load instead of a call, also in
  # the shared library and the Python module; the few bytes fit into glibc's reserve for dlopen.
  target_compile_options(${objects} PRIVATE -ftls-model=initial-exec -fno-plt)
  runloom_warnings(${objects})
  _runloom_layer_usage(${objects} "${name}" "" "${arg_DEPENDS}" "${arg_PUBLIC_LIBS}" "${arg_PRIVATE_LIBS}")

  if(BUILD_SHARED_LIBS)
    set(kinds shared)
  else()
    set(kinds static)
  endif()
  _runloom_layer_library(${name} ${kinds} "")
  add_library(runloom::${name} ALIAS runloom_${name})
  if(RUNLOOM_BOTH)
    if(BUILD_SHARED_LIBS)
      set(other static)
    else()
      set(other shared)
    endif()
    list(APPEND kinds ${other})
    _runloom_layer_library(${name} ${other} _${other})
  endif()

  set_property(GLOBAL APPEND PROPERTY RUNLOOM_LAYERS ${name})
  foreach(key IN ITEMS DEPENDS PUBLIC_PACKAGE PRIVATE_PACKAGE PC_LIBS PC_PRIVATE_LIBS)
    set_property(GLOBAL PROPERTY RUNLOOM_${name}_${key} "${arg_${key}}")
  endforeach()
  set_property(GLOBAL PROPERTY RUNLOOM_KINDS "${kinds}")
  set(RUNLOOM_LAYERS ${RUNLOOM_LAYERS} ${name} PARENT_SCOPE)
endfunction()

# Include directories, definitions and libraries of one target of a layer; `suffix` names the kind of the
# layers below that it links.
function(_runloom_layer_usage target name suffix depends public_libs private_libs)
  set(include "${PROJECT_SOURCE_DIR}/src/${name}/include")
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:${include}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(${target} PUBLIC cxx_std_20)
  if(RUNLOOM_DEBUG)
    # Public, because inline code in headers may check, too.
    target_compile_definitions(${target} PUBLIC RUNLOOM_DEBUG=1)
  endif()
  list(TRANSFORM depends PREPEND runloom_)
  list(TRANSFORM depends APPEND "${suffix}")
  target_link_libraries(${target} PUBLIC ${depends} ${public_libs} PRIVATE ${private_libs})
endfunction()

macro(_runloom_layer_library name kind suffix)
  set(_target runloom_${name}${suffix})
  string(TOUPPER ${kind} _type)
  add_library(${_target} ${_type} $<TARGET_OBJECTS:${objects}>)
  _runloom_layer_usage(${_target} "${name}" "${suffix}" "${arg_DEPENDS}" "${arg_PUBLIC_LIBS}" "${arg_PRIVATE_LIBS}")
  set_target_properties(${_target} PROPERTIES
    OUTPUT_NAME runloom_${name}
    EXPORT_NAME ${name}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINKER_LANGUAGE CXX
    INSTALL_RPATH "$ORIGIN")
  install(TARGETS ${_target} EXPORT runloom-${name}-${kind}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT devel
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT devel
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endmacro()
