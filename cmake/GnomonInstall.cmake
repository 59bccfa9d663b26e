# What `cmake --install` and the Debian package lay down. `cmake --build --preset release --target debian` makes the package
# of this build, which runs on this kind of processor; with -DGNOMON_ARCH=x86-64-v4 it travels.
include(GNUInstallDirs)
# As they are: the bundle's way of finding libraries does no harm, and CMake would not know how to take it out.
install(PROGRAMS $<TARGET_FILE:gnomond> $<TARGET_FILE:gnomon> $<TARGET_FILE:gnomon-admin> $<TARGET_FILE:gnomon-lab>
  $<TARGET_FILE:gnomon-trainer> $<TARGET_FILE:gnomon-verifier>
  DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_BINARY_DIR}/web/ DESTINATION ${CMAKE_INSTALL_DATADIR}/gnomon/web)
install(DIRECTORY dashboards/grafana dashboards/prometheus DESTINATION ${CMAKE_INSTALL_DATADIR}/gnomon/dashboards
  PATTERN "build.py" EXCLUDE)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN "demo" EXCLUDE)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "studies" EXCLUDE PATTERN "decisions" EXCLUDE)
install(DIRECTORY packaging/kubernetes DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(FILES packaging/systemd/gnomond.service DESTINATION lib/systemd/system)
install(FILES packaging/systemd/gnomon.sysusers DESTINATION lib/sysusers.d RENAME gnomon.conf)
install(FILES packaging/gnomond.toml DESTINATION /etc/gnomon)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gnomon)
set(CPACK_PACKAGE_VENDOR "The Gnomon authors")
set(CPACK_PACKAGE_CONTACT "The Gnomon authors <gnomon@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "FP8 pretraining with a BF16 shadow: trainer, verifier, controller, command line")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "prometheus")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "grafana")
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
file(WRITE ${CMAKE_BINARY_DIR}/debian/conffiles "/etc/gnomon/gnomond.toml\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/debian/conffiles
  ${CMAKE_SOURCE_DIR}/packaging/debian/postinst ${CMAKE_SOURCE_DIR}/packaging/debian/prerm ${CMAKE_SOURCE_DIR}/packaging/debian/postrm)
include(CPack)
add_custom_target(debian COMMAND ${CMAKE_CPACK_COMMAND} -G DEB -B ${CMAKE_BINARY_DIR}/packages
  DEPENDS gnomond gnomon gnomon-admin gnomon-lab gnomon-trainer gnomon-verifier gnomon_web VERBATIM USES_TERMINAL)
